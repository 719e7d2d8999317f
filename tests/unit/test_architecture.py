"""The dependency rule of docs/architecture.md, held against the code."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "c4bench"

# Lowest first: a room may import only from rooms before it.
ORDER = (
    "errors",
    "logs",
    "units",
    "namespaces",
    "resources",
    "chance",
    "model",
    "cost",
    "attribution",
    "c4d",
    "c4p",
    "steer",
    "sim",
    "inventory",
    "verbs",
    "wire",
    "record",
    "remote",
    "collective",
    "workload",
    "agent",
    "deploy",
    "inject",
    "doctor",
    "reserve",
    "lab",
    "report",
    "control",
    "bench",
    "pytest_plugin",
    "cli",
)
ONLY_IN = {"pyverbs": "verbs", "fabric": "remote", "paramiko": "remote", "ansible_runner": "deploy", "highspy": "c4p"}
PURE = ("cost", "attribution", "c4d", "c4p", "steer", "sim")
IMPURE = {"os", "socket", "subprocess", "asyncio", "threading", "time", "pathlib", "random"}


def imports():
    """(room, imported top-level module, imported room of ours or empty, file) for every import of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module] if node.module != "c4bench" else [f"c4bench.{a.name}" for a in node.names]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            for module in modules:
                top, _, rest = module.partition(".")
                found.append((parts[0], top, rest.partition(".")[0] if top == "c4bench" else "", "/".join(parts)))
    return found


IMPORTS = imports()


def test_arrows_point_down():
    """No room imports from a room above it."""
    rank = {room: index for index, room in enumerate(ORDER)}
    upward = {
        f"{file} imports {room}"
        for own, _, room, file in IMPORTS
        if room in rank and own in rank and rank[room] > rank[own]
    }
    assert upward == set()


def test_every_room_has_its_place():
    """A new room has to be put into the order before it can be built."""
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__"} == set(ORDER)


@pytest.mark.parametrize(("package", "room"), ONLY_IN.items())
def test_one_importer(package, room):
    """A library with a price is imported by one room only."""
    assert {own for own, top, _, _ in IMPORTS if top == package} <= {room}


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_do_no_io(room):
    """A pure room imports no module that reads a clock or does input or output."""
    assert {f"{file} imports {top}" for own, top, _, file in IMPORTS if own == room and top in IMPURE} == set()
