"""Priority flow control: what is lossless waits and is not dropped, and a NIC that pauses without end is seen to.

A fabric with flow control is needed: `--c4-topology tests/scenarios/faults/pausing.yml`.
"""

import re
import time

import pytest
from test_catalogue import PAUSING
from test_witnesses import hurts_icmp, watch  # noqa: F401  (a fixture)

from c4bench.lab.guest.flow_control import counts
from c4bench.model.measurement import Clock
from c4bench.model.step import RankGroup, StepOp
from c4bench.workload.jobs import job as job_of

pytestmark = pytest.mark.needs("disruptive", "root")
READY_S, BUSY_S = 60.0, 0.1
PRIORITY = 3
# Each pair's first rank sends to its second.
INCAST = (StepOp("send", 1 << 18, 0.0, RankGroup("sender", 2)),)
FILE = "/proc/net/pfc"
# What mlx5 calls the counts of a port in the file.
OF_MLX5 = {
    "tx_pause": f"tx_prio{PRIORITY}_pause",
    "rx_pause": f"rx_prio{PRIORITY}_pause",
    "dropped": f"tx_prio{PRIORITY}_discards",
}


@pytest.fixture(autouse=True)
def lossless(inventory, nic_hosts, on):
    """Where priority 3 is lossless: every switch, and every host with NICs."""
    places = [*inventory.switches, *(host.name for host in nic_hosts)]
    if not on(places[0], f"cat {FILE} 2>/dev/null || true"):
        pytest.skip("no-pfc: the switches have no flow control; try --c4-topology tests/scenarios/faults/pausing.yml")
    return places


@pytest.fixture
def counted(lossless, nic_hosts, on):
    """What all ports have counted of the lossless priority: their sums by name."""
    netdevs = {host.name: [nic.netdev for nic in host.nics] for host in nic_hosts}

    def of(place):
        if ports := counts(on(place, f"cat {FILE}")).values():
            return [{name: getattr(port[PRIORITY], name) for name in OF_MLX5} for port in ports]
        # These NICs have their ports to themselves, as hardware has.
        printed = [on(place, f"ethtool -S {netdev}") for netdev in netdevs[place]]
        rows = [dict(re.findall(r"(\w+): (\d+)", text)) for text in printed]
        return [{name: int(row[its]) for name, its in OF_MLX5.items()} for row in rows]

    def read():
        ports = [port for place in lossless for port in of(place)]
        return {name: sum(port[name] for port in ports) for name in OF_MLX5}

    return read


@pytest.fixture
def incast(cluster, nic_hosts, counted):
    """Four hosts send to a fifth for a while; what the ports have counted when that is over."""

    def run(name):
        receiver, *senders = nic_hosts[:5]
        hosts = [host for sender in senders for host in (sender, receiver)]
        before = counted()
        ranks = cluster.start(job_of(name, "groups", hosts, seed=1, step=INCAST))
        cluster.results(ranks, "ready", READY_S)
        time.sleep(BUSY_S)
        cluster.stop(name)
        time.sleep(BUSY_S)  # what is under way arrives
        return {kind: value - before[kind] for kind, value in counted().items()}

    return run


@pytest.fixture
def lossy(lossless, as_root):
    """Turn flow control off at every port, until the scenario ends."""

    def set_to(mask):
        for place in lossless:
            as_root(place, f"for port in $(cut -d' ' -f1 {FILE} | uniq); do echo $port lossless {mask} > {FILE}; done")

    yield lambda: set_to(0)
    set_to(1 << PRIORITY)


@pytest.mark.nightly
@pytest.mark.needs(hosts=5)
def test_an_incast_loses_nothing_where_ports_pause(incast, lossy, measure):
    """Four NICs send to one: with flow control ports pause them and no packet is lost, without it many are."""
    found = incast("lossless")
    measure("pfc.dropped", found["dropped"], at_most=0, clock=Clock.NONE)
    assert found["tx_pause"] == found["rx_pause"] > 0, "every frame arrives"
    lossy()
    found = incast("lossy")
    assert found["dropped"] > 0
    assert found["tx_pause"] == 0


def test_a_storm_is_witnessed_and_ends(injector, nic_hosts, place, measure, healed, counted):
    """A storm is seen by packets of the NIC's own priority, its frames arrive, and data passes again when it ends."""
    (name,), before = PAUSING, counted()
    with injector.apply_at(name, place(f"{nic_hosts[0].name}/0"), {}, lease_s=20.0) as fault:
        measure("faults.witnessed_fraction", float(fault.witness.seen), equals=1, clock=Clock.NONE, fault=name)
        # The only NIC of a host is probed by the kernel's echo requests: no other is there to send to it.
        assert fault.witness.plane == ("rdma" if len(nic_hosts[0].nics) > 1 else "ip")
        assert (fault.witness.during["late"], fault.witness.during["late_other"]) == (1.0, 0.0)
    sent = {kind: value - before[kind] for kind, value in counted().items()}
    assert sent["rx_pause"] == sent["tx_pause"] > 0
    measure("faults.healed_fraction", float(healed()["recovered"] is True), equals=1, clock=Clock.NONE, fault=name)


@pytest.mark.nightly
def test_no_storm_is_seen_that_is_not_there(nic_hosts, place, watch):  # noqa: F811
    """Where nothing is done, where only echo requests of the kernel are lost, and where nothing obeys the frames."""
    target = place(f"{nic_hosts[0].name}/0")
    watch(PAUSING, target)
    watch(PAUSING, target, **hurts_icmp(nic_hosts[0].nics[0].netdev))


def test_a_switch_gives_a_paused_queue_up(injector, nic_hosts, place, on, as_root, inventory, measure):
    """A port's watchdog drops what a storm has stopped for 50 ms, and sends again when the storm is over."""
    nic = nic_hosts[0].nics[0]
    switch, port = next(
        (switch, line.split()[2])
        for switch in inventory.switches
        for line in on(switch, "ip neighbour show").splitlines()
        if line.split()[0] == nic.address
    )

    def set_to(times_us):
        as_root(switch, "; ".join(f"echo {port} {name} {value} > {FILE}" for name, value in times_us.items()))

    def state():
        return counts(on(switch, f"cat {FILE}"))[port][PRIORITY]

    settings = on(switch, f"grep '^{port} settings' {FILE}").split()
    usual_us = {name: settings[settings.index(name) + 1] for name in ("detect_us", "restore_us")}
    before = state()
    set_to(dict.fromkeys(usual_us, 50_000))
    try:
        with injector.apply_at(*PAUSING, place(nic.name), {}, lease_s=20.0):
            stormy = state()
            assert (stormy.storm, stormy.detected - before.detected) == (1, 1)
            assert stormy.dropped > before.dropped
        time.sleep(0.1)
        assert (state().storm, state().restored - before.restored) == (0, 1)
    finally:
        set_to(usual_us)
    measure("pfc.watchdog_detected", stormy.detected - before.detected, equals=1, clock=Clock.NONE)
