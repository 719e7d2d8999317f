"""The drawing, the table and the dependency rules of docs/architecture.md agree with the imports of the code."""

import ast
import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

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
    "switches",
    "inventory",
    "verbs",
    "wire",
    "record",
    "evidence",
    "remote",
    "collective",
    "workload",
    "attach",
    "agent",
    "deploy",
    "inject",
    "doctor",
    "reserve",
    "lab",
    "exhaust",
    "report",
    "control",
    "bus",
    "live",
    "bench",
    "scenarios",
    "script",
    "pytest_plugin",
    "cli",
)
# Packages and modules of the master, lowest first; other modules at the top of `control` may import all of these.
CONTROL = ("state", "agents", "jobs", "paths", "detection", "steering", "pages")
# All packages may import these, so the table does not list them.
BASE = ORDER[: ORDER.index("model") + 1]
ONLY_IN = {
    "pyverbs": "verbs",
    "fabric": "remote",
    "paramiko": "remote",
    "highspy": "c4p",
}


class Part(NamedTuple):
    """What few need: its modules (a package stands for all of its own), its libraries, and what loads it.

    Each of `seams` loads it only when a user asks for it: a module of the core inside a function, a command's module
    with its command.
    """

    modules: tuple[str, ...]
    libraries: tuple[str, ...]
    seams: tuple[str, ...]


PARTS = {
    "archive": Part(("record.archive_tables",), ("pyarrow",), ("record.archive",)),
    "bus": Part(("bus",), ("nats",), ("cli.master", "cli.detector")),
    "completion": Part((), ("shtab",), ("cli.completion",)),
    "live": Part(("live",), (), ("cli.page", "pytest_plugin.fixtures")),
    "metrics": Part(("control.pages.metrics",), ("prometheus_client",), ("control.master",)),
    "models": Part(
        ("workload.models", "workload.diloco", "workload.learning"), ("autograd", "threadpoolctl", "torch"), ()
    ),
    "bfloat16": Part((), ("ml_dtypes",), ("workload.collectives", "workload.diloco.training")),
    "playbooks": Part((), ("ansible_runner",), ("deploy.playbooks",)),
}
PURE = ("cost", "attribution", "c4d", "c4p", "steer", "switches")
IMPURE = {"os", "socket", "subprocess", "asyncio", "threading", "time", "pathlib", "random"}


@cache
def import_statements(path):
    """(statement, inside, typing) of every import of a file: `inside` a function, and for type checkers only."""
    found, left = [], [(ast.parse(path.read_text()), False, False)]
    while left:
        node, inside, typing = left.pop()
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        typing = typing or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, inside, typing))
        left += [(child, inside, typing) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
    return found


def imports():
    """(package, imported top-level module, imported package of ours or "", file) of every import statement."""
    statements = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        for node, _, _ in import_statements(path):
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


def names_of(node):
    """The modules that an import statement may mean, with the names that it takes from them."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    module = node.module or ""
    return {module} | {f"{module}.{alias.name}" for alias in node.names}


def statements(path):
    """(names, inside) of every import; `inside` a function it runs later than its module, and for types never."""
    return [(names_of(node), inside) for node, inside, typing in import_statements(path) if not typing]


def belongs(name, wholes):
    """Whether a module is one of these, or in one of these."""
    return any(name == whole or name.startswith(f"{whole}.") for whole in wholes)


@cache
def imported_by_module():
    """(names, inside) of the imports of every module, by its name without `c4bench.`."""
    paths = {path: ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): statements(path) for path, name in paths.items()}


def importers(part, *, inside):
    """The modules outside a part that import it, also `inside` functions."""
    wanted = (*part.libraries, *(f"c4bench.{module}" for module in part.modules))
    found = set()
    for own, imported in imported_by_module().items():
        names = {name for some, later in imported if inside or not later for name in some}
        if not belongs(own, part.modules) and any(belongs(name, wanted) for name in names):
            found.add(own)
    return found


EDGES = {(own, other) for own, _, other, _ in IMPORTS if own in ORDER and other in ORDER and own != other}


@cache
def modules():
    """Every module of c4bench with the modules that it imports, also inside functions."""
    files = {".".join(path.with_suffix("").parts): path for path in PACKAGE.relative_to(REPOSITORY).rglob("*.py")}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    imported = {}
    for module, path in files.items():
        names = set()
        for node, _, _ in import_statements(REPOSITORY / path):
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


def test_the_masters_packages_import_down():
    """Each package of the master imports only from those before it, and nothing of the modules that compose them."""
    parts = {path.stem for path in (PACKAGE / "control").iterdir() if (path / "__init__.py").exists()}
    assert parts | {name for name in CONTROL if (PACKAGE / f"control/{name}.py").exists()} == set(CONTROL)
    upward = set()
    for module, names in modules().items():
        package = module.split(".")[2] if module.startswith("c4bench.control.") else ""
        if package in CONTROL:
            parts = {name.split(".")[2] for name in names if name.startswith("c4bench.control.")}
            upward |= {f"{module} imports {other}" for other in parts - {*CONTROL[: CONTROL.index(package) + 1]}}
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
    assert importers == {"control/cluster.py", "cli/master.py"}


@pytest.mark.parametrize(("library", "package"), ONLY_IN.items())
def test_one_importer(library, package):
    """A library with a price is imported by one package only."""
    assert {own for own, top, _, _ in IMPORTS if top == library} <= {package}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_few_need_is_loaded_by_its_seams_only(name):
    """No other module imports it, and of the seams only a command's own module does so when it is imported itself."""
    part = PARTS[name]
    assert importers(part, inside=True) == set(part.seams), "see PARTS; import what is common from elsewhere"
    assert {module for module in importers(part, inside=False) if not module.startswith("cli.")} == set()


def test_the_core_is_imported_without_the_parts():
    """With no library of any part, and no module of theirs, all others are imported; commands have theirs loaded."""
    pytest.importorskip("pyverbs", reason="pyverbs is not installed")
    libraries = [library for part in PARTS.values() for library in part.libraries]
    parts = [module for part in PARTS.values() for module in part.modules]
    absent = [*libraries, *(f"c4bench.{module}" for module in parts)]
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({absent})); "
        "[importlib.import_module(name) for name in sys.argv[1:]]"
    )
    names = [name for name in modules() if not belongs(name.removeprefix("c4bench."), (*parts, "scenarios", "cli"))]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_product_does_not_import_the_tools():
    """Neither the package nor a scenario that is in the wheel needs what makes and grades the project."""
    shipped = [path for path in (REPOSITORY / "tests/scenarios").rglob("*.py") if "grading" not in path.parts]
    paths = [*PACKAGE.rglob("*.py"), *shipped]
    assert {
        path.relative_to(REPOSITORY).as_posix()
        for path in paths
        for names, _ in statements(path)
        if any(belongs(name, ("tools",)) for name in names)
    } == set()


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_do_no_io(package):
    """A pure package imports no module that reads a clock or does input or output."""
    assert {f"{file} imports {top}" for own, top, _, file in IMPORTS if own == package and top in IMPURE} == set()
