"""A seed is a bug report: the same one gives the same bytes, another one another fabric."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SLICE = (
    "tests/scenarios/collective/test_bandwidth.py::test_ring_is_exact_and_at_line_rate",
    "tests/scenarios/c4p/test_atlas.py",
    "tests/scenarios/c4p/test_plan.py",
    "tests/scenarios/c4d/test_faults.py::test_slow_rank",
)
ABLATION = ("tests/scenarios/c4p/test_ablation.py::test_slice",)
# Linux mixes what has gathered into its entropy after 4, 8 and 16 s.
DRAWS = "for second in $(seq 20); do sleep 1; od -An -tx8 -N8 /dev/urandom; done"


def test_random_numbers_are_the_seeds():
    """Two labs of one seed draw the same random numbers for as long as they run; one of another seed draws others."""
    first, again, other = (drawn(seed) for seed in (7, 7, 8))
    assert len(first) == 20
    assert first == again
    assert not set(first) & set(other)


def drawn(seed):
    """A random number every second."""
    command = [sys.executable, "-m", "c4bench.cli.main", "lab", "run", "--bare", "--topology=pair", f"--seed={seed}"]
    done = subprocess.run([*command, "--", "sh", "-c", DRAWS], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    "scenarios", [pytest.param(SLICE, id="slice"), pytest.param(ABLATION, id="ablation", marks=pytest.mark.nightly)]
)
def test_same_seed_same_bytes(tmp_path, scenarios):
    """Two labs side by side with one seed write identical measurements; a lab with another seed writes others."""
    first, again = start(tmp_path / "first", 7, scenarios), start(tmp_path / "again", 7, scenarios)
    same = [measurements(first, tmp_path / "first"), measurements(again, tmp_path / "again")]
    other = measurements(start(tmp_path / "other", 8, scenarios), tmp_path / "other")
    assert same[0] == same[1]
    assert same[0] != other


def start(run_directory, seed, scenarios):
    """A run of these scenarios, in a lab of its own."""
    command = [sys.executable, "-m", "pytest", "--hosts=softroce", f"--c4-seed={seed}", f"--c4-run-dir={run_directory}"]
    return subprocess.Popen(
        [*command, *scenarios], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def measurements(running, run_directory):
    """The bytes of `measurements.jsonl` once the run has passed."""
    said, _ = running.communicate()
    assert running.returncode == 0, said[-3000:]
    return (run_directory / "measurements.jsonl").read_bytes()
