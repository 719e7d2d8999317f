"""A seed is a bug report: the same one gives the same bytes, another one another fabric."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SLICE = ("tests/scenarios/collective", "tests/scenarios/c4p")


def test_same_seed_same_bytes(tmp_path):
    """Two runs with one seed write identical measurements; a run with another seed writes different ones."""
    first, again, other = (measurements(tmp_path / name, seed) for name, seed in (("a", 7), ("b", 7), ("c", 8)))
    assert first == again
    assert first != other


def measurements(run_directory, seed):
    """The bytes of `measurements.jsonl` after a run of the slice."""
    run_directory.mkdir()
    command = [sys.executable, "-m", "pytest", "--hosts=softroce", f"--c4-seed={seed}", f"--c4-run-dir={run_directory}"]
    done = subprocess.run([*command, *SLICE], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    return (run_directory / "measurements.jsonl").read_bytes()
