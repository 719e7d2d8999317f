"""C4D names the NIC that pauses its switch's port, by the time for which its frames stop it.

A fabric with flow control is needed: `--c4-topology tests/scenarios/faults/pausing.yml`.
"""

import time

import pytest

from c4bench.model.diagnosis import Cause
from c4bench.model.measurement import Clock

HEALTHY_S, PATIENCE_S = 2.0, 6.0


@pytest.fixture(autouse=True)
def _pausing(hosts):
    """Skips before anything is opened, so that scenarios after these run as if these did not exist."""
    if not all(nic.dscp for host in hosts for nic in host.nics):
        pytest.skip("no-pfc: links have no flow control; try --c4-topology tests/scenarios/faults/pausing.yml")


@pytest.mark.needs("disruptive", "root", hosts=8)
@pytest.mark.nightly
@pytest.mark.parametrize("duty", [0.75, 1.0])
def test_a_storm_is_named(job, rdma_hosts, inject, c4d, measure, duty):  # noqa: ARG001
    """Transfers that a storm makes slow, or stops, are its NIC's fault, by its own counters."""
    time.sleep(HEALTHY_S)
    with inject("nic.pause_storm", host=rdma_hosts[5].name, nic=0, duty=duty) as fault:
        found = c4d.wait(PATIENCE_S)
    named = (found.component, found.cause) == (fault.target, Cause.PAUSE_STORM)
    measure("c4d.correct_fraction", float(named), equals=1, clock=Clock.NONE, fault="nic.pause_storm", duty=duty)
    measure(
        "c4d.alarm_s", found.alarmed_s - fault.observed_s, unit="s", at_most=2.0, fault="nic.pause_storm", duty=duty
    )
    assert named, (str(found.component), found.cause, found.evidence)


@pytest.mark.nightly
@pytest.mark.needs("disruptive", "root", hosts=8)
def test_what_short_pauses_make_slow_is_their_nics(job, rdma_hosts, inject, cluster, measure):
    """A NIC that pauses its port for 0.1 to 10 ms at random, a third of the time, is named for that if it is named."""
    time.sleep(HEALTHY_S)
    pauses = {"shortest_s": 0.0001, "longest_s": 0.01, "duty": 0.33}
    with inject("nic.pause_storm", host=rdma_hosts[5].name, nic=0, **pauses):
        time.sleep(PATIENCE_S)
        found = cluster.diagnoses(job.id)
    wrong = [one for one in found if one.cause is not Cause.PAUSE_STORM]
    measure("pfc.false_findings", len(wrong), at_most=0, clock=Clock.NONE)
    assert not wrong, [f"{one.component}: {one.evidence}" for one in wrong]
