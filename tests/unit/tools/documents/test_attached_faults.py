"""The table of faults under programs of others, from the runs that tried them."""

import math

import pytest

from c4bench.model.measurement import Clock
from c4bench.record import Ledger, begin
from tools.__main__ import main
from tools.documents.attached_faults import NAME
from tools.documents.generated import markers

ABOVE, BELOW = markers(NAME)


@pytest.fixture
def document(tmp_path):
    """A document with the table's markers, and words around them."""
    path = tmp_path / "attach.md"
    path.write_text(f"above\n\n{ABOVE}\n{BELOW}\n\nbelow\n")
    return path


def run_of(folder, *trials):
    """A run with a trial of each program and fault: whether it was named, and when the alarm came."""
    run = begin(folder, "main", command=("pytest",), seed=1, backend="softroce", topology="clos-2x4", clock="virtual")
    ledger = Ledger(run, "a_fault_is_named")
    for program, fault, right, alarm_s in trials:
        labels = {"program": program, "fault": fault}
        ledger.measure("attach.correct_fraction", right, "", equals=1, clock=Clock.NONE, **labels)
        ledger.measure("attach.alarm_s", alarm_s, "s", at_most=3.0, **labels)
    return str(folder)


def test_the_table_has_all_trials_of_all_runs(document, tmp_path):
    """By fault and program: how many were right, and the latest alarm if all had one; beneath, the share."""
    first = run_of(tmp_path / "1", ("mpi", "loss", 1.0, 0.5), ("perftest", "loss", 1.0, 0.25))
    second = run_of(tmp_path / "2", ("mpi", "loss", 1.0, 1.25), ("mpi", "nic-down", 0.0, math.inf))
    assert main(["attached", str(document), first, second]) == 0
    lines = document.read_text().splitlines()
    assert lines[0] == "above"
    assert lines[-1] == "below"
    assert "| fault | mpi | perftest | limit |" in lines
    assert "| loss | 2 of 2, 1.25 s | 1 of 1, 0.25 s | <= 3 s |" in lines
    assert "| nic-down | 0 of 1, not all with an alarm |  | <= 3 s |" in lines
    (share,) = [line for line in lines if line.startswith("| all faults |")]
    assert "2 of 3: 0.67 (0.09 to 0.99)" in share  # 0.0943 to 0.9916: any table of Clopper and Pearson's intervals


def test_runs_without_a_trial_change_nothing(document, tmp_path, capsys):
    """A document stays as it is, and one line says what is missing."""
    before = document.read_text()
    assert main(["attached", str(document), run_of(tmp_path / "1")]) == 2
    assert "attach.correct_fraction" in capsys.readouterr().err
    assert document.read_text() == before
