"""A seed is a bug report: the same one gives the same bytes, another one another fabric."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SLICE = (
    "tests/scenarios/collective/test_bandwidth.py::test_ring_is_exact_and_at_line_rate",
    "tests/scenarios/c4p/test_atlas.py",
    "tests/scenarios/c4p/test_plan.py",
    "tests/scenarios/c4d/test_faults.py::test_slow_rank",
)


def test_same_seed_same_bytes(tmp_path):
    """Two labs side by side with one seed write identical measurements; a lab with another seed writes others."""
    first, again = start(tmp_path / "first", 7), start(tmp_path / "again", 7)
    same = [measurements(first, tmp_path / "first"), measurements(again, tmp_path / "again")]
    other = measurements(start(tmp_path / "other", 8), tmp_path / "other")
    assert same[0] == same[1]
    assert same[0] != other


def start(run_directory, seed):
    """A run of the slice, in a lab of its own."""
    command = [sys.executable, "-m", "pytest", "--hosts=softroce", f"--c4-seed={seed}", f"--c4-run-dir={run_directory}"]
    return subprocess.Popen(
        [*command, *SLICE], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def measurements(running, run_directory):
    """The bytes of `measurements.jsonl` once the run has passed."""
    said, _ = running.communicate()
    assert running.returncode == 0, said[-3000:]
    return (run_directory / "measurements.jsonl").read_bytes()
