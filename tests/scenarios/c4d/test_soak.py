"""What a healthy job does is no finding, however often it does it."""

import pytest

from c4bench.model.measurement import Clock
from c4bench.workload.jobs import traffic_job

READY_S = 60.0
STEP_S = 3.0
# A neighbour comes and goes once in so many steps of the job that is watched.
NEIGHBOUR_STEPS = 150


@pytest.fixture
def soak(cluster, rdma_hosts, atlas, run_directory, pytestconfig):  # noqa: ARG001 (planned paths)
    """Run so many steps of a job full of unrest, a neighbour beside it now and then, and return what C4D says."""

    def run(traffic, steps, shard=0):
        seed = pytestconfig.option.c4_seed + 1000 * shard
        name = f"soak-{traffic}-{shard}"
        running = cluster.start(
            traffic_job(name, traffic, rdma_hosts, seed=seed, unrest=True, steps=steps, jitter=0.03)
        )
        try:
            cluster.results(running, "ready", READY_S)
            for visit in range(steps // NEIGHBOUR_STEPS):
                beside = traffic_job(f"beside-{shard}-{visit}", "ring", rdma_hosts, seed=seed + visit, steps=20)
                neighbour = cluster.start(beside)
                cluster.results(neighbour, "done", READY_S)
                cluster.stop(beside.id)
            cluster.results(running, "done", steps * STEP_S)
            return cluster.diagnoses(name)
        finally:
            run_directory.save_telemetry(name, cluster.recording(name))
            cluster.stop(name)

    return run


@pytest.fixture
def silent(soak, measure):
    """Nothing may be said of the job."""

    def check(traffic, steps, shard=0):
        found = soak(traffic, steps, shard)
        measure("soak.iterations", steps, clock=Clock.NONE, traffic=traffic)
        measure("soak.false_alarms", len(found), at_most=0, clock=Clock.NONE, traffic=traffic)
        assert not found, [f"{one.syndrome}: {one.component}; {one.evidence}" for one in found]

    return check


@pytest.mark.needs(hosts=8)
def test_three_hundred_steps(silent):
    """Pauses, stalls, uneven steps, warm-up, collections and a neighbour alarm nobody in 300 iterations."""
    silent("ring", 300)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("traffic", ["ring", "all_to_all", "groups"])
@pytest.mark.parametrize("shard", range(1, 8))
def test_twenty_thousand_steps(silent, traffic, shard):
    """The same over 20,000 iterations: a shard is a thousand of each kind of traffic."""
    silent(traffic, 1000, shard)
