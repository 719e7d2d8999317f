"""What a healthy job does is no finding, however often it does it."""

import pytest

from c4bench.workload.jobs import traffic_job

# A neighbour comes and goes once in so many steps of the job that is watched.
NEIGHBOUR_STEPS = 150


@pytest.fixture
def silent(soak, rdma_hosts, pytestconfig):
    """A job full of unrest, and a neighbour beside it now and then: nothing may be said of the job."""

    def check(traffic, steps, shard=0):
        seed = pytestconfig.option.c4_seed + 1000 * shard
        watched = traffic_job(
            f"soak-{traffic}-{shard}", traffic, rdma_hosts, seed=seed, unrest=True, steps=steps, jitter=0.03
        )
        visits = [
            traffic_job(f"beside-{shard}-{visit}", "ring", rdma_hosts, seed=seed + visit, steps=20)
            for visit in range(steps // NEIGHBOUR_STEPS)
        ]
        soak(watched, visits, steps, traffic=traffic)

    return check


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_three_hundred_steps(silent):
    """Pauses, stalls, uneven steps, warm-up, collections and a neighbour alarm nobody in 300 iterations."""
    silent("ring", 300)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("traffic", ["ring", "all_to_all", "groups"])
@pytest.mark.parametrize("shard", range(1, 8))
def test_twenty_thousand_steps(silent, traffic, shard):
    """And over 20,000: a shard is a thousand of each kind of traffic."""
    silent(traffic, 1000, shard)
