"""`python -m tools campaign` counts the answers of recorded campaigns, and judges the recordings again."""

import datetime
import json

import msgspec
import pytest
from campaign_fabric import leaf_spine

from c4bench.errors import UsageError
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.step import StepOp
from c4bench.record import RunDirectory
from c4bench.record.provenance import collect
from tools.__main__ import main
from tools.campaign.nights import night_seed
from tools.campaign.trial_record import NamedFinding, TrialRecord
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

RANK = Component("rank", "job:1")
LATE = Syndrome.NON_COMMUNICATION_SLOW
FOUND = NamedFinding(LATE, RANK, (), 0.9, 4.4, 4.6)


def campaign(path, *trials, seed=7):
    """A run directory with these trials."""
    path.mkdir()
    run = RunDirectory(path)
    run.save("campaign_fabric", leaf_spine())
    words = {"name": path.name, "started_at": "", "command": [], "backend": "", "topology": "", "clock": "virtual"}
    run.write_provenance(collect(**words, seed=seed, inventory_digest="", kernel="", kernel_build="", lab_mode=""))
    (path / "campaign.jsonl").write_bytes(b"".join(msgspec.json.encode(trial) + b"\n" for trial in trials))
    return run


def trial(name, *findings):
    return TrialRecord(name, "process.slow", LATE, RANK, (), {}, 4.0, 4.0, 8.0, 0.5, False, findings)


