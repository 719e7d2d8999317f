"""The drawing, the table and the dependency rules of docs/architecture.md agree with the imports of the code."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "c4bench"
DOCUMENT = (REPOSITORY / "docs/architecture.md").read_text()

# Lowest first: a package may import only from packages before it.
ORDER = (
    "errors",
    "foreign_text",
    "logs",
    "units",
    "namespaces",
    "decoding",
    "budget",
    "files",
    "resources",
    "extensions",
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
    "evidence",
    "bus",
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
    "campaign",
    "control",
    "live",
    "bench",
    "scenarios",
    "script",
    "pytest_plugin",
    "cli",
)
# All packages may import these, so the table does not list them.
BASE = ORDER[: ORDER.index("model") + 1]
ONLY_IN = {
    "pyverbs": "verbs",
    "fabric": "remote",
    "paramiko": "remote",
    "ansible_runner": "deploy",
    "highspy": "c4p",
    "nats": "bus",
}
PURE = ("cost", "attribution", "c4d", "c4p", "steer", "sim")
IMPURE = {"os", "socket", "subprocess", "asyncio", "threading", "time", "pathlib", "random"}


def imports():
    """(package, imported top-level module, imported package of ours or "", file) of every import statement."""
    statements = []
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
                statements.append((parts[0], top, rest.partition(".")[0] if top == "c4bench" else "", "/".join(parts)))
    return statements


IMPORTS = imports()
EDGES = {(own, other) for own, _, other, _ in IMPORTS if own in ORDER and other in ORDER and own != other}


def modules():
    """Every module of c4bench with the modules that it imports, also inside functions."""
    files = {".".join(path.with_suffix("").parts): path for path in PACKAGE.relative_to(REPOSITORY).rglob("*.py")}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    imported = {}
    for module, path in files.items():
        names = set()
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = {f"{node.module}.{alias.name}" for alias in node.names} & files.keys()
                names |= whole or {node.module}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        imported[module] = names & files.keys()
    imported["c4bench"] = set()  # its names are imported when they are used
    return imported


def table():
    """The table's packages in order, each with its last column."""
    rows = [line.split("|") for line in DOCUMENT.splitlines() if line.startswith("| `")]
    packages = [(re.findall(r"`(\w+)(?:/|\.py)`", row[1]), re.findall(r"`(\w+)`", row[3])) for row in rows]
    return {names[0]: tuple(imported) for names, imported in packages if names and names[0] in ORDER}


def drawing():
    """The drawing's groups by package, and its arrows between groups."""
    block = DOCUMENT.partition("```mermaid")[2].partition("```")[0]
    groups = {name: name for name in re.findall(r"^  (?!end$)(\w+)(?:\[.*\])?$", block, re.MULTILINE)}
    for name, nodes in re.findall(r"subgraph (\w+).*\n\s+(.*)\n", block):
        groups |= dict.fromkeys(nodes.split(" & "), name)
    arrows = set()
    for line in block.splitlines():
        steps = [step.strip().split(" & ") for step in line.split("-->")]
        arrows |= {(a, b) for here, there in pairwise(steps) for a in here for b in there}
    return groups, arrows


def reachable(start, arrows):
    """The groups that arrows lead to from a group, directly or over others."""
    groups = {start}
    while more := {b for a, b in arrows if a in groups} - groups:
        groups |= more
    return groups


def test_imports_point_down():
    """No package imports from a package above it."""
    rank = {package: index for index, package in enumerate(ORDER)}
    upward = {
        f"{file} imports {other}"
        for own, _, other, file in IMPORTS
        if other in rank and own in rank and rank[other] > rank[own]
    }
    assert upward == set()


def in_cycles(left):
    """Of modules with their imports, those that are in a cycle, or between two cycles."""
    imported = set().union(*left.values())
    outer = {module for module, names in left.items() if module not in imported or not names & left.keys()}
    return in_cycles({module: names for module, names in left.items() if module not in outer}) if outer else set(left)


def test_no_import_cycle():
    """No modules import each other in a cycle, not even inside functions."""
    assert in_cycles(modules()) == set()


def test_an_import_cycle_is_noticed():
    """Modules in a cycle are named; those that import them, or that they import, are not."""
    assert in_cycles({"top": {"a"}, "a": {"b"}, "b": {"c", "bottom"}, "c": {"a"}, "bottom": set()}) == {"a", "b", "c"}


def test_every_package_has_its_place():
    """A new package must be put into the order."""
    packages = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert packages - {"__init__"} == set(ORDER)


def test_the_table_lists_every_import():
    """The table has every package in order, and its last column has exactly the packages that it imports."""
    real = {own: tuple(other for other in ORDER if (own, other) in EDGES and other not in BASE) for own in ORDER}
    assert list(table()) == list(ORDER)
    assert table() == real


def test_the_drawing_has_every_import():
    """Every package is drawn, every import follows arrows, and every arrow stands for an import."""
    groups, arrows = drawing()
    assert set(groups) == set(ORDER)
    drawn = {(groups[own], groups[other]) for own, other in EDGES if groups[own] != groups[other]}
    assert {(a, b) for a, b in drawn if b not in reachable(a, arrows)} == set()
    assert arrows - drawn == set()


def test_parts_of_the_master_do_not_import_it():
    """Only what starts a master imports it; its parts are given what they need."""
    importers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "c4bench.control.master import" in path.read_text()
    }
    assert importers == {"control/cluster.py", "cli/master.py", "cli/on_bus.py", "bench/intake_master.py"}


@pytest.mark.parametrize(("library", "package"), ONLY_IN.items())
def test_one_importer(library, package):
    """A library with a price is imported by one package only."""
    assert {own for own, top, _, _ in IMPORTS if top == library} <= {package}


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_do_no_io(package):
    """A pure package imports no module that reads a clock or does input or output."""
    assert {f"{file} imports {top}" for own, top, _, file in IMPORTS if own == package and top in IMPURE} == set()
