"""How many changes of the code the unit tests notice: mutation testing, sampled."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from mutation_sites import sample
from mutation_trials import MutantResult, Trials

from c4bench.foreign_text import markdown_code
from c4bench.model.measurement import Clock
from c4bench.pytest_plugin.verdicts import IN_LAB
from tools.shares import share_interval

ROOT = Path(__file__).parents[2]
COUNT = int(os.environ.get("C4BENCH_MUTANTS", "300"))


@pytest.fixture
def short_folder():
    """A folder with a short name: tests make Unix sockets below it, whose names have 107 bytes at most."""
    with TemporaryDirectory(prefix="m") as folder:
        yield Path(folder)


@pytest.mark.nightly
@pytest.mark.timeout(6 * 3600)
def test_mutants_are_killed(measure, run_directory, pytestconfig, short_folder):
    """Of a sample of mutants, which differ from the code in one place, the unit tests kill 85 % or more."""
    if IN_LAB:
        pytest.skip("no-machine-clock: mutants are tried outside the lab")
    seed = pytestconfig.option.c4_seed
    mutants, sites = sample(ROOT, COUNT, seed)
    trials = Trials(ROOT, short_folder)
    files, unfit = trials.test_files()
    for path in unfit:
        run_directory.event(0.0, "test_file_left_out", path=path)
    left, results = [], []
    for mutant, result, tried in trials.attempts(mutants, files):
        what = {"path": mutant.path, "line": mutant.first, "was": mutant.was, "now": mutant.now}
        run_directory.event(0.0, "mutant", **what, result=result.value, test_files=tried)
        results.append(result)
        if result is not MutantResult.KILLED:
            place = f"{mutant.path}:{mutant.first}"
            left.append(f"- {place} {result.value}: {markdown_code(mutant.was)} became {markdown_code(mutant.now)}")
    counts = {result: results.count(result) for result in MutantResult}
    killed = share_interval(counts[MutantResult.KILLED], len(results))
    interval = {"low": round(killed.low, 4), "high": round(killed.high, 4)}
    head = f"# {counts[MutantResult.KILLED]} of {len(results)} mutants killed; seed {seed}, {sites} sites"
    (run_directory.path / "mutants.md").write_text("\n".join([head, "", *left, ""]))
    measure("mutants.killed_fraction", killed.mean, unit="1", at_least=0.85, clock=Clock.NONE, **interval)
    measure("mutants.killed", counts[MutantResult.KILLED], unit="1", clock=Clock.NONE)
    measure("mutants.survived", counts[MutantResult.SURVIVED], unit="1", clock=Clock.NONE)
    measure("mutants.timed_out", counts[MutantResult.TIMED_OUT], unit="1", clock=Clock.NONE)