def test_answers_are_counted_by_run(tmp_path, capsys):
    """One run with one of two resolved, and all runs together."""
    campaign(tmp_path / "a", trial("a-0", FOUND), trial("a-1"))
    campaign(tmp_path / "b", trial("b-0", FOUND))
    assert main(["campaign", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    rows = [line.split("|")[1:6] for line in capsys.readouterr().out.splitlines() if line.startswith(("| a", "| b"))]
    assert [[cell.strip().partition(",")[0] for cell in row] for row in rows] == [
        ["a", "2", "1 of 2", "1 of 2", "0 of 2"],
        ["b", "1", "1 of 1", "1 of 1", "0 of 1"],
        ["all", "3", "2 of 3", "2 of 3", "0 of 3"],
    ]


def test_a_recording_is_judged_by_the_present_detector(tmp_path, capsys):
    """A trial of which nothing was named live is resolved once C4D names the slow rank of its recording."""
    run = campaign(tmp_path / "a", trial("late"))
    job = SimJob(4, (StepOp("all_reduce", 4 << 20, 0.03),), seed=1)
    slow = SimFault(SimFaultKind.COMPUTE, 1, 4.0, factor=1.8)
    run.save_telemetry("late", [window for tick in simulate(job, [slow], 8.0) for window in tick.windows])
    answers = []
    for words in ([], ["--again"]):
        assert main(["campaign", str(run.path), "--json", *words]) == 0
        answers.append(json.loads(capsys.readouterr().out)["answer"])
    assert answers == ["silent", "resolved"]


def test_answers_are_counted_by_load(tmp_path, capsys):
    """Trials of two runs whose jobs communicate as much are one row, in the order of that share."""
    busy = msgspec.structs.replace(trial("a-1"), load=0.6)
    campaign(tmp_path / "a", trial("a-0", FOUND), busy)
    campaign(tmp_path / "b", msgspec.structs.replace(trial("b-0", FOUND), load=0.6))
    assert main(["campaign", str(tmp_path / "a"), str(tmp_path / "b"), "--by", "load"]) == 0
    rows = [line.split("|")[1:4] for line in capsys.readouterr().out.splitlines()[:5]]
    found = [[cell.strip().partition(",")[0] for cell in row] for row in rows]
    assert found[0] == ["load", "trials", "resolved"]
    assert found[2:] == [["0.0", "1", "1 of 1"], ["0.6", "2", "1 of 2"], ["all", "3", "2 of 3"]]


def test_misses_are_kept_once(tmp_path, capsys):
    """A second count adds to the list what it does not have yet, and nothing that was resolved."""
    run, misses = campaign(tmp_path / "a", trial("a-0", FOUND), trial("a-1")), tmp_path / "misses.jsonl"
    for _ in range(2):
        assert main(["campaign", str(run.path), "--misses", str(misses)]) == 0
    capsys.readouterr()
    assert [json.loads(line)["trial"] for line in misses.read_text().splitlines()] == ["a-1"]


def test_nights_are_the_last_of_seeds_from_dates(tmp_path, capsys, monkeypatch):
    """Of more nights than count, one that tried nothing, and a run that may be tuned on, the newest nights count."""
    monkeypatch.setattr("tools.campaign.command._NIGHTS", 3)
    first = night_seed(datetime.date(2026, 11, 1))
    runs = [campaign(tmp_path / str(n), trial(f"n-{n}", FOUND), seed=first + n) for n in range(5)]
    runs += [campaign(tmp_path / "tuned", trial("tuned"), seed=1001), campaign(tmp_path / "none", seed=first + 5)]
    (runs[-1].path / "campaign.jsonl").unlink()
    assert main(["campaign", *(str(run.path) for run in reversed(runs)), "--nights", "--json"]) == 0
    tried = [json.loads(line)["trial"] for line in capsys.readouterr().out.splitlines()]
    assert tried == ["n-2", "n-3", "n-4"]


def test_the_seed_of_a_night_is_one_that_nothing_is_tuned_on(capsys):
    """Days have seeds of their own from 10,000 up and below 900,000, and a clock that is far off has none."""
    assert night_seed(datetime.date(2026, 11, 26)) == night_seed(datetime.date(2026, 11, 25)) + 1
    assert night_seed(datetime.date(2465, 1, 1)) < 900_000
    with pytest.raises(UsageError, match="set this machine's date"):
        night_seed(datetime.date(2466, 1, 1))
    with pytest.raises(UsageError):
        night_seed(datetime.date(20, 1, 1))
    assert main(["campaign", "--seed"]) == 0
    assert 10_000 <= int(capsys.readouterr().out) < 900_000


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda run: (run / "campaign.jsonl").unlink(), "campaign.jsonl: No such file"),
        (lambda run: (run / "campaign.jsonl").write_text('{"name": "x"}\n'), "missing required field"),
        (lambda run: (run / "campaign.jsonl").write_text("nonsense\n"), "malformed"),
        (lambda run: (run / "campaign.jsonl").write_text(""), "no trial to count"),
        (lambda run: (run / "artefacts/campaign_fabric.json").unlink(), "no artefacts/campaign_fabric.json"),
        (lambda _: None, "telemetry/a-0.jsonl: No such file"),
    ],
)
def test_what_cannot_be_counted_is_said_in_one_line(tmp_path, capsys, spoil, problem):
    """A run directory that is no campaign's, or lacks a part, ends the command with exit code 2."""
    run = campaign(tmp_path / "a", trial("a-0", FOUND))
    spoil(run.path)
    assert main(["campaign", str(run.path), "--again"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


def test_the_table_of_nights_has_their_shares(tmp_path, capsys):
    """One of two trials resolved is 0.500 with its interval; what surrounds the table stays."""
    run = campaign(tmp_path / "n", trial("n-0", FOUND), trial("n-1"), seed=739_945)
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- nights:begin -->\noutdated\n<!-- nights:end -->\nafter\n")
    assert main(["campaign", str(run.path), "--nights", "--readme", str(readme)]) == 0
    text = readme.read_text()
    assert "| >= 0.95 | 0.500 (0.013 to 0.987) |" in text
    assert text.startswith("before\n<!-- nights:begin -->")
    assert text.endswith("<!-- nights:end -->\nafter\n")
    assert "outdated" not in text
    assert main(["campaign", str(run.path), "--readme", str(readme)]) == 2
    assert "give --nights as well" in capsys.readouterr().err


def test_figures_of_idle_and_busy_jobs(tmp_path, capsys):
    """README has a line for idle and one for busy jobs, docs/figures.md one for each load; a miss is marked."""
    busy = [msgspec.structs.replace(trial("b-0", FOUND), load=0.1), msgspec.structs.replace(trial("b-1"), load=0.6)]
    run = campaign(tmp_path / "a", trial("a-0", FOUND), *busy)
    (tmp_path / "docs").mkdir()
    documents = [tmp_path / "README.md", tmp_path / "docs/figures.md"]
    for document in documents:
        document.write_text("before\n<!-- campaigns:begin -->\noutdated\n<!-- campaigns:end -->\nafter\n")
    assert main(["campaign", str(run.path), "--figures", str(documents[0])]) == 0
    few, full = ([line for line in path.read_text().splitlines() if line.startswith("| ")] for path in documents)
    assert few[1:] == [
        "| idle jobs, which communicate for 1 % of their time | 1.000 (0.025 to 1.000) | 0 of 1 | 0 of 1 | 0 of 1 |",
        "| busy jobs, 10 % to 60 % of their time | **0.500 (0.013 to 0.987)**, missed | 0 of 2 | 1 of 2 | 0 of 2 |",
    ]
    assert [line.split(" | ")[0] for line in full[1:]] == [
        "| idle",
        "| 10 % of the time",
        "| 60 % of the time",
        "| all busy",
    ]
    before = documents[0].read_text()
    idle = campaign(tmp_path / "idle", trial("i-0", FOUND))
    assert main(["campaign", str(idle.path), "--figures", str(documents[0])]) == 2
    assert "no trial to count of busy jobs" in capsys.readouterr().err
    documents[1].write_text("no markers")
    assert main(["campaign", str(run.path), "--figures", str(documents[0])]) == 2
    assert "campaigns:begin" in capsys.readouterr().err
    assert documents[0].read_text() == before
