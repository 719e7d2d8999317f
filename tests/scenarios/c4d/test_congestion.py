"""Jobs that fill a link slow each other down, and C4D says congestion; a link that is slow is named all the same.

A fabric whose switches mark packets is needed: `--c4-topology tests/scenarios/c4d/thin-uplink.yml`, where jobs share an
uplink, or `tests/scenarios/c4d/marking.yml`, where each has its own.
"""

import time

import pytest

from c4bench.model.benign import Benign
from c4bench.model.event import SlowdownExplained
from c4bench.model.measurement import Clock
from c4bench.model.step import StepOp
from c4bench.model.window import Window
from c4bench.workload.jobs import job as job_of

HEALTHY_S, PATIENCE_S, READY_S = 2.5, 6.0, 60.0
OURS, THEIRS = (StepOp("all_reduce", 4 << 20, 0.01),), (StepOp("all_reduce", 8 << 20, 0.0),)


@pytest.fixture(scope="module", autouse=True)
def _marking(hosts):
    """Skips before anything is opened, so that scenarios after these run as if these did not exist."""
    if not all(nic.ecn for host in hosts for nic in host.nics):
        pytest.skip("no-ecn: the inventory does not say that packets may be marked (c4.nics[].ecn)")


@pytest.fixture
def start(cluster, atlas, run_directory):  # noqa: ARG001 (planned paths)
    """Start a job of these steps and wait until it runs; its recording is kept."""
    started = []

    def launch(name, hosts, steps):
        running = cluster.start(job_of(name, "groups", hosts, seed=1, step=steps))
        started.append(name)
        cluster.results(running, "ready", READY_S)

    yield launch
    for name in started:
        run_directory.save_telemetry(name, cluster.recording(name))
        cluster.stop(name)


def across(hosts, first):
    """Two hosts under each leaf, from this place on: one of a ring's four connections goes up from each leaf."""
    half = len(hosts) // 2
    return [hosts[first], hosts[first + 1], hosts[half + first], hosts[half + first + 1]]


@pytest.mark.needs(hosts=8)
def test_a_neighbours_burst_is_congestion(start, ports, cluster, rdma_hosts, measure):
    """Another job fills the uplink that ours crosses: congestion is said, and no component is named."""
    if ports.shared:
        pytest.skip("several-uplinks: jobs can keep out of each other's way")
    start("ours", across(rdma_hosts, 0), OURS)
    time.sleep(HEALTHY_S)
    start("theirs", across(rdma_hosts, 2), THEIRS)
    said = cluster.wait_event(lambda event: isinstance(event, SlowdownExplained), PATIENCE_S)
    found = [*cluster.diagnoses("ours"), *cluster.diagnoses("theirs")]
    measure("congestion.false_alarms", len(found), at_most=0, clock=Clock.NONE)
    assert not found, [f"{one.syndrome}: {one.component}; {one.evidence}" for one in found]
    assert said is not None
    assert said.slowdown.reason is Benign.CONGESTION


@pytest.mark.needs(hosts=8)
def test_a_slow_link_that_marks_is_named(ports, job, cluster, inject, c4d, measure):
    """An uplink carries a quarter of its rate, and its queue marks: it is a suspect, and nothing is congestion."""
    if not ports.shared:
        pytest.skip("one-uplink: its two directions are slow together, since acknowledgements wait with data")
    c4d.learn_baseline(HEALTHY_S)
    before, since = marks(cluster.recording(job.id)), len(cluster.events())
    with inject("link.rate", at="leaf0/up0", direction="tx", fraction=0.25):
        found = c4d.wait(PATIENCE_S)
    suspects = [suspect.name for suspect in (found.component, *found.alternatives) if suspect.kind == "link"]
    named = not ports.addresses["leaf0/up0"].isdisjoint(suspects)
    measure("congestion.slow_link_named_fraction", float(named), equals=1, clock=Clock.NONE)
    assert named, suspects
    assert not [event for event in cluster.events()[since:] if isinstance(event, SlowdownExplained)]
    assert marks(cluster.recording(job.id)) > before


def marks(recording):
    """How many packets have come marked to the NICs of a job's hosts, by their newest windows."""
    newest = {nic.nic: nic.ecn_marked for record in recording if isinstance(record, Window) for nic in record.nics}
    return sum(newest.values())
