"""C4D reports nothing of busy jobs without a fault, however long they run."""

import pytest
from c4d_busy_soak import soak
from night_cases import at_night

JOBS, ITERATIONS = 10, 1000


def _named(seed, iterations):
    """What is named of the job of a seed, in words; it has all its iterations."""
    job = soak(seed, iterations)
    assert job.iterations >= iterations
    return [f"{seed}, load {job.load}, {job.ranks} ranks: {one.named_s:.1f} s, {one.component}" for one in job.found]


@pytest.mark.parametrize("seed", [0, 8, *at_night(6)])
def test_busy_jobs_are_silent(seed):
    """Unrest, bursts and oversubscribed links beside busy jobs alarm nobody in sixty iterations each."""
    assert _named(seed, 60) == []


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shard", range(100))
def test_a_million_busy_iterations_are_silent(shard, pytestconfig):
    """No false alarm in 1,000,000 iterations under load: a shard is ten jobs of a thousand, of the seed."""
    first = 1000 * pytestconfig.option.c4_seed + JOBS * shard
    named = [words for seed in range(first, first + JOBS) for words in _named(seed, ITERATIONS)]
    assert not named, "\n".join(named)
