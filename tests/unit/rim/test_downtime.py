"""`c4bench downtime --measured RUN_DIR` uses the stages that a run has measured."""

import json

import pytest

from c4bench.cli.main import main
from c4bench.model.diagnosis import Syndrome
from c4bench.record import Ledger, RunDirectory
from c4bench.record.artefacts import Faults, FaultTimeline

RATES = """
process.kill: {per_month: 30, before: {detection_s: 1800, diagnosis_isolation_s: 7200, re_initialisation_s: 300,
               checkpoint_interval_s: 3600}, after: {checkpoint_interval_s: 600, re_initialisation_s: 60}}
"""


def timeline(name, observed_s, alarmed_s, isolated_s, resumed_s):
    return FaultTimeline(
        name,
        "rank j:1",
        Syndrome.NON_COMMUNICATION_HANG,
        0.0,
        observed_s,
        alarmed_s,
        alarmed_s,
        isolated_s,
        resumed_s,
    )


@pytest.fixture
def run(tmp_path):
    """A run in which two faults of a kind reached all stages, and one did not."""
    run = RunDirectory.create(tmp_path, "run")
    kills = (timeline("process.kill", 1.0, 2.0, 3.0, 9.0), timeline("process.kill", 1.0, 4.0, 5.0, 10.0))
    Ledger(run, "a").save("faults", Faults(kills))
    Ledger(run, "b").save("faults", Faults((timeline("process.kill", 1.0, 50.0, None, None),)))
    return run.path


def table(tmp_path, capsys, *more):
    path = tmp_path / "faults.yml"
    path.write_text(RATES)
    code = main(["downtime", str(path), "--json", *more])
    return code, capsys.readouterr()


def test_measured_stages_fill_in_what_is_not_given(run, tmp_path, capsys):
    """Measured stages are means over faults that reached all stages, and numbers in the file take precedence."""
    code, said = table(tmp_path, capsys, f"--measured={run}")
    assert code == 0
    rows = {row["name"]: row["after"] * 30 * 86400 / 30 for row in json.loads(said.out)}
    assert rows["post_checkpoint"] == pytest.approx(300)
    assert rows["detection"] == pytest.approx(2.0)
    assert rows["diagnosis_isolation"] == pytest.approx(1.0)
    assert rows["re_initialisation"] == pytest.approx(60)


def test_without_a_run_what_is_missing_is_said(tmp_path, capsys):
    """A bad file is reported in one line with file and field."""
    code, said = table(tmp_path, capsys)
    assert code == 2
    assert said.err.count("\n") == 1
    assert "detection_s" in said.err
