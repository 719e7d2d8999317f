"""What the author of a new workload or a new collective has still to do."""

import ast
from pathlib import Path

from c4bench.collective.communicator import Communicator
from c4bench.workload import programs
from c4bench.workload.context import PathManagedCommunicator

# Methods of a communicator that move no data: they need no guidance.
MANAGEMENT = {"empty", "split", "shrink", "move", "weigh", "resilience", "abandon", "close"}


def has_program(path):
    """Whether a module defines `run(context)`."""
    functions = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))
    return any(f.name == "run" and [a.arg for a in f.args.args] == ["context"] for f in functions)


def test_every_workload_is_registered():
    """A module or package of `workload` with a `run(context)` is a program that jobs may name, and nothing else is."""
    folder = Path(programs.__file__).parent
    written = {path.stem for path in folder.glob("*.py") if has_program(path)}
    written |= {path.parent.name for path in folder.glob("*/__init__.py") if has_program(path)}
    assert written - set(programs.NAMES) == set(), "add these to NAMES in c4bench/workload/programs.py"
    assert set(programs.NAMES) - written == set(), "these need a `run(context: RankContext)` in a module of that name"


def test_every_collective_applies_guidance():
    """A collective that `Communicator` offers applies C4P's guidance first when a job's paths are managed."""
    offered = {name for name, value in vars(Communicator).items() if callable(value) and not name.startswith("_")}
    unguided = {name for name in offered - MANAGEMENT if name not in vars(PathManagedCommunicator)}
    assert unguided == set(), "add `NAME = _guided(Communicator.NAME)` in c4bench/workload/context.py"
