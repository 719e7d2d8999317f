"""The public names of c4bench: which they are, that the reference has them, and that its samples run."""

import ast
import re
import subprocess
import sys

import pytest
from documents import ROOT, blocks

import c4bench

# Whoever takes one away or adds one decides it here as well.
# fmt: off
PUBLIC = [
    "Aftermath", "Atlas", "C4Error", "CollectiveOptions", "Component", "Diagnosis", "DriverPlan", "Evaluated",
    "Evidence", "EvidenceFormat", "Fault", "FaultRequest", "FaultSpec", "Flow", "InconclusiveError",
    "InterfaceTarget", "Inventory", "JobSpan", "Lab", "LabJob", "Measurement", "MemberEvidence", "Observation",
    "PathAttributes", "Planner", "PortCounters", "ProcessTarget", "RankContext", "Rates", "Reading", "Record",
    "Run", "RunDirectory", "Signal", "SourceFile", "Syndrome", "UnhealthyError", "UsageError", "Window", "crossed",
    "detect", "find_process", "lab", "load_inventory", "read_fault", "read_telemetry",
]
# fmt: on
REFERENCE = (ROOT / "docs/reference/python.md").read_text()
SAMPLES = [one for one in blocks("python") if one.page.name == "python.md" and "c4bench.lab(" not in one.text]


def test_these_are_the_public_names():
    """No more and no fewer; each can be imported, and says what it is."""
    assert sorted(c4bench.__all__) == sorted(PUBLIC)
    assert set(PUBLIC) <= set(dir(c4bench))
    assert [name for name in PUBLIC if not getattr(c4bench, name).__doc__] == []
    with pytest.raises(AttributeError, match="module 'c4bench' has no attribute 'detekt'"):
        _ = c4bench.detekt


def test_the_reference_has_each_of_them():
    """Its table has a row for each name and none for another."""
    assert sorted(re.findall(r"^\| `(\w+)` \|", REFERENCE, re.MULTILINE)) == sorted(PUBLIC)


def test_type_checkers_see_what_is_imported():
    """What `__getattr__` gives is what the imports for type checkers name."""
    statements = ast.walk(ast.parse((ROOT / "c4bench/__init__.py").read_text()))
    imports = [one for one in statements if isinstance(one, ast.ImportFrom) and str(one.module).startswith("c4bench.")]
    declared = {alias.asname or alias.name: (one.module, alias.name) for one in imports for alias in one.names}
    assert declared.pop("lab") == ("c4bench.script", "lab")
    assert declared == c4bench._WHERE


def test_importing_c4bench_imports_nothing_else():
    """A program that imports c4bench pays for what it uses only."""
    count = "import sys; import c4bench; print([name for name in sys.modules if name.startswith('c4bench.')])"
    done = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_lab_needs_a_script():
    """Without a file that can run again there is no lab, and one line says so."""
    done = subprocess.run(
        [sys.executable, "-c", "import c4bench\nwith c4bench.lab(): pass"], capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1].startswith("c4bench.errors.UsageError: c4bench.lab runs its script in the lab")


@pytest.mark.parametrize("block", SAMPLES, ids=lambda block: block.text.split("import")[-1].split("\n")[0])
def test_a_sample_runs(block, tmp_path):
    """Each sample of the reference runs by itself, and prints one line."""
    done = subprocess.run([sys.executable, "-c", block.text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
