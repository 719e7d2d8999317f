"""A seed is a bug report: the same one gives the same bytes, another one another fabric."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
RING = "tests/scenarios/collective/test_bandwidth.py::test_ring_is_exact_and_at_line_rate"
SLICE = (RING, "tests/scenarios/c4p/test_atlas.py", "tests/scenarios/c4d/test_faults.py::test_slow_rank")
ABLATION = ("tests/scenarios/c4p/test_ablation.py::test_slice",)
# A home that is its owner's alone, the environment in it too, and as few open files as a login may have.
LOGIN = """\
set -e
mkdir -p "$1/.venv"
mount --bind "$2" "$1/.venv"
cd "$1"
ulimit -S -n 1024
shift 2
exec .venv/bin/python "$@"
"""
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
    """Two labs with one seed write identical measurements, also from an ordinary login's checkout in a private home."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    copy = copied(home / "copy of the repository")
    unshared = ("unshare", "--user", "--map-root-user", "--mount", "--", "bash", "-c", LOGIN, "login")
    first = start(REPOSITORY, tmp_path / "first", 7, scenarios)
    again = start(copy, tmp_path / "once-more", 7, scenarios, (*unshared, str(copy), sys.prefix))
    same = [measurements(first, tmp_path / "first"), measurements(again, tmp_path / "once-more")]
    assert same[0] == same[1]


@pytest.mark.nightly
def test_another_seed_is_another_fabric(tmp_path):
    """A lab with another seed measures something else."""
    seeds = {seed: start(REPOSITORY, tmp_path / str(seed), seed, (RING,)) for seed in (7, 8)}
    first, other = (measurements(running, tmp_path / str(seed)) for seed, running in seeds.items())
    assert first != other


def copied(place):
    """A checkout as it is when it is new, with so many more files that its folder takes longer to read."""
    for part in ("c4bench", "tests", "playbooks", "faults", "reports"):
        shutil.copytree(REPOSITORY / part, place / part, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    shutil.copy(REPOSITORY / "pyproject.toml", place)
    for number in range(64):
        (place / f"notes-{number}").touch()
    return place


def start(checkout, run_directory, seed, scenarios, python=(sys.executable,)):
    """A run of these scenarios, in a lab of its own."""
    told = ("-m", "pytest", "--hosts=softroce", f"--c4-seed={seed}", f"--c4-run-dir={run_directory}")
    return subprocess.Popen(
        [*python, *told, *scenarios],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def measurements(running, run_directory):
    """The bytes of `measurements.jsonl` once the run has passed."""
    said, _ = running.communicate()
    assert running.returncode == 0, said[-3000:]
    return (run_directory / "measurements.jsonl").read_bytes()
