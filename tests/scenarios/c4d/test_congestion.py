"""Jobs that fill a link slow each other down, and C4D says congestion; what is slow beside that is named all the same.

A fabric whose switches mark packets is needed: `--c4-topology tests/scenarios/c4d/oversubscribed.yml`.
"""

import time

import pytest

from c4bench.model.benign import Benign
from c4bench.model.event import Diagnosed, SlowdownExplained
from c4bench.model.measurement import Clock
from c4bench.model.step import RankGroup, StepOp
from c4bench.model.window import Window
from c4bench.units import parse_rate
from c4bench.workload.jobs import job as job_of
from c4bench.workload.jobs import place

OVERSUBSCRIBED = "--c4-topology tests/scenarios/c4d/oversubscribed.yml"
HEALTHY_S, PATIENCE_S, READY_S = 2.5, 6.0, 60.0
# What is congested stays so for this long without a finding.
CALM_S = 1.0
RING = (StepOp("all_reduce", 1 << 18, 0.01),)
# A ring that sends all the time, and senders that each do to one receiver.
BURST = (StepOp("all_reduce", 1 << 19, 0.0),)
INCAST = (StepOp("send", 1 << 19, 0.0, RankGroup("sender", 2)),)


@pytest.fixture(scope="module", autouse=True)
def _marking(hosts):
    """Skips before anything is opened, so that scenarios after these run as if these did not exist."""
    if not all(nic.ecn for host in hosts for nic in host.nics):
        pytest.skip("no-ecn: the inventory does not say that packets may be marked (c4.nics[].ecn)")


@pytest.fixture
def thin_uplinks(ports, inventory):
    """Skips where a leaf's uplinks carry all that its NICs can send: where paths are planned, none is full."""
    leaf = ports.towards[0].partition("/")[0]
    rates = {f"{leaf}/{port}": parse_rate(rate) for port, rate in inventory.facts[leaf].rates.items()}
    up_bps, down_bps = (sum(rates.get(port, 0.0) for port in kind) for kind in (ports.across, ports.towards))
    if 0 < down_bps <= up_bps:
        pytest.skip(f"equal-links: the uplinks of {leaf} carry all that its NICs can send; try {OVERSUBSCRIBED}")


@pytest.fixture
def start(cluster, atlas, run_directory):  # noqa: ARG001 (planned paths)
    """Start a job of these steps and wait until it runs; its recording is kept."""
    started = []

    def launch(name, hosts, step):
        running = cluster.start(job_of(name, "groups", hosts, seed=1, step=step))
        started.append(name)
        cluster.results(running, "ready", READY_S)

    yield launch
    for name in started:
        run_directory.save_telemetry(name, cluster.recording(name))
        cluster.stop(name)


@pytest.fixture
def blamed(cluster, measure):
    """What has been named of these jobs, counted; all of it has one of `expected` among its suspects."""

    def check(*jobs, expected=frozenset()):
        found = [one for job in jobs for one in cluster.diagnoses(job)]
        wrong = [one for one in found if expected.isdisjoint(suspects(one))]
        measure("congestion.false_alarms", len(wrong), at_most=0, clock=Clock.NONE)
        assert not wrong, [f"{one.syndrome}: {one.component}; {one.evidence}" for one in wrong]
        return found

    return check


@pytest.fixture
def congestion(cluster):
    """Wait until congestion is said of a job; return the links that are full."""

    def wait(job):
        said = cluster.wait_event(
            lambda event: isinstance(event, SlowdownExplained) and event.slowdown.job == job, PATIENCE_S
        )
        assert said is not None
        assert said.slowdown.reason is Benign.CONGESTION
        return set(said.slowdown.links)

    return wait


@pytest.fixture
def slow_nic(cluster, inject, blamed, measure):
    """Have a host's NIC receive at a quarter of its rate: the job's first finding has it, and nothing else is named."""

    def check(job, host):
        with inject("nic.rate", host=host.name, nic=0, direction="rx", fraction=0.25):
            cluster.wait_event(lambda event: isinstance(event, Diagnosed) and event.diagnosis.job == job, PATIENCE_S)
            found = blamed(job, expected={host.nics[0].name})
        measure("congestion.slow_nic_named_fraction", float(bool(found)), equals=1, clock=Clock.NONE)

    return check


@pytest.mark.needs(hosts=8)
@pytest.mark.usefixtures("thin_uplinks")
def test_a_neighbours_burst_is_congestion(start, ports, rdma_hosts, congestion, blamed):
    """Another job fills the uplinks that ours crosses: these are said to be congested, and no component is named."""
    h = rdma_hosts
    start("burst", [h[0], h[1], h[4], h[5]], RING)
    time.sleep(HEALTHY_S)
    start("burst-others", place([h[2], h[3], h[6], h[7]]), BURST)
    full = congestion("burst")
    time.sleep(CALM_S)
    blamed("burst", "burst-others")
    assert full <= {address for port in ports.across for address in ports.addresses[port]}


@pytest.mark.needs(hosts=8)
def test_an_incast_is_congestion(start, rdma_hosts, congestion, blamed):
    """Others send to the NIC of one of our ranks, which then sends slowly, too: its switch's port is congested."""
    h = rdma_hosts
    start("incast", [h[0], h[1], *h[4:]], RING)
    time.sleep(HEALTHY_S)
    start("incast-others", [h[2], h[0], h[3], h[0]], INCAST)
    assert congestion("incast") == {h[0].nics[0].address}
    time.sleep(CALM_S)
    blamed("incast", "incast-others")


@pytest.mark.needs(hosts=8)
@pytest.mark.usefixtures("thin_uplinks")
def test_a_job_that_oversubscribes_its_uplinks_is_used_to_it(start, rdma_hosts, blamed, slow_nic):
    """A ring that crosses each time gets half its NICs' rate: nothing is said of that, and a slow NIC is named."""
    start("oversubscribed", place(rdma_hosts), RING)
    time.sleep(HEALTHY_S + CALM_S)
    blamed("oversubscribed")
    slow_nic("oversubscribed", rdma_hosts[5])


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_a_slow_link_that_marks_is_named(ports, atlas, job, cluster, inject, c4d, measure):  # noqa: ARG001
    """An uplink carries a quarter of its rate, and its queue marks: it is a suspect, and nothing is congestion."""
    time.sleep(HEALTHY_S)
    before, since = marks(cluster.recording(job.id)), len(cluster.events())
    with inject("link.rate", at="leaf0/up0", direction="tx", fraction=0.25):
        found = c4d.wait(PATIENCE_S)
    named = not ports.addresses["leaf0/up0"].isdisjoint(suspects(found))
    measure("congestion.slow_link_named_fraction", float(named), equals=1, clock=Clock.NONE)
    assert named, suspects(found)
    assert not [event for event in cluster.events()[since:] if isinstance(event, SlowdownExplained)]
    assert marks(cluster.recording(job.id)) > before


def suspects(diagnosis):
    """The names of all that may be to blame."""
    return {part.name for part in diagnosis.suspects}


def marks(recording):
    """How many packets have come marked to the NICs of a job's hosts, by their newest windows."""
    newest = {nic.nic: nic.ecn_marked for record in recording if isinstance(record, Window) for nic in record.nics}
    return sum(newest.values())
