"""Two runs are compared by what they measured, not by the order in which they did."""

import json
import re
from pathlib import Path

import pytest

from c4bench.cli.main import main
from c4bench.model.measurement import Outcome
from c4bench.record import Ledger, RunDirectory
from c4bench.record.provenance import collect
from c4bench.report.headlines import plain_names

ROOT = Path(__file__).parents[3]


def a_run(folder, name, figures, endings=()):
    run = RunDirectory.create(folder, name)
    command = ["pytest", "--hosts", "softroce", "tests/scenarios"]
    run.write_provenance(
        collect(name=name, started_at="", command=command, seed=7, backend="softroce", topology="", clock="virtual")
    )
    for scenario, measurement, value, rest in figures:
        Ledger(run, scenario).measure(measurement, value, "s", **rest)
    for scenario, outcome, reason in endings:
        run.finish_scenario(scenario, outcome, reason)
        run.event(0.0, "ended", scenario=scenario, node=f"tests/scenarios/test_x.py::test_{scenario}")
    return run.path


BEFORE = [
    ("s", "c4d.alarm_s", 1.0, {"at_most": 2.0, "fault": "nic.rate"}),
    ("s", "c4d.alarm_s", 1.0, {"at_most": 2.0, "fault": "nic.down"}),
    ("s", "c4d.name_s", 4.0, {"low": 3.9, "high": 4.1}),
]
AFTER = [
    ("s", "c4d.name_s", 5.0, {"low": 4.8, "high": 5.2}),
    ("s", "c4d.alarm_s", 1.0, {"at_most": 2.0, "fault": "nic.down"}),
    ("s", "c4d.alarm_s", 2.5, {"at_most": 2.0, "fault": "nic.rate"}),
]


def test_what_became_worse_comes_first(tmp_path, capsys):
    """A missed limit is the first row, an information that moved follows, and what is the same is only counted."""
    runs = [a_run(tmp_path, "a", BEFORE), a_run(tmp_path, "b", AFTER)]
    assert main(["report", "--compare", *map(str, runs)]) == 1
    out = capsys.readouterr().out
    rows = [row for row in out.splitlines() if row.startswith("| `")]
    assert [re.findall(r"`(\S+)`", row)[0] for row in rows] == ["c4d.alarm_s", "c4d.name_s"]
    assert "nic.rate" in rows[0]
    assert "| 1 s | 2.5 s | +150.0% | pass → fail |" in rows[0]
    assert "| 4 s | 5 s | +25.0% | info |" in rows[1]
    assert "1 measurements are the same." in out


def test_a_comparison_is_json_on_demand(tmp_path, capsys):
    """Programs get the same: what became worse first, with both measurements; and the same exit code."""
    runs = [a_run(tmp_path, "a", BEFORE), a_run(tmp_path, "b", AFTER, [("x", Outcome.FAIL, "late")])]
    assert main(["report", "--compare", "--json", *map(str, runs)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["worse"], found["same"]) == (True, 1)
    assert found["scenarios"] == [{"scenario": "x", "before": "", "after": "fail"}]
    worst, moved = found["measurements"]
    assert (worst["before"]["value"], worst["after"]["value"], worst["worse"]) == (1.0, 2.5, True)
    assert (moved["before"]["name"], moved["worse"]) == ("c4d.name_s", False)


def test_a_run_is_the_same_as_itself(tmp_path, capsys):
    """Nothing differs, and the exit code is 0, also when figures are alike but for their place."""
    run = a_run(tmp_path, "a", BEFORE * 2, [("x", Outcome.FAIL, "late")])
    assert main(["report", "--compare", str(run), str(run)]) == 0
    assert "6 measurements are the same." in capsys.readouterr().out


def test_scenarios_that_ended_otherwise_are_listed(tmp_path, capsys):
    """A scenario that failed now, and one that was not there before, are rows; only the former is worse."""
    first = a_run(tmp_path, "a", [], [("x", Outcome.PASS, ""), ("y", Outcome.PASS, "")])
    second = a_run(tmp_path, "b", [], [("x", Outcome.FAIL, "late"), ("y", Outcome.PASS, ""), ("z", Outcome.SKIP, "n")])
    assert main(["report", "--compare", str(first), str(second)]) == 1
    assert "| x | pass | fail |\n| z |  | skip |" in capsys.readouterr().out
    assert main(["report", "--compare", str(second), str(first)]) == 0


def test_a_session_that_was_cut_short_is_worse(tmp_path, capsys):
    """What went wrong outside every scenario is a row, and worse than a run without it."""
    first = a_run(tmp_path, "a", [], [("x", Outcome.PASS, "")])
    second = a_run(tmp_path, "b", [], [("x", Outcome.PASS, "")])
    RunDirectory(second).note_problem("test_y.py", Outcome.FAIL, "no module")
    RunDirectory(second).begin_session()
    assert main(["report", "--compare", str(first), str(second)]) == 1
    said = capsys.readouterr().out
    assert "| test\\_y.py | pass | fail |\n| the session | pass | inconclusive |" in said
    assert main(["report", "--compare", str(second), str(first)]) == 0


@pytest.mark.parametrize("count", [1, 3])
def test_two_runs_are_compared(tmp_path, capsys, count):
    """Another number of runs is refused in one line."""
    run = a_run(tmp_path, "a", BEFORE)
    assert main(["report", "--compare", *[str(run)] * count]) == 2
    assert capsys.readouterr().err == f"c4bench: --compare needs two run directories, and got {count}\n"


def test_a_summary_says_what_failed_and_how_to_run_it_again(tmp_path):
    """The summary has the counts, the error's text, a command for the failed scenario, skips and limits."""
    endings = [("x", Outcome.FAIL, "no <agent> | on h1"), ("y", Outcome.PASS, ""), ("z", Outcome.SKIP, "no-gpu: none")]
    run = a_run(tmp_path, "a", BEFORE, endings)
    target = tmp_path / "summary.md"
    target.write_text("before\n")
    assert main(["report", str(run), "--markdown", str(target)]) == 1
    text = target.read_text()
    assert text.startswith("before\n## Failed: ")
    assert "scenarios: 1 passed, 1 failed, 1 skipped; 2 of 2 limits met" in text
    assert r"* **x** failed: no \<agent\> \| on h1" in text
    assert "`pytest --hosts softroce tests/scenarios/test_x.py::test_x --c4-seed 7`" in text
    assert "* 1 skipped: no-gpu: none" in text
    assert (
        "| `c4d.alarm_s` (time from the onset of a fault to the alarm) | s: fault nic.rate | 1 s | ≤ 2 s | pass |"
        in text
    )


def test_a_summary_that_cannot_be_written_is_refused(tmp_path, capsys):
    """A folder in place of the file is named."""
    assert main(["report", str(a_run(tmp_path, "a", BEFORE)), "--markdown", str(tmp_path)]) == 2
    assert "--markdown" in capsys.readouterr().err


def test_every_measurement_has_plain_words():
    """Each name that scenarios and drills record is in the list, in lower case and without a full stop."""
    sources = [*(ROOT / "tests/scenarios").rglob("*.py"), *(ROOT / "tests/drills").rglob("*.py")]
    recorded = {
        name for path in sources for name in re.findall(r"\bmeasure\(\s*\"([a-z0-9_]+\.[a-z0-9_]+)\"", path.read_text())
    }
    assert len(recorded) > 70
    assert recorded - plain_names().keys() == set()
    assert [words for words in plain_names().values() if words.endswith(".") or words.startswith(" ")] == []
