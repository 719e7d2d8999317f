"""Inputs as people have them, each with the right answer: nobody is named, and no command printed, without a reason."""

import json
from pathlib import Path

import pytest
from case_truths import ANSWERS, CASES, NOBODY, TRUTHS

from c4bench.cli.main import main
from c4bench.evidence.fields import rank_in
from c4bench.evidence.formats import FORMATS
from c4bench.model.advice import LEAST_CONFIDENCE


@pytest.fixture(params=TRUTHS, ids=[truth.case for truth in TRUTHS])
def truth(request):
    return request.param


def detect(capsys, *options):
    """The exit code, and what is printed."""
    code = main(["detect", *map(str, options)])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("row", [*TRUTHS, *ANSWERS], ids=[row.case for row in [*TRUTHS, *ANSWERS]])
def test_the_answer_is_right(row):
    """The answer names who is to blame and nobody else, in the job's own numbers, and says what is known, no more."""
    assert list(row.faults(CASES)) == []


@pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
def test_a_command_is_printed_for_who_is_to_blame_only(truth, capsys, scheduler):
    """A command needs a finding that is alone and above the bar; everywhere else the reason says why there is none."""
    _, printed = detect(capsys, "--json", CASES / truth.case)
    sure = [one for one in json.loads(printed)["verdicts"] if one["drain"]]
    for one in sure:
        assert one["diagnosis"]["confidence"] >= LEAST_CONFIDENCE
        assert (one["diagnosis"]["alternatives"], one["unadvised"]) == ([], "")
        assert set(one["drain"]) <= set(truth.blamed)
    _, said = detect(capsys, "--reasons", scheduler, CASES / truth.case)
    commands = [line for line in said.splitlines() if not line.startswith("#")]
    assert len(commands) == sum(len(one["drain"]) for one in sure)
    assert len(said.splitlines()) >= len(truth.named)
    for line in said.splitlines():
        assert not line.startswith("#") or "no command, as " in line


def test_who_is_ahead_is_not_to_blame(capsys):
    """Ranks that are ahead wait; neither they nor their host are named as to blame, also where there are a few."""
    for case in ("01a-ras-two-ahead/ras.txt", "01b-ras-five-ahead/ras.txt"):
        _, said = detect(capsys, CASES / case)
        assert [line for line in said.splitlines() if "to blame: ranks" in line] == []
        assert NOBODY in said


def test_two_reports_apart_tell_a_rank_that_hangs_from_one_that_is_late(tmp_path, capsys):
    """A rank that has called nothing for ten seconds is named surely, with a command; one that has, is not."""

    def report(name, at_s, *counts):
        ranks = [{"rank": rank, "host": f"n{rank}", "pid": 5, "collective_counts": {"AllReduce": count}}
                 for rank, count in enumerate(counts)]  # fmt: skip
        comm = {"hash": "0xa", "size": len(counts), "ranks": ranks}
        document = {"nccl_version": "2.30.1", "timestamp": f"2026-01-01 10:00:{at_s:02}", "communicators": [comm]}
        (tmp_path / name).write_text(json.dumps(document))
        return tmp_path / name

    first, late, stuck = report("a", 0, 9, 8, 9), report("b", 12, 30, 29, 30), report("c", 12, 9, 8, 9)
    assert detect(capsys, "--reasons", "slurm", first)[1].startswith("#")
    assert detect(capsys, "--reasons", "slurm", first, late)[1].startswith("#")
    assert detect(capsys, "--reasons", "slurm", first, stuck)[1].startswith("scontrol update nodename=n1 ")


@pytest.mark.parametrize("name", ["ALL", "n[1-99]", "a,b", "-h", "n1 state=drain", "$(reboot)"])
def test_a_name_that_a_scheduler_takes_for_several_hosts_gets_no_command(tmp_path, capsys, name):
    """A file cannot have all nodes drained by what it calls a host."""
    ranks = [{"rank": rank, "host": f"n{rank}", "pid": 5, "collective_counts": {"AllReduce": 5}} for rank in range(3)]
    gone = [{"rank": 3, "host": name, "pid": 5, "status": {"considered_dead": True}}]
    comm = {"hash": "0xa", "size": 4, "ranks": ranks, "missing_ranks": gone}
    path = tmp_path / "ras.json"
    path.write_text(json.dumps({"nccl_version": "2.30.1", "communicators": [comm]}))
    lines = detect(capsys, "--reasons", "slurm", path)[1].splitlines()
    assert lines
    assert all(line.startswith("# ") for line in lines)


