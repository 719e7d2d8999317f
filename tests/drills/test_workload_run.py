"""`c4bench workload run` from outside: a lab, a master in it, a job, and its exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import c4bench

EXAMPLE = Path(c4bench.__file__).parent / "workload" / "examples" / "learning.yml"


def run(*arguments):
    """The command in a lab of two hosts."""
    command = [sys.executable, "-m", "c4bench.cli.main", "workload", "run", *map(str, arguments)]
    return subprocess.run(
        [*command, "--hosts=softroce", "--topology=pair"], capture_output=True, text=True, check=False
    )


def test_the_example_learns_in_a_lab():
    """Rank 0 reports the loss of every step, which falls; the command ends when the job does, with its success."""
    done = run(EXAMPLE, "--json")
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert {report["job"] for report in reports} == {"learning"}
    assert sorted(report["rank"] for report in reports if report["kind"] == "resumed") == [0, 1]
    losses = [float.fromhex(loss) for report in reports if report["kind"] == "losses" for loss in report["losses"]]
    assert len(losses) == 100
    assert losses[0] == pytest.approx(5.545, abs=0.05)
    assert sum(losses[-10:]) / 10 < 3.3


def test_a_job_that_fails_ends_the_command_with_its_code(tmp_path):
    """A rank that refuses its parameters is reported in its words, and its exit code is the command's."""
    path = tmp_path / "wrong.yml"
    path.write_text("{name: wrong, program: training, parameters: {speed: 9}}")
    done = run(path)
    assert done.returncode == 2, done.stderr
    assert "wrong rank 0: error error=job wrong, program training: Object contains unknown field `speed`" in done.stdout
