"""Hangs in jobs of overlapping communicators, whose members are numbered within each: simulated, every kind of hang."""

import random

import pytest
from c4d_telemetry import drive
from night_cases import at_night

from c4bench.c4d.detector import Detector
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.recording import FailureReported
from c4bench.model.step import RankGroup, StepOp
from c4bench.model.telemetry import Failure
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob
from tools.sim.places import Places, nic_of

_TENSOR, _DATA, _PIPE = RankGroup("tensor", 4, 1), RankGroup("data", 2, 4), RankGroup("pipe", 2, 8)
_OPS = (
    StepOp("all_gather", 4 << 20, 0.01, _TENSOR),
    StepOp("send", 2 << 20, 0.005, _PIPE),
    StepOp("all_reduce", 8 << 20, 0.02, _DATA),
)
_ONSET_S = 2.3


def _job(seed, **changes):
    """Sixteen ranks in tensor, pipeline and data groups, one or two of them a host."""
    return SimJob(16, _OPS, seed=seed, ranks_per_host=1 + seed % 2, exit_after_s=0.28, **changes)


@pytest.mark.parametrize("seed", [0, *at_night(1, 2, 3)])
@pytest.mark.parametrize("kind", [SimFaultKind.STOPPED, SimFaultKind.HUNG, SimFaultKind.KILLED])
def test_rank_is_named_in_the_jobs_numbers(kind, seed):
    """A rank that stops, hangs or dies is one finding, by its rank in the job, whichever communicator feels it."""
    rank = random.Random(f"{kind}{seed}").randrange(16)
    (found,) = drive(_job(seed, notify_failure=True), [SimFault(kind, rank, _ONSET_S)], 4.5)
    assert (found.syndrome, found.component) == (Syndrome.NON_COMMUNICATION_HANG, Component("rank", f"job:{rank}"))
    assert found.alarmed_s <= _ONSET_S + 1.3


@pytest.mark.parametrize(
    ("group", "told"),
    [(_TENSOR, False), (_DATA, True), (_PIPE, True), *at_night((_TENSOR, True), (_DATA, False), (_PIPE, False))],
)
def test_black_hole_in_one_group_is_the_networks(group, told):
    """A NIC at the end of a path that swallows everything is named, though others end because of it."""
    job = _job(5, notify_failure=told)
    peer = int(Places(job, group).peer(1)[6])
    fault = SimFault(SimFaultKind.PATH_RATE, 6, _ONSET_S, factor=0.0, peer=peer)
    (found,) = drive(job, [fault], 4.5)
    assert found.syndrome == Syndrome.COMMUNICATION_HANG
    assert found.component.name in {nic_of(job, 6), nic_of(job, peer)}
    assert found.operations[0].ranks == (6,)


def test_rank_that_calls_another_collective_is_the_jobs_bug():
    """What both sides called is reported, and no host is to blame."""
    (found,) = drive(_job(2), [SimFault(SimFaultKind.MISMATCH, 9, _ONSET_S)], 4.5)
    assert (found.component, found.cause) == (Component("job", "job"), Cause.COLLECTIVE_TYPE_MISMATCH)
    assert {op.ranks == (9,) for op in found.operations} == {True, False}
    assert len({op.profiling_name for op in found.operations}) == 2


def _raise(rank, *, notify_failure):
    """The diagnoses when a rank raises an error and all others end within a millisecond."""
    job = _job(4, notify_failure=True)
    places = Places(job, _TENSOR)
    detector, found = Detector(), []
    for tick in simulate(job, [SimFault(SimFaultKind.RAISED, rank, _ONSET_S)], 4.0):
        for window in tick.windows:
            detector.ingest_window(window)
        if notify_failure and tick.time_s >= _ONSET_S:
            failure = Failure(int(places.position[rank]), "out of memory")
            detector.ingest(FailureReported(tick.time_s, "job", places.comms[rank].comm, failure))
        found += detector.evaluate(tick.time_s)
    return found


def test_first_to_fail_is_named_and_not_those_who_heard_of_it():
    """Of sixteen processes that exit at once, the one that said so first is the culprit, with its reason."""
    (found,) = _raise(11, notify_failure=True)
    assert found.component == Component("rank", "job:11")
    assert "out of memory" in " ".join(found.evidence)


def test_nobody_is_picked_from_equals():
    """Without that word the job's end is reported and no rank is blamed for it."""
    (found,) = _raise(11, notify_failure=False)
    assert found.component == Component("job", "job")
    assert found.confidence <= 0.5


def test_two_ranks_that_stop_at_once_are_both_named():
    """Neither hides behind the other, though everybody waits for both."""
    faults = [SimFault(SimFaultKind.STOPPED, rank, _ONSET_S) for rank in (3, 12)]
    found = drive(_job(2), faults, 4.5)
    assert {str(one.component) for one in found} == {"rank job:3", "rank job:12"}


def test_dead_rank_and_dead_path_are_both_named():
    """A rank that is killed does not hide a connection that stands still between others."""
    job = SimJob(16, _OPS, seed=6)
    path = SimFault(SimFaultKind.PATH_RATE, 0, _ONSET_S, factor=0.0, peer=1)
    found = drive(job, [path, SimFault(SimFaultKind.KILLED, 10, _ONSET_S + 0.01)], 5.0)
    assert {str(one.component) for one in found} == {"nic h0/0", "rank job:10"}


def test_nic_that_refuses_work_is_named_and_not_the_rank_that_says_so():
    """A NIC whose link is down fails its rank at once: no connection ever stands still, only the status tells."""
    job, detector, found = _job(2, notify_failure=True), Detector(), []
    for tick in simulate(job, [SimFault(SimFaultKind.RAISED, 5, _ONSET_S)], 4.5):
        for window in tick.windows:
            detector.ingest_window(window)
        if tick.time_s > _ONSET_S:
            failure = Failure(1, "sending failed", "LOC_QP_OP_ERR")
            detector.ingest(FailureReported(tick.time_s, job.name, "job.tensor.1", failure))
        found += detector.evaluate(tick.time_s)
    assert [(one.syndrome, one.component) for one in found] == [
        (Syndrome.COMMUNICATION_HANG, Component("nic", nic_of(job, 5)))
    ]


def test_rank_that_is_late_now_and_then_is_named_once():
    """A rank whose lateness comes and goes is one finding, though all its groups wait for it."""
    faults = [SimFault(SimFaultKind.COMPUTE, 9, second, second + 0.1, factor=2.3) for second in range(3, 9)]
    (found,) = drive(_job(3), faults, 9.0)
    assert (found.syndrome, found.component) == (Syndrome.NON_COMMUNICATION_SLOW, Component("rank", "job:9"))
