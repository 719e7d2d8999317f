"""What busy jobs without a fault do to each other is no finding: they communicate for 10, 30 and 60 % of their time.

A fabric that a job can keep busy is needed: `--c4-topology tests/scenarios/c4d/busy/rails.yml`.
"""

import pytest
from busy import LOADS, TRAFFICS, burst_job, busy_job, healthy_trial, incast_job, job_beside

# A lab pays for each byte.
FASTEST_BPS = 1e9
STEPS = 280
# Another job comes once in so many steps, and how long it stays away before (s).
VISIT_STEPS, AWAY_S = 70, 3.0


@pytest.fixture(scope="module", autouse=True)
def _busy(hosts):
    """Skips before anything is opened, so that scenarios after these run as if these did not exist."""
    if any(nic.rate_bps > FASTEST_BPS for host in hosts for nic in host.nics):
        pytest.skip(f"too fast: NICs of {FASTEST_BPS / 1e9:.0f} Gbit/s at most can be kept busy (c4.nics[].rate)")


@pytest.fixture
def silent(soak, cluster, rdma_hosts, pytestconfig):
    """A busy job full of unrest; others burst, meet at a NIC, or send a little all the time: nothing may be said."""

    def check(traffic, load, steps):
        trial = healthy_trial(pytestconfig.option.c4_seed, traffic, load)
        visits = [
            kind(f"{trial.name}-visit-{number}", rdma_hosts, seed=trial.draw + number, steps=duration)
            for number, (kind, duration) in enumerate(VISITS * (steps // VISIT_STEPS // len(VISITS)))
        ]
        beside = cluster.start(job_beside(trial, rdma_hosts)) if trial.beside else None
        try:
            watched = busy_job(trial, rdma_hosts, unrest=True, steps=steps)
            soak(watched, visits, steps, gap_s=AWAY_S, traffic=traffic, load=load)
        finally:
            if beside:
                cluster.stop(beside.spec.id)

    return check


# Jobs beside, and for how many steps.
VISITS = ((burst_job, 60), (incast_job, 150))


@pytest.mark.needs(hosts=8)
def test_a_busy_job_is_silent(silent):
    """Bursts and incasts of other jobs beside an all-to-all that oversubscribes its links alarm nobody."""
    silent("all_to_all", 0.3, 140)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("traffic", TRAFFICS)
@pytest.mark.parametrize("load", LOADS)
def test_twenty_thousand_busy_steps(silent, traffic, load):
    """The same over 20,000 iterations on six fabrics: a shard is 280 of each traffic and load on one of them."""
    silent(traffic, load, STEPS)
