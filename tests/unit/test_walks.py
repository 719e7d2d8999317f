"""The walks of docs/architecture.md lead through modules that exist and are joined as the document says."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "c4bench"
WALKS = {"A telemetry record": 16, "A request for a path": 20}


class Step(NamedTuple):
    """One row: the module, and how it is joined to the next one."""

    module: str
    joint: str


def walk(title):
    """The rows of the walk whose heading begins with `title`."""
    section = (REPOSITORY / "docs/architecture.md").read_text().partition(f"\n### {title}")[2]
    rows = [line.split("|") for line in re.split(r"\n##", section)[0].splitlines() if line.startswith("| `")]
    return [Step(row[1].strip().strip("`"), row[3].strip()) for row in rows]


def imported(module):
    """The modules of c4bench that a module's statements import, as paths."""
    names = set()
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {f"{name.removeprefix('c4bench.').replace('.', '/')}.py" for name in names}


def joined(steps, index):
    """Whether a step is joined to the next as its row says."""
    (here, joint), there = steps[index], steps[index + 1].module
    if joint == "import":
        return there in imported(here) or here in imported(there)
    if joint == "return":
        return there in [step.module for step in steps[:index]]
    token = re.fullmatch(r"(?:message|file|interface) `(\w+)`", joint)
    return token and all(re.search(rf"\b{token[1]}\b", (PACKAGE / module).read_text()) for module in (here, there))


@pytest.mark.parametrize("title", WALKS)
def test_every_module_exists_and_is_joined_to_the_next(title):
    """Each module of a walk exists, and an import or the named message joins it to the next one."""
    steps = walk(title)
    assert [step.module for step in steps if not (PACKAGE / step.module).is_file()] == []
    assert [steps[index] for index in range(len(steps) - 1) if not joined(steps, index)] == []
    assert steps[-1].joint == ""


@pytest.mark.parametrize(("title", "most"), WALKS.items())
def test_walks_are_short(title, most):
    """A walk has a limited number of steps, and lists a module again only where a stage returns to its entry point."""
    steps = walk(title)
    assert 5 < len(steps) <= most
    modules = [step.module for step in steps]
    again = {index for index, module in enumerate(modules) if module in modules[:index]}
    entries = {index + 1 for index, step in enumerate(steps) if step.joint == "return"}
    assert again <= entries, "only after a return is a module listed again"


def test_a_wrong_joint_is_noticed():
    """Modules that do not import each other, and a message that one of them does not name, are no joint."""
    first, second = "collective/recorder.py", "control/state/event_log.py"
    for joint in ("import", "return", "message `window`", "somehow"):
        assert not joined([Step(first, joint), Step(second, "")], 0)
