"""Faults under busy jobs, one, two or none, are named, and nothing else is."""

import pytest
from c4d_busy_campaign import drawn, graded, trial
from c4d_telemetry import drive
from night_cases import at_night

from c4bench.model.diagnosis import Component
from c4bench.model.step import RankGroup, StepOp
from tools.campaign.grade import Answer
from tools.sim.model import SimFault, SimFaultKind, SimJob
from tools.sim.places import nic_of

SEED = 31
# Trials of it with two faults, one and none.
BY_DAY = (1, 2, 5)
SHARD = 25


def _check(trials):
    """Nothing healthy is isolated, other components are never the only ones, and what has no fault has no finding."""
    missed = [one for one in graded(trials) if one.healthy or one.answer is Answer.WRONG]
    assert not missed, missed


@pytest.mark.parametrize("numbers", [BY_DAY, pytest.param(range(6), marks=pytest.mark.nightly)])
def test_faults_under_busy_jobs_are_named(numbers):
    """Of trials with one fault, two and none nothing else is named, and most faults are."""
    trials = [trial(drawn(SEED, number)) for number in numbers]
    _check(trials)
    assert {len(one.faults) for one in trials} == {0, 1, 2}
    answers = [one.answer for one in graded(trials) if one.due]
    assert sum(one in {Answer.RESOLVED, Answer.AMONG} for one in answers) >= len(answers) - 1


@pytest.mark.parametrize(
    ("ops", "ranks_per_host"),
    [
        ([StepOp("all_reduce", 8 << 20, 0.05)], 1),
        *at_night(
            ([StepOp("all_reduce", 8 << 20, 0.03, RankGroup(*group)) for group in (("tensor", 4), ("data", 4, 4))], 4)
        ),
    ],
)
def test_a_late_rank_hides_no_slow_nic_of_a_ring(ops, ranks_per_host):
    """In rings, one or several, a NIC at 0.4 of its rate is named beside a rank that is late before it."""
    job = SimJob(16, tuple(ops), seed=4, ranks_per_host=ranks_per_host)
    late = SimFault(SimFaultKind.COMPUTE, 2, 4.0, factor=1.5)
    found = drive(job, [late, SimFault(SimFaultKind.NIC_RATE, 9, 6.0, factor=0.4, side="tx")], 10.0)
    nic = Component("nic", nic_of(job, 9), "tx")
    assert found[0].component == Component("rank", "job:2")
    assert [nic in one.suspects for one in found[1:]] == [True]


@pytest.mark.nightly
@pytest.mark.parametrize("shard", range(12))
def test_three_hundred_busy_trials(shard, simulated, pytestconfig):
    """A shard of twenty-five of the seed."""
    seed = pytestconfig.option.c4_seed
    trials = [trial(drawn(seed, SHARD * shard + number)) for number in range(SHARD)]
    simulated(trials)
    _check(trials)