def test_nothing_told_is_not_healthy(tmp_path, capsys):
    """A report in which all have called alike, and a trace of nothing, are no all-clear: other words, exit code 4."""
    text = (CASES / "04a-ras-ok-then-watchdog/ras_then_log.txt").read_text()
    (tmp_path / "ras.txt").write_text(text[: text.index("[rank23]")])
    (tmp_path / "rank_0.json").write_text('{"traceEvents": [], "distributedInfo": {"rank": 0, "world_size": 2}}')
    for name in ("ras.txt", "rank_0.json"):
        code, said = detect(capsys, tmp_path / name)
        assert code == 4
        assert "nothing could be told: " in said
        assert "healthy" not in said
        _, printed = detect(capsys, "--json", tmp_path / name)
        report = json.loads(printed)
        assert (report["state"], bool(report["untold_why"])) == ("untold", True)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("rank3.pt.trace.json", 3),
        ("job7_rank_3_copy2.json", 3),
        ("dump_5", 5),
        ("gpu-c03_19.1752218533420119846.pt.trace.json", -1),
        ("worker_4711.1752218533420119846.pt.trace.json", -1),
        ("gpu-b01-pid912.log", -1),
        ("trace-a.json", -1),
        ("job5", 5),
        ("step_500.json", -1),
        ("llama70b_trace.json", -1),
        ("h100.json", -1),
    ],
)
def test_a_process_id_in_a_name_is_no_rank(name, rank):
    """The rank of a file is what its name calls so; of a name with a process id, or two numbers, none is known."""
    assert rank_in(f"/some/folder9/{name}") == rank


def test_the_highest_rank_does_not_state_the_size(tmp_path, capsys):
    """Dumps that do not say how many ranks there are give a least size, and no all-clear of what may be missing."""
    entry = {"pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1, "state": "completed",
             "profiling_name": "nccl:all_reduce", "record_id": 0}  # fmt: skip
    for rank in (0, 2):
        dump = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": [entry | {"record_id": rank}]}
        (tmp_path / f"rank_{rank}").write_text(json.dumps(dump))
    code, said = detect(capsys, tmp_path)
    assert (code, said.splitlines()[0].partition(";")[0]) == (4, "3 ranks or more")
    assert "no file states it, but that it has 3 ranks or more; --ranks N does" in said


def test_every_format_is_documented():
    """The reference has a row for each format that a file may be of."""
    page = (Path(__file__).parents[3] / "docs/reference/evidence-formats.md").read_text()
    assert len(FORMATS) > 10
    assert [name for name in FORMATS if f"\n| {name} |" not in page] == []


def test_only_recordings_of_ours_go_to_their_reader(tmp_path, capsys):
    """A file of no known format is said to be that, and a recording among other files is said to be judged alone."""
    stranger, ours = tmp_path / "a.json", tmp_path / "b.jsonl"
    stranger.write_text('{"apiVersion": "v1", "items": [1, 2]}\n{"torn": ')
    ours.write_text('{"format":7,"host":"h0","sequence":1,"start_s":0.0,"end_s":0.1}\n')
    assert main(["detect", str(stranger)]) == 2
    assert "it is of no known format" in capsys.readouterr().err
    assert main(["detect", str(tmp_path)]) == 2
    assert "b.jsonl: it is a recording of c4bench's telemetry, which is judged alone" in capsys.readouterr().err


def test_many_unknown_files_are_one_line(tmp_path, capsys):
    """Files that are refused for the same reason are counted, and the first few named."""
    for number in range(40):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number, 1, 2]))
    assert main(["detect", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "40 files: it is of no known format" in line
    assert "and 37 more" in line
