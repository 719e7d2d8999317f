"""Verdicts on files of real jobs on NCCL; the script that made them wrote down the fault and how each rank ended."""

import json

import pytest

from c4bench.cli.main import main
from c4bench.evidence.collect import collect, one_job, parse
from c4bench.evidence.judging.judge import judge
from c4bench.model.evidence import State

VERSIONS = ("2.28.9", "2.30.7")
RAS = ("ras_0s.json", "ras_0s.txt", "ras_0s_brief.txt", "ras_3s.json", "ras_3s.txt", "ras_30s.json", "ras_30s.txt",
       "ras_75s.json", "ras_75s.txt")  # fmt: skip
# A rank that leaves a receive out of its batch, and calls what comes after it, looks like one that comes to it later.
CAUSES = {"exchange_missing": "collective_order_mismatch", "no_file": "not_entered"}
# Dumps that show nothing: no communicator was opened; no rank is last in most operations, of which half wait for none.
SILENT_DUMPS = {"healthy", "hang_first_lazy", "inspector_verbose"}
# Of two that call in another order, or of two that left no dump, any may be at fault.
AMONG = {"exchange_missing", "order", "killed_ras"}
# RAS counts no sends and receives, and knows no order; in `kernel` all have called; the last job had ended.
SILENT_RAS = {"healthy", "exchange_missing", "order", "kernel", "inspector_verbose"}
# One rank has called a collective more than the others, or the others one less: counts do not tell which.
AMONG_RAS = {"type", "size", "size_larger", "dtype"}


def cases(nccl_files, version):
    return sorted(path for path in (nccl_files / f"nccl-{version}").iterdir() if path.is_dir())


def truth_of(folder):
    return json.loads((folder / "truth.json").read_text())


def dumps(folder, form):
    return [path for path in sorted(folder.glob("rank_*")) if (path.suffix == ".json") == (form == "json")]


def ended(folder):
    """The ranks that are at fault, and those that ended by it."""
    observed = json.loads((folder / "observed.json").read_text())
    fell = {int(rank) for rank, how in observed.items() if how["state"].startswith("exit")}
    return fell.union(truth_of(folder)["culprits"])


def accused(folder, verdicts):
    """The ranks that are named alone, once it is checked that one at fault is named and none that is healthy alone."""
    assert set(truth_of(folder)["culprits"]) <= {rank for verdict in verdicts for rank in verdict.suspects}
    alone = {verdict.culprits[0] for verdict in verdicts if len(verdict.culprits) == 1}
    assert alone <= ended(folder)
    return alone


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("version", VERSIONS)
def test_dumps_name_the_right_rank(nccl_files, version, form):
    """In every fault that dumps show, the verdict names the rank at fault and what it did, or says among whom."""
    for folder in cases(nccl_files, version):
        files, truth = dumps(folder, form), truth_of(folder)
        if not files:
            assert truth["dump"] == "watchdog"  # which writes pickles only
            continue
        report = judge(collect(files))
        assert (report.problems, report.ranks) == ((), truth["ranks"])
        if folder.name in SILENT_DUMPS:
            assert report.verdicts == ()
            assert report.state is (State.UNTOLD if folder.name == "hang_first_lazy" else State.HEALTHY)
            continue
        (verdict,) = report.verdicts
        wrong = truth["wrong"]
        assert verdict.diagnosis.cause == CAUSES.get(folder.name, CAUSES.get(wrong, wrong)), folder.name
        assert accused(folder, report.verdicts) == (set() if folder.name in AMONG else set(truth["culprits"]))
        left = {int(path.stem.removeprefix("rank_")) for path in files}
        assert set(verdict.no_file) == set(range(truth["ranks"])) - left


