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


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("traffic", TRAFFICS)
@pytest.mark.parametrize("load", LOADS)
def test_twenty_thousand_busy_steps(soak, rdma_hosts, pytestconfig, traffic, load):
    """A job full of unrest, beside others that burst, meet at a NIC or send a little all the time, alarms nobody.

    On six fabrics together it has 20,000 iterations: a shard is 280 of a traffic and a load on one of them.
    """
    trial = healthy_trial(pytestconfig.option.c4_seed, traffic, load)
    others = [
        kind(f"{trial.name}-visit-{number}", rdma_hosts, seed=trial.draw + number, steps=stay)
        for number, (kind, stay) in enumerate(VISITS)
    ]
    beside = [job_beside(trial, rdma_hosts)] if trial.beside else []
    watched = busy_job(trial, rdma_hosts, unrest=True, steps=STEPS)
    soak(watched, others, STEPS, beside=beside, gap_s=AWAY_S, traffic=traffic, load=load)
