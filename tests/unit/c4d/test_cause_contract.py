"""What the author of a new cause of a diagnosis has still to do."""

import ast
from pathlib import Path

import pytest

from c4bench.model.diagnosis import Cause, Syndrome

REPOSITORY = Path(__file__).parents[3]


def named(folder, kind):
    """The members of an enumeration that the modules below `folder` name, as `Cause.PORT_DOWN` or by their values."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == kind.__name__:
                found.add(node.attr)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {member.name for member in kind if member.value in node.value}
    return found


@pytest.mark.parametrize("kind", [Cause, Syndrome])
def test_every_member_is_found_by_a_detector(kind):
    """A syndrome or cause that the schema offers is found by a stage of C4D."""
    missing = {member.name for member in kind} - named(REPOSITORY / "c4bench/c4d", kind)
    assert missing == set(), "no module of c4bench/c4d returns a Finding with these"


def test_every_syndrome_is_tested():
    """A syndrome stands in a test that says when it is found."""
    names = {"c4d", "sim", "grading"}
    folders = [path for path in (REPOSITORY / "tests").rglob("*") if path.is_dir() and path.name in names]
    missing = {member.name for member in Syndrome} - set().union(*(named(folder, Syndrome) for folder in folders))
    assert missing == set(), "no test in a folder c4d, sim or grading names these"
