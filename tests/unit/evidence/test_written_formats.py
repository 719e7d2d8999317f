"""Recordings of a simulated job, written as other tools would write them, and judged from these files again."""

import json

import pytest

from c4bench.cli.main import main
from c4bench.model.step import RankGroup, StepOp
from c4bench.record.telemetry import to_lines
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

OPS = (
    StepOp("all_reduce", 1 << 20, 0.01, RankGroup("tensor", 4, 1)),
    StepOp("all_gather", 4 << 20, 0.01, RankGroup("data", 4, 4)),
)


def recorded(tmp_path, kind, **rest):
    """A recording of 16 ranks on hosts of two, with a fault of rank 6."""
    job = SimJob(16, OPS, seed=5, window_s=0.5, ranks_per_host=2)
    windows = [one for tick in simulate(job, [SimFault(kind, 6, 0.5, **rest)], 2.0) for one in tick.windows]
    path = tmp_path / "telemetry.jsonl"
    path.write_bytes(b"".join(to_lines(windows)))
    return path


def verdicts(tmp_path, capsys, recording, form):
    """What `detect` says of the recording in another format."""
    out = tmp_path / form
    assert main(["convert", str(recording), "--to", form, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["detect", "--json", "--ranks", "16", str(out)]) == 0
    return json.loads(capsys.readouterr().out)["verdicts"]


@pytest.mark.parametrize(
    ("kind", "form", "cause", "culprits"),
    [
        (SimFaultKind.HUNG, "flight-recorder", "not_entered", [6]),
        (SimFaultKind.STOPPED, "flight-recorder", "not_entered", [6]),
        (SimFaultKind.KILLED, "flight-recorder", "not_entered", [6]),
        (SimFaultKind.MISMATCH, "flight-recorder", "collective_type_mismatch", [6]),
        (SimFaultKind.HUNG, "ras", "not_entered", [6]),
        (SimFaultKind.STOPPED, "ras", "process_stopped", [6]),
        (SimFaultKind.KILLED, "ras", "process_ended", [6]),
        (SimFaultKind.MISMATCH, "ras", "collective_type_mismatch", [6]),
    ],
)
def test_faults_are_found_in_other_formats(tmp_path, capsys, kind, form, cause, culprits):
    """A fault of a rank inside groups is found in each format, as far as that format can show it."""
    (verdict,) = verdicts(tmp_path, capsys, recorded(tmp_path, kind), form)
    assert (verdict["diagnosis"]["cause"], verdict["culprits"]) == (cause, culprits)


@pytest.mark.parametrize("form", ["inspector", "kineto"])
def test_a_straggler_is_found_in_finished_operations(tmp_path, capsys, form):
    """Where only finished operations are known, the rank that computes half as long again is named, not its mates."""
    (verdict,) = verdicts(tmp_path, capsys, recorded(tmp_path, SimFaultKind.COMPUTE, factor=1.5), form)
    assert (verdict["diagnosis"]["cause"], verdict["culprits"]) == ("compute_slow", [6])


@pytest.mark.parametrize("form", ["flight-recorder", "inspector", "kineto"])
def test_a_healthy_job_has_no_straggler(tmp_path, capsys, form):
    """Without a fault nobody is named as slow."""
    found = verdicts(tmp_path, capsys, recorded(tmp_path, SimFaultKind.COMPUTE, factor=1.0), form)
    assert [verdict["diagnosis"]["cause"] for verdict in found if verdict["diagnosis"]["cause"] == "compute_slow"] == []


@pytest.mark.parametrize("kind", [SimFaultKind.HUNG, SimFaultKind.KILLED])
def test_several_sources_of_a_job_are_joined(tmp_path, capsys, kind):
    """The flight recorder names the rank and RAS its host: both together drain the host in a scheduler."""
    recording = recorded(tmp_path, kind)
    for form in ("flight-recorder", "ras"):
        assert main(["convert", str(recording), "--to", form, "--out", str(tmp_path / "job" / form)]) == 0
    capsys.readouterr()
    assert main(["detect", "--reasons", "slurm", str(tmp_path / "job")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("scontrol update nodename=h3 state=drain") for line in lines)
    assert main(["detect", "--reasons", "kubernetes", str(tmp_path / "job")]) == 0
    assert all(line.startswith("kubectl patch node h3 ") for line in capsys.readouterr().out.splitlines())


def test_a_folder_with_files_is_not_written_to(tmp_path, capsys):
    """`convert` writes to an empty or a new folder only."""
    recording = recorded(tmp_path, SimFaultKind.HUNG)
    assert main(["convert", str(recording), "--to", "ras", "--out", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
