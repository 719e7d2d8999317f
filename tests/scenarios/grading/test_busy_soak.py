"""C4D reports nothing of jobs without a fault that communicate for 10, 30 and 60 % of their time.

A fabric that a job can keep busy is needed: `--c4-topology tests/scenarios/grading/busy/rails.yml`.
"""

import pytest
from busy import LOADS, TRAFFICS, burst_job, busy_job, healthy_trial, incast_job, job_beside

# A lab pays for each byte.
FASTEST_BPS = 1e9
STEPS = 280
# Other jobs come one after the other, each after so long (s); their kinds, and for how many steps.
AWAY_S = 3.0
VISITS = 2 * ((burst_job, 60), (incast_job, 150))


@pytest.fixture(scope="module", autouse=True)
def _busy(hosts):
    """Skips before anything is opened, so that scenarios after these run as if these did not exist."""
    if any(nic.rate_bps > FASTEST_BPS for host in hosts for nic in host.nics):
        pytest.skip(f"too fast: NICs of {FASTEST_BPS / 1e9:.0f} Gbit/s at most can be kept busy (c4.nics[].rate)")


@pytest.fixture
def silent(soak, rdma_hosts, pytestconfig):
    """A busy job full of unrest; others burst, meet at a NIC, or send a little all the time: nothing may be said."""

    def check(traffic, load, steps, visits):
        trial = healthy_trial(pytestconfig.option.c4_seed, traffic, load)
        others = [
            kind(f"{trial.name}-visit-{number}", rdma_hosts, seed=trial.draw + number, steps=stay)
            for number, (kind, stay) in enumerate(visits)
        ]
        beside = [job_beside(trial, rdma_hosts)] if trial.beside else []
        watched = busy_job(trial, rdma_hosts, unrest=True, steps=steps)
        soak(watched, others, steps, beside=beside, gap_s=AWAY_S, traffic=traffic, load=load)

    return check


@pytest.mark.needs(hosts=8)
def test_a_busy_job_is_silent(silent):
    """Another job's burst beside an all-to-all that fills its links alarms nobody in 40 iterations."""
    silent("all_to_all", 0.3, 40, ((burst_job, 20),))


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("traffic", TRAFFICS)
@pytest.mark.parametrize("load", LOADS)
def test_twenty_thousand_busy_steps(silent, traffic, load):
    """The same over 20,000 iterations on six fabrics: a shard is 280 of a traffic and a load on one of them."""
    silent(traffic, load, STEPS, VISITS)
