"""The verdict is right for any job, place, time and jitter: simulated faults, every sample asserted."""

import math

import pytest
from c4d_telemetry import drive, period_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from night_cases import at_night
from property_examples import examples

from c4bench.c4d.detector import Detector
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.step import StepOp
from tools.sim.model import SimFault, SimFaultKind, SimJob

_SAMPLED = settings(max_examples=examples(2, 8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
_HEALTHY_S = 2.5
# Nothing else is found in this time after a fault had to be named.
_WATCHED_S = 1.0


@st.composite
def _jobs(draw, max_jitter=0.03):
    ranks = draw(st.integers(3, 12))
    size = draw(st.sampled_from([1 << 20, 4 << 20, 16 << 20]))
    compute_s = draw(st.sampled_from([0.003, 0.02, 0.1]))
    offsets_s = draw(st.one_of(st.just(()), st.just(tuple(1.7 * rank for rank in range(ranks)))))
    return SimJob(
        ranks,
        (StepOp("all_reduce", size, compute_s), StepOp("all_to_all", size, draw(st.sampled_from([0.0, compute_s])))),
        jitter=draw(st.floats(0.001, max_jitter)),
        credits=draw(st.booleans()),
        seed=draw(st.integers(0, 10_000)),
        clock_offsets_s=offsets_s,
        exit_after_s=draw(st.sampled_from([0.28, math.inf])),
        ecn=draw(st.booleans()),
    )


def _onset_s(draw, job):
    """Any time after twenty healthy iterations."""
    period_s = period_of(job)
    return max(_HEALTHY_S, 20 * period_s) + draw(st.floats(0.0, 1.0)) * 3 * period_s


def _only(found, syndrome, component):
    assert [(one.syndrome, one.component) for one in found] == [(syndrome, component)]
    return found[0]


@_SAMPLED
@given(st.data())
def test_slow_nic_is_named_by_its_side(data):
    """A NIC at a tenth to four tenths of its rate is one finding, on the right side, within max(5 iterations, 2 s)."""
    job = data.draw(_jobs())
    side, rank = data.draw(st.sampled_from(["tx", "rx"])), data.draw(st.integers(0, job.ranks - 1))
    factor, at_s = data.draw(st.floats(0.1, 0.4)), _onset_s(data.draw, job)
    limit_s = max(5 * period_of(job) / factor, 2.0)
    fault = SimFault(SimFaultKind.NIC_RATE, rank, at_s, factor=factor, side=side)
    found = drive(job, [fault], at_s + limit_s + _WATCHED_S)
    one = _only(found, Syndrome.COMMUNICATION_SLOW, Component("nic", f"h{rank}/0", side))
    assert one.alarmed_s <= one.named_s <= at_s + limit_s


@pytest.mark.nightly
@_SAMPLED
@given(st.data())
def test_slow_path_is_named(data):
    """A single bad path is a point, not the NICs at its ends."""
    job = data.draw(_jobs())
    rank, peer = data.draw(st.permutations(range(job.ranks)))[:2]
    factor, at_s = data.draw(st.floats(0.1, 0.4)), _onset_s(data.draw, job)
    limit_s = max(5 * period_of(job) / factor, 2.0)
    fault = SimFault(SimFaultKind.PATH_RATE, rank, at_s, factor=factor, peer=peer)
    found = drive(job, [fault], at_s + limit_s + _WATCHED_S)
    one = _only(found, Syndrome.COMMUNICATION_SLOW, Component("path", f"h{rank}/0>h{peer}/0"))
    assert one.named_s <= at_s + limit_s


@_SAMPLED
@given(st.data())
def test_rank_that_stops_or_dies_is_named_once(data):
    """A frozen or killed rank is one finding in time, wherever it stood and whatever its neighbours do then."""
    job = data.draw(_jobs())
    rank, at_s = data.draw(st.integers(0, job.ranks - 1)), _onset_s(data.draw, job)
    kind = data.draw(st.sampled_from([SimFaultKind.STOPPED, SimFaultKind.KILLED]))
    found = drive(job, [SimFault(kind, rank, at_s)], at_s + 6 * max(1.0, period_of(job)))
    one = _only(found, Syndrome.NON_COMMUNICATION_HANG, Component("rank", f"job:{rank}"))
    # Others touch the fault no later than one period on; a window comes up to a tenth of a second late.
    assert one.alarmed_s <= at_s + period_of(job) + max(1.0, 3 * period_of(job)) + job.window_s
    assert one.named_s <= one.alarmed_s + 1.0


@pytest.mark.nightly
@_SAMPLED
@given(st.data())
def test_slow_rank_is_named(data):
    """A rank that computes 5 % (at 1 % jitter) to 150 % longer is one finding within max(5 iterations, 2 s)."""
    job = data.draw(_jobs(max_jitter=0.01))
    rank, at_s = data.draw(st.integers(0, job.ranks - 1)), _onset_s(data.draw, job)
    factor = data.draw(st.floats(1.05, 2.5))
    limit_s = max(5 * period_of(job) * factor, 2.0) + job.window_s
    found = drive(job, [SimFault(SimFaultKind.COMPUTE, rank, at_s, factor=factor)], at_s + limit_s + _WATCHED_S)
    one = _only(found, Syndrome.NON_COMMUNICATION_SLOW, Component("rank", f"job:{rank}"))
    assert one.named_s <= at_s + limit_s


@pytest.mark.nightly
@_SAMPLED
@given(st.data())
def test_black_hole_is_the_networks(data):
    """A path that swallows everything is a communication hang of its ends, though its sender may give up and exit."""
    job = data.draw(_jobs())
    rank, at_s = data.draw(st.integers(0, job.ranks - 1)), _onset_s(data.draw, job)
    peer = (rank + 1) % job.ranks
    fault = SimFault(SimFaultKind.PATH_RATE, rank, at_s, factor=0.0, peer=peer)
    found = drive(job, [fault], at_s + 6 * max(1.0, period_of(job)))
    (one,) = found
    assert one.syndrome == Syndrome.COMMUNICATION_HANG
    assert {suspect.name for suspect in one.suspects} <= {f"h{rank}/0", f"h{peer}/0"}


@pytest.mark.nightly
@_SAMPLED
@given(st.data())
def test_short_stall_is_benign(data):
    """A rank frozen for less than the promise minus the observation lag, and then going on, is no finding."""
    job = data.draw(_jobs())
    rank, at_s = data.draw(st.integers(0, job.ranks - 1)), _onset_s(data.draw, job)
    stall = SimFault(SimFaultKind.STOPPED, rank, at_s, until_s=at_s + data.draw(st.floats(0.01, 0.75)))
    assert drive(job, [stall], at_s + 4.0) == []


@pytest.mark.nightly
@_SAMPLED
@given(st.data())
def test_uneven_steps_that_wander_are_benign(data):
    """Steps that are half as long again, each on another rank, are how some jobs are."""
    job = data.draw(_jobs())
    period_s = period_of(job)
    stride = data.draw(st.integers(1, job.ranks - 1))
    spacing_s = data.draw(st.integers(1, 4)) * period_s
    wander = [
        SimFault(
            SimFaultKind.COMPUTE,
            stride * turn % job.ranks,
            3.0 + turn * spacing_s,
            3.0 + turn * spacing_s + period_s,
            1.5,
        )
        for turn in range(10)
    ]
    assert drive(job, wander, 4.0 + 40 * period_s) == []


@pytest.mark.nightly
@_SAMPLED
@given(st.data())
def test_pause_of_all_ranks_is_benign(data):
    """All ranks writing a checkpoint for seconds wait for nobody."""
    job = data.draw(_jobs())
    pauses = [SimFault(SimFaultKind.COMPUTE, rank, 3.0, 3.0 + period_of(job), 50.0) for rank in range(job.ranks)]
    assert drive(job, pauses, 6.0 + 60 * period_of(job)) == []


@pytest.mark.parametrize(("jitter", "granted"), [(0.03, False), *at_night((0.01, True))])
@pytest.mark.parametrize("iterations", [400, *at_night(2000)])
def test_healthy_iterations_are_silent(iterations, jitter, granted):
    """Nobody is blamed in hundreds of iterations without a fault, nor, at night, in 2,000."""
    ops = (StepOp("all_reduce", 4 << 20, 0.02), StepOp("all_to_all", 4 << 20, 0.0))
    job = SimJob(8, ops, jitter=jitter, credits=granted, seed=7)
    detector = Detector()
    assert drive(job, (), iterations * period_of(job) * 1.05, detector) == []
    assert len(detector.cells("job")) == 8 * 7


@pytest.mark.nightly
def test_sixty_four_ranks():
    """The size of the job changes neither verdict nor silence."""
    ops = (StepOp("all_reduce", 4 << 20, 0.05), StepOp("all_to_all", 4 << 20, 0.0))
    fault = SimFault(SimFaultKind.NIC_RATE, 41, 2.0, factor=0.25, side="rx")
    found = drive(SimJob(64, ops, seed=3), [fault], 4.0)
    _only(found, Syndrome.COMMUNICATION_SLOW, Component("nic", "h41/0", "rx"))


def test_iterations_of_seconds():
    """A job whose iteration takes seconds is held to its own pace: a slow rank within five of them."""
    job = SimJob(8, (StepOp("all_reduce", 64 << 20, 2.0), StepOp("all_to_all", 64 << 20, 0.0)), seed=5)
    at_s = 20.5 * period_of(job)
    found = drive(job, [SimFault(SimFaultKind.COMPUTE, 6, at_s, factor=1.3)], at_s + 7 * period_of(job))
    one = _only(found, Syndrome.NON_COMMUNICATION_SLOW, Component("rank", "job:6"))
    assert one.named_s <= at_s + 5 * period_of(job) * 1.3
