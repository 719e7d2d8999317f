"""What the author of a new path control has still to do."""

import ast
from pathlib import Path

from c4bench.verbs import path_control, path_controls

FOLDER = Path(path_control.__file__).parent
# These are not ways to choose a path: the result where there is no such way, and the interface itself.
NO_CONTROLS = {"NoPathControl", "PathControl"}


def controls():
    """The classes of `c4bench.verbs` with a method `obstacle(device)`, by name, and where they are."""
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(getattr(part, "name", "") == "obstacle" for part in node.body):
                yield node.name, path


def test_every_path_control_is_tried():
    """A class that says why a device does not support it is one of those that are tried, in their order."""
    written = {name: path for name, path in controls() if name not in NO_CONTROLS}
    registered = {type(control).__name__ for control in path_controls.PATH_CONTROLS.own.values()}
    missing = {name: path.name for name, path in written.items() if name not in registered}
    assert missing == {}, "add these to _OWN in c4bench/verbs/path_controls.py"
    assert registered <= written.keys()


def test_every_path_control_is_a_whole_one():
    """A registered path control has every method of the interface."""
    interface = {name for name in vars(path_control.PathControl) if not name.startswith("_")}
    for control in path_controls.PATH_CONTROLS.own.values():
        missing = {name for name in interface if not hasattr(control, name)}
        assert missing == set(), f"{type(control).__name__} lacks these"
