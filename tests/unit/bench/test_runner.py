"""The machine's side of a bench run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from c4bench.bench import figures
from c4bench.bench.runner import SUITES, check
from c4bench.errors import UnhealthyError, UsageError
from c4bench.record import RunDirectory

REPOSITORY = Path(__file__).parents[3]


def test_an_unknown_suite_is_refused_before_anything_runs(tmp_path):
    """One line that lists the suites, the usage exit code, no run directory."""
    done = subprocess.run(
        [sys.executable, "-m", "c4bench.cli.main", "bench", "link", "moebius", f"--run-dir={tmp_path / 'run'}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in ("moebius", *SUITES))
    assert not (tmp_path / "run").exists()


def test_known_suites_pass():
    """None at all means all of them."""
    check([])
    check(SUITES)
    with pytest.raises(UsageError):
        check(["lab", "labs"])


def test_marks_carry_the_time_of_the_machine(tmp_path):
    """The span is that of the directories' times, and taking the marks makes room for the next."""
    run = RunDirectory(tmp_path)
    (tmp_path / "lab").mkdir()
    for _ in range(2):
        for name, at in ((figures.BEGIN, 100.0), (figures.END, 107.5)):
            figures.mark(run, name)
            os.utime(tmp_path / "lab/marks" / name, (at, at))
        assert figures.between(run) == 7.5


def test_a_lab_that_left_no_marks_has_no_time(tmp_path):
    """A missing mark is an error, not a span of nothing."""
    run = RunDirectory(tmp_path)
    (tmp_path / "lab").mkdir()
    with pytest.raises(UnhealthyError):
        figures.between(run)
    figures.mark(run, figures.BEGIN)
    with pytest.raises(UnhealthyError):
        figures.between(run)
