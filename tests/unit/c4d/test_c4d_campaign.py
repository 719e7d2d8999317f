"""Faults drawn from a seed, one or two at a time, are named with their syndrome, and nothing healthy is."""

import pytest
from c4d_campaign import trial
from c4d_pairs import pair
from night_cases import at_night

from tools.campaign.grade import Answer


def _check(tried):
    """Every trial right, by the grades of the lab's campaign as well; what is not stands there in words."""
    named = {Answer.RESOLVED, Answer.AMONG, Answer.NOT_DUE}
    missed = [
        f"{one.words}; said {one.said}, {one.grade.answer}"
        for one in tried
        if not one.right or one.healthy_isolated or one.grade.answer not in named
    ]
    assert not missed, "\n".join(missed)


@pytest.mark.parametrize("seeds", [(1, 2), pytest.param((0, 3, 4, 5), marks=pytest.mark.nightly)])
def test_any_fault_is_named(seeds):
    """A slow NIC in groups of 16 ranks, a slow rank on an all-to-all; at night also rings and hosts with four NICs."""
    _check([trial(seed) for seed in seeds])


@pytest.mark.nightly
@pytest.mark.parametrize("shard", range(12))
def test_three_hundred_faults_are_named(shard, simulated, pytestconfig):
    """A shard of twenty-five of the seed."""
    first = 1000 * pytestconfig.option.c4_seed + 25 * shard
    tried = [trial(seed) for seed in range(first, first + 25)]
    simulated(one.record for one in tried)
    _check(tried)


# In 151 both groups of a slow rank show it in one window.
@pytest.mark.parametrize("seed", [1, 151, *at_night(0, 2, 3)])
def test_two_faults_at_once_are_both_named(seed):
    """Slow NICs, slow ranks and dead ranks, two of them in one job."""
    said, happened = pair(seed)
    assert said == happened


@pytest.mark.nightly
def test_of_a_hundred_and_twenty_pairs_nearly_all_are_named():
    """Both of two faults are named in at least 95 % of the pairs."""
    found = [pair(seed) for seed in range(100, 220)]
    assert sum(happened <= said for said, happened in found) >= 0.95 * len(found)
