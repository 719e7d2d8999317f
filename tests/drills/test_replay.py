"""A seed is a bug report: the same one gives the same bytes, another one another fabric."""

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import msgspec
import pytest

from c4bench.lab.machine import kernel

REPOSITORY = Path(__file__).parents[2]
RING = "tests/scenarios/collective/test_bandwidth.py::test_ring_is_exact_and_at_line_rate"
SLICE = ("--c4-topology=tests/drills/four.yml", "tests/scenarios/c4d/test_faults.py::test_slow_rank")
ABLATION = ("tests/scenarios/c4p/test_ablation.py::test_slice",)
PROGRAMS = ("-m", "nightly", "tests/scenarios/attach/test_as_they_are.py", "-k", "perftest or all_reduce")
EVENTS = ("--c4-topology=pair", "tests/scenarios/verbs/test_endpoints.py::test_port_events_are_heard")
AT_NIGHT = range(1, 11)
# An ordinary user with a home that is its alone, the environment in it too, and as few open files as a login may have.
LOGIN = """\
set -e
mkdir -p "$1/.venv"
mount --bind "$2" "$1/.venv"
cd "$1"
ulimit -S -n 1024
shift 2
exec unshare --user --map-user=1000 --map-group=1000 .venv/bin/python "$@"
"""
UNSHARED = ("unshare", "--user", "--map-root-user", "--mount", "--", "bash", "-c", LOGIN, "login")
VARIABLES = {"LANG": "de_DE.UTF-8", "TZ": "Asia/Tokyo", "COLUMNS": "213", "MODULEPATH": "/opt/modules:" * 500}
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
    "scenarios",
    [
        pytest.param(SLICE, id="slice"),
        pytest.param(ABLATION, id="ablation", marks=pytest.mark.nightly),
        pytest.param(PROGRAMS, id="programs", marks=[pytest.mark.nightly, pytest.mark.timeout(3600)]),
    ],
)
def test_same_seed_same_bytes(tmp_path, scenarios):
    """Two labs with one seed measure and print the same, in checkouts of two users on one and on all processors."""
    assert parting(tmp_path, 7, ("--hosts=softroce", *scenarios)) == ""
    runs = tmp_path / "first", tmp_path / "once-more"
    for printed in sorted((runs[0] / "programs").glob("*")):
        assert first_difference(f"programs/{printed.name}", *runs) == ""


def targets():
    """The Makefile's names for the scenarios of `make test`."""
    return made("list", "--eval", "list: ; @echo $(SCENARIOS)").split()


def made(target, *options):
    """What make would run for a target, or what that prints where it is made up by the options."""
    command = ["make", "--silent", *(options or ("--dry-run", "SETUP=")), target]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("seed", AT_NIGHT)
@pytest.mark.parametrize("target", targets())
def test_every_scenario_replays(tmp_path, target, seed):
    """All that `make test` runs in a lab writes identical measurements, however busy the processor is."""
    labs = [shlex.split(line)[1:] for line in made(target).splitlines()]
    assert labs
    with load():
        for number, words in enumerate(labs):
            (folder := tmp_path / str(number)).mkdir()
            assert parting(folder, seed, words) == "", words


@pytest.mark.nightly
def test_another_seed_is_another_fabric(tmp_path):
    """A lab with another seed measures something else."""
    seeds = {seed: start(REPOSITORY, tmp_path / str(seed), seed, ("--hosts=softroce", RING)) for seed in (7, 8)}
    for seed, running in seeds.items():
        passes(running, tmp_path / str(seed))
    assert first_difference("measurements.jsonl", *(tmp_path / str(seed) for seed in seeds))


