"""Who the others wait for, judged on each rank's own clock."""

import numpy as np
import pytest
from c4d_telemetry import drive
from night_cases import at_night

from c4bench.c4d.observe.operations import Finished
from c4bench.c4d.signs.stragglers import IntermittentStragglers, StragglerDetector
from c4bench.model.diagnosis import Syndrome
from c4bench.model.step import StepOp
from tools.sim.model import SimFault, SimFaultKind, SimJob


def _op(seq, computed_s):
    """An operation that ends for all when the last has come, after each rank computed for so long."""
    gap_s = np.asarray(computed_s)
    return _finished(gap_s.max() - gap_s + 0.01, gap_s, 100.0 + 50.0 * np.arange(len(gap_s)) + seq + gap_s)


def _finished(inside_s, gap_s, entered_s):
    ranks = np.arange(len(gap_s))[None]
    return Finished(np.asarray([0]), ranks, np.asarray([inside_s]), np.asarray([gap_s]), np.asarray([entered_s]))


def _lateness(ranks):
    return StragglerDetector(ranks, IntermittentStragglers())


def _computed(seed, ops, ranks=8, jitter=0.01):
    return 0.1 * (1.0 + jitter * np.random.default_rng(seed).standard_normal((ops, ranks)))


@pytest.mark.parametrize("seed", range(10))
def test_five_percent_at_one_percent_jitter_is_found_in_five(seed):
    """A rank that computes 5 % longer is found within five operations, and only it."""
    computed = _computed(seed, 60)
    computed[40:, 3] *= 1.05
    lateness = _lateness(8)
    found = [(seq, late.member) for seq, row in enumerate(computed) for late in lateness.evaluate(_op(seq, row), 0.2)]
    assert [rank for _, rank in found] == [3]
    assert found[0][0] < 45


def test_one_uneven_iteration_beside_chance_is_no_run():
    """Three operations that jitter made late and an iteration of two uneven ones behind them do not add up."""
    computed = 5 * _computed(1, 60, jitter=0.03)
    computed[40:45, 3] = [0.54, 0.545, 0.54, 0.75, 0.75]
    lateness = _lateness(8)
    assert not any(lateness.evaluate(_op(seq, row), 1.5) for seq, row in enumerate(computed))


def test_operations_that_others_make_longer_are_no_more_iterations():
    """Of three late operations two are of one uneven iteration, and the third came late as the others had to wait."""
    computed = 5 * _computed(1, 60)
    computed[40:43, 3] = [1.45, 1.45, 0.52]
    computed[42, 0] = 1.45
    came = np.arange(60.0)
    came[41:] += 1.0
    came[42:] += 3.0
    lateness = _lateness(8)
    assert not any(lateness.evaluate(_op(came[seq], row), 2.0) for seq, row in enumerate(computed))


def test_rank_that_stays_uneven_is_late():
    """The same rank is found once it is uneven in the next iteration, too."""
    computed = 5 * _computed(1, 60, jitter=0.03)
    computed[40:46, 3] = [0.54, 0.545, 0.54, 0.75, 0.75, 0.75]
    lateness = _lateness(8)
    found = [(seq, late.member) for seq, row in enumerate(computed) for late in lateness.evaluate(_op(seq, row), 1.5)]
    assert found == [(45, 3)]


def test_lateness_that_was_always_there_and_is_small_is_lawful():
    """A rank with a tenth more to do from the start is how the job was cut."""
    computed = _computed(1, 200)
    computed[:, 2] *= 1.1
    lateness = _lateness(8)
    assert not any(lateness.evaluate(_op(seq, row), 0.2) for seq, row in enumerate(computed))


def test_rank_slow_from_the_start_is_found():
    """Twice the computing from the first operation on is too much to be lawful."""
    computed = _computed(1, 60)
    computed[:, 2] *= 2.0
    lateness = _lateness(8)
    found = [late.member for seq, row in enumerate(computed) for late in lateness.evaluate(_op(seq, row), 0.2)]
    assert found == [2]


@pytest.mark.parametrize("ops", [16, *at_night(1, 12, 48)])
def test_a_slow_rank_is_found_however_many_operations_an_iteration_has(ops):
    """Each computes for a part of it, and none of them is like another: together they tell within two seconds."""
    kinds = tuple(StepOp("all_reduce", (1 << 19) + 4096 * number, 0.12 / ops) for number in range(ops))
    slow = SimFault(SimFaultKind.COMPUTE, 3, 3.0, factor=1.1)
    (found,) = drive(SimJob(8, kinds, seed=3, jitter=0.03), [slow], 5.5)
    assert (found.component.name, found.syndrome) == ("job:3", Syndrome.NON_COMMUNICATION_SLOW)
    assert found.named_s < 3.0 + 2.0


def test_short_time_inside_without_longer_computing_is_not_lateness():
    """A rank may be inside for less because the network ends there first: only its own computing can make it late."""
    lateness = _lateness(4)
    for seq in range(60):
        inside_s = [0.02 if rank == 1 and seq > 30 else 0.05 for rank in range(4)]
        assert lateness.evaluate(_finished(inside_s, [0.1] * 4, [float(seq)] * 4), 0.2) == []


def _rounds(seed, comms, ranks, rounds):
    """Operations of communicators in rounds, up to six of each in one; now and then a rank is late, or for good."""
    rng = np.random.default_rng(seed)
    done = np.zeros(comms, int)
    for number in range(rounds):
        counts = rng.integers(0, 7, comms) if number % 3 else np.full(comms, 5)
        of = np.repeat(np.arange(comms), counts)
        seqs = np.concatenate([np.arange(count) + first for count, first in zip(counts, done, strict=True)])
        done += counts
        gap_s = 0.1 * (1.0 + 0.01 * rng.standard_normal((len(of), ranks)))
        gap_s[rng.random(len(of)) < 0.002, 1] *= 1.5
        if 12 < number < 20:
            gap_s[of == 1, 2] *= 1.2
        inside_s = gap_s.max(axis=1, keepdims=True) - gap_s + 0.01
        gap_s[rng.random(gap_s.shape) < 0.0005] = np.nan
        entered_s = 100.0 + 0.2 * seqs[:, None] + np.nan_to_num(gap_s)
        yield Finished(of, np.add.outer(of * ranks, np.arange(ranks)), inside_s, gap_s, entered_s)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("period_s", [0.2, 0.8])
def test_of_several_communicators_only_the_rank_that_stays_late_is_late_for_good(seed, period_s):
    """Several operations of each come at a time; others are late now and then, and some gaps are not known."""
    lateness, found = _lateness(8), []
    for ops in _rounds(seed, 4, 8, 40):
        found += lateness.evaluate(ops, period_s)
    assert {(late.comm, late.member) for late in found if late.lasting} == {(1, 2)}
    assert not lateness.standing