@pytest.mark.parametrize("name", RAS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_report_of_ras_names_the_right_rank(nccl_files, version, name):
    """From each report, as JSON or text, the rank at fault is named or is among the suspects, no healthy one alone."""
    told = 0
    for folder in cases(nccl_files, version):
        if not (folder / name).exists():
            continue
        reading = collect([folder / name])
        assert reading.problems == ()
        assert [source.version for source in reading.sources] == [version]
        report = judge(reading)
        verdicts = report.verdicts
        if folder.name in SILENT_RAS:
            assert (verdicts, report.state) == ((), State.UNTOLD)
            continue
        told += 1
        alone = accused(folder, verdicts)
        at_once = folder.name == "killed_ras" and name.startswith(("ras_0s", "ras_3"))
        expected = set() if folder.name in AMONG_RAS or at_once else set(truth_of(folder)["culprits"])
        assert alone >= expected, folder.name
        assert expected or not alone, folder.name
    assert told


def test_a_rank_that_is_cut_off_for_a_moment_is_not_named_alone(nccl_files):
    """Just after a rank was killed, RAS misses a healthy one too; later it does not, and then says who is dead."""
    folder = nccl_files / "nccl-2.30.7" / "killed_ras"
    said = [[verdict.culprits for verdict in judge(collect([folder / f"ras_{after}s.json"])).verdicts]
            for after in (0, 30, 75)]  # fmt: skip
    assert said == [[(1, 2, 3)], [(2, 3)], [(2,), (3,)]]


def test_the_newest_of_several_reports_counts(nccl_files):
    """Of reports of one job, the one with the latest time is used, and the others are no problem."""
    folder = nccl_files / "nccl-2.30.7" / "stopped_ras"
    report = judge(collect(sorted(folder.glob("ras_*s.json"), reverse=True)))
    assert report.problems == ()
    assert [(verdict.diagnosis.cause, verdict.culprits) for verdict in report.verdicts] == [("process_ended", (1,))]


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("case", ["killed_ras", "stopped_ras"])
def test_events_of_ras_name_the_dead(nccl_files, case, form):
    """A record of RAS's monitor mode names the processes that died, and beside a report their ranks."""
    folder = nccl_files / "nccl-2.30.7" / case
    events = collect([folder / f"ras_monitor_{form}.txt"])
    assert events.problems == ()
    assert {member.status for member in events.members} == {"dead"}
    assert len(events.members) == len(ended(folder))
    report = parse((folder / "ras_0s.json").read_bytes(), folder / "ras_0s.json")
    verdicts = judge(one_job([report, events], [])).verdicts
    dead = [verdict.culprits for verdict in verdicts if verdict.diagnosis.cause == "process_ended"]
    assert dead == [(rank,) for rank in sorted(ended(folder))]


def test_inspector_logs_name_the_slow_rank(nccl_files):
    """From logs of NCCL Inspector, the rank whose GPU computed for longer before each all-reduce is named."""
    report = judge(collect([nccl_files / "nccl-2.30.7" / "inspector_verbose" / "inspector"]))
    assert (report.problems, report.ranks) == ((), 4)
    assert [(verdict.diagnosis.cause, verdict.culprits) for verdict in report.verdicts] == [("compute_slow", (1,))]


@pytest.mark.parametrize("kept", range(1, 17))
def test_the_end_of_a_batch_is_no_collective(nccl_files, kept):
    """However many of the oldest entries are lost, what ends a batch of sends is not compared as a collective."""
    folder = nccl_files / "nccl-2.28.9" / "exchange_absent"
    readings = []
    for path in dumps(folder, "json"):
        dump = json.loads(path.read_text())
        dump["entries"] = dump["entries"][-kept:]
        readings.append(parse(json.dumps(dump).encode(), path))
    for verdict in judge(one_job(readings, [])).verdicts:
        assert verdict.diagnosis.cause != "collective_type_mismatch"
        assert 2 in verdict.culprits


def test_a_text_that_tells_of_a_small_communicator_only_does_not_number_the_job(nccl_files):
    """Members of a communicator that is smaller than another one are not taken for the ranks of the job."""
    text = (nccl_files / "nccl-2.28.9" / "groups" / "ras_0s.txt").read_text()
    first, last = text.index("#0-0"), text.index("#1-1")
    path = nccl_files / "ras.txt"
    assert judge(parse(text.encode(), path)).verdicts[0].culprits == (2,)
    report = judge(parse((text[:first] + text[last:]).encode(), path))
    assert any("numbered in the order of hosts" in line for line in report.cannot_tell)


def test_ranks_that_hang_before_any_call_leave_no_problem(nccl_files, capsys):
    """Dumps of ranks that wait for a communicator to open are all alike and empty: nothing can be told, exit code 4."""
    assert main(["detect", *map(str, dumps(nccl_files / "nccl-2.28.9" / "hang_first_lazy", "pickle"))]) == 4
    said, err = capsys.readouterr()
    assert "of which no file tells anything (4 of 4)" in said
    assert "nothing could be told: no file tells of what any rank has called" in said
    assert (err, "healthy" in said) == ("", False)