@pytest.mark.nightly
def test_other_packages_are_another_environment(tmp_path):
    """A package more is on record with the run, and a run that began without it is not added to: figures would mix."""
    (tmp_path / "more" / "spare_part-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "more" / "spare_part-1.0.dist-info" / "METADATA").write_text("Name: spare_part\nVersion: 1.0\n")
    more = {"PYTHONPATH": f"{REPOSITORY}:{tmp_path / 'more'}"}
    packages = []
    for name, variables in (("as-it-is", {}), ("with-more", more)):
        running = start(REPOSITORY, tmp_path / name, 7, ("--hosts=softroce", *EVENTS), variables=variables)
        passes(running, tmp_path / name)
        packages.append(msgspec.json.decode((tmp_path / name / "run.json").read_bytes())["environment"]["packages"])
    assert packages[1] == packages[0] | {"spare-part": "1.0"}
    mixed = start(REPOSITORY, tmp_path / "as-it-is", 7, ("--hosts=softroce", *EVENTS), variables=more)
    assert mixed.wait() == 2
    assert "as-it-is was started in another environment (spare-part none, now 1.0)" in said(tmp_path / "as-it-is")


def parting(folder, seed, words):
    """Where two runs of these words part: the first other line of each of their records; "" where measurements agree.

    The second is another user's, in a private home with a longer name and more files, other variables, one processor.
    """
    home = folder / "home"
    home.mkdir(mode=0o700)
    copy = copied(home / "copy of the repository")
    elsewhere = ("taskset", "--cpu-list", one_processor(), *UNSHARED, str(copy), sys.prefix)
    first = start(REPOSITORY, folder / "first", seed, words)
    variables = VARIABLES | {"HOME": str(home), "C4BENCH_CACHE": str(kernel.cache_root())}
    again = start(copy, folder / "once-more", seed, words, elsewhere, variables)
    runs = folder / "first", folder / "once-more"
    for running, run in zip((first, again), runs, strict=True):
        passes(running, run)
    apart = first_difference("measurements.jsonl", *runs)
    if not apart:
        return ""
    records = sorted(str(path.relative_to(runs[0])) for path in (runs[0] / "telemetry").glob("*"))
    return "\n".join([apart, *(first_difference(name, *runs) for name in ("events.jsonl", *records))])


def first_difference(name, *runs):
    """The first line in which a file of two runs differs, cut to what is near the difference; "" where none does."""
    pairs = zip_longest(*((run / name).read_bytes().splitlines() for run in runs), fillvalue=b"")
    for number, (one, other) in enumerate(pairs, 1):
        if one != other:
            same = next(place for place, (a, b) in enumerate(zip_longest(one, other)) if a != b)
            start = max(0, same - 200)
            return f"{name}, line {number}: {one[start : start + 400]} | {other[start : start + 400]}"
    return ""


def one_processor():
    """The number of a processor that we may use."""
    return str(min(os.sched_getaffinity(0)))


@contextmanager
def load():
    """Something that computes all the time, on the processor that the second lab has."""
    spinning = subprocess.Popen(["taskset", "--cpu-list", one_processor(), "sh", "-c", "while :; do :; done"])
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()


def copied(place):
    """A checkout as it is when it is new, with so many more files and folders that it takes longer to read."""
    for part in ("c4bench", "tests", "playbooks", "faults", "reports"):
        shutil.copytree(REPOSITORY / part, place / part, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    shutil.copy(REPOSITORY / "pyproject.toml", place)
    for number in range(64):
        (place / f"notes-{number}").touch()
        (place / f"folder-{number}").mkdir()
    return place


def start(checkout, run_directory, seed, words, python=(sys.executable,), variables=None):
    """Run pytest with these words in a new lab; its output goes to a file beside its directory."""
    printed = ("-m", "pytest", *words, f"--c4-seed={seed}", f"--c4-run-dir={run_directory}")
    with log(run_directory).open("w") as output:
        return subprocess.Popen(
            [*python, *printed],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)} | (variables or {}),
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def log(run_directory):
    return run_directory.with_suffix(".log")


def said(run_directory):
    """The end of what a run has said."""
    return log(run_directory).read_text()[-3000:]


def passes(running, run_directory):
    """Wait for a run, which must pass."""
    assert running.wait() == 0, said(run_directory)
