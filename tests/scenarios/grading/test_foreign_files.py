"""Files of other tools: how often the right rank is named, how long it takes, and what damaged files do.

No host is needed, and the machine's clock is read: `make evidence` runs this outside the lab, at night. Unit tests have
smaller jobs and fewer damaged files.
"""

import random
import resource
import time

import pytest
from foreign_jobs import FAULTS, answer, written

from c4bench.evidence.collect import collect
from c4bench.evidence.judging.judge import judge
from c4bench.model.measurement import Clock
from tools.sim.model import SimFaultKind

pytestmark = pytest.mark.nightly

TRIALS = 40


@pytest.fixture(autouse=True)
def machine_time(pytestconfig):
    """In virtual time the machine's clock means nothing."""
    if pytestconfig.option.c4_time == "virtual":
        pytest.skip("computing takes no virtual time: run `make evidence`")


def rates(tmp_path, form, ranks, trials, *, kinds=(), **how):
    """What is said of the rank at fault, over `trials` faults of these kinds, or of all that the format can show."""
    answers = []
    kinds = kinds or FAULTS[form]
    for seed in range(trials):
        kind = kinds[seed % len(kinds)]
        folder = tmp_path / str(seed)
        folder.mkdir()
        rank = written(folder, form, ranks, kind, seed, **how)
        found = answer(folder, ranks, rank)
        answers.append((kind, found))
        assert not found.accused, f"{form} {kind} of rank {rank}, seed {seed}: {found.said}"
        assert found.among, f"{form} {kind} of rank {rank}, seed {seed}: {found.said}"
        for path in folder.iterdir():
            path.unlink()
    return answers


@pytest.mark.parametrize("ranks", [1000, 10_000])
@pytest.mark.parametrize("form", FAULTS)
def test_the_right_rank_is_named(tmp_path, measure, form, ranks):
    """Of 40 faults of a large job, 95 % are named right, and the rest have the rank at fault among the suspects."""
    answers = rates(tmp_path, form, ranks, TRIALS)
    size = {"format": form, "ranks": str(ranks)}
    for kind in FAULTS[form]:
        measure("foreign.fault_fraction", fraction(answers, {kind}), unit="1", clock=Clock.NONE, fault=kind, **size)
    share = fraction(answers, FAULTS[form])
    measure("foreign.correct_fraction", share, unit="1", at_least=0.95, clock=Clock.NONE, fault="all", **size)


def test_a_barrier_is_counted_as_an_all_reduce(tmp_path, measure):
    """RAS cannot show a barrier in place of an all-reduce, which NCCL counts alike: the rank is among the suspects."""
    answers = rates(tmp_path, "ras", 1000, TRIALS // 4, kinds=(SimFaultKind.MISMATCH,), calls=("barrier",))
    share = fraction(answers, {SimFaultKind.MISMATCH})
    measure("foreign.counted_alike_fraction", share, unit="1", clock=Clock.NONE, format="ras")


def test_the_right_rank_of_pipelines_is_named(tmp_path, measure):
    """Of 40 faults of a job whose stages send to each other, 95 % are named right, and the rest are suspected."""
    answers = rates(tmp_path, "flight-recorder", 1000, TRIALS, passes_by="send")
    share = fraction(answers, FAULTS["flight-recorder"])
    labels = {"format": "flight-recorder", "fault": "all", "job": "send"}
    measure("foreign.correct_fraction", share, unit="1", at_least=0.95, clock=Clock.NONE, **labels)


def test_clocks_are_compared(tmp_path, measure):
    """Clocks of 125 hosts, up to 100 s apart, are compared to within an iteration, and the stated error holds."""
    rng = random.Random(5)
    offsets_s = (100.0, *(100.0 + rng.uniform(-50.0, 50.0) for _ in range(124)))
    for form in ("flight-recorder", "ras"):
        written(tmp_path, form, 1000, SimFaultKind.HUNG, seed=0, offsets_s=offsets_s)
    clocks = judge(collect([tmp_path])).clocks
    assert len(clocks) == 125
    off_s = [abs(clock.offset_s - offsets_s[int(clock.host[1:])] + offsets_s[0]) for clock in clocks]
    assert all(off_s <= clock.error_s + 1e-6 for off_s, clock in zip(off_s, clocks, strict=True))
    measure("foreign.clock_off_s", max(off_s), unit="s", clock=Clock.NONE)
    stated_s = max(clock.error_s for clock in clocks)
    measure("foreign.clock_error_s", stated_s, unit="s", at_most=0.03, clock=Clock.NONE)


def test_a_tenth_of_the_files_is_missing(tmp_path, measure):
    """With a tenth of the dumps lost, the right rank is named or is among the suspects, and no other alone."""
    answers = rates(tmp_path, "flight-recorder", 1000, TRIALS // 2, lost=0.1)
    share = fraction(answers, FAULTS["flight-recorder"])
    measure("foreign.correct_without_a_tenth_fraction", share, unit="1", clock=Clock.NONE)


def fraction(answers, kinds):
    """The share of right answers to faults of these kinds."""
    right = [found.right for kind, found in answers if kind in kinds]
    return sum(right) / len(right)


@pytest.mark.parametrize("kind", [SimFaultKind.HUNG, SimFaultKind.KILLED])
def test_ten_thousand_ranks_are_read_and_judged(tmp_path, measure, kind):
    """The dumps of 10,000 ranks are read and judged in a minute and 4 GB."""
    rank = written(tmp_path, "flight-recorder", 10_000, kind, seed=1)
    began_s, computed_s = time.monotonic(), time.process_time()
    found = answer(tmp_path, 10_000, rank)
    took_s, computed_s = time.monotonic() - began_s, time.process_time() - computed_s
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert found.right, found.said
    measure("foreign.read_s", took_s, unit="s", at_most=60, clock=Clock.MACHINE, ranks="10000", fault=kind)
    measure("foreign.read_cpu_s", computed_s, unit="s", clock=Clock.MACHINE, ranks="10000", fault=kind)
    measure("foreign.peak_bytes", float(peak_bytes), unit="B", at_most=4e9, clock=Clock.MACHINE, fault=kind)


def test_ten_thousand_damaged_files_do_no_harm(tmp_path, measure):
    """No damaged file makes a reader fail, or runs anything."""
    mutations = pytest.importorskip("evidence_mutations", reason="the files that are damaged are those of a checkout")
    found = mutations.escapes(10_000, tmp_path, seed=77)
    measure("foreign.fuzz_escapes", float(len(found)), unit="1", at_most=0, clock=Clock.NONE, files="10000")
    assert found == []
