"""Collectives over RC connections with planned paths are exact, at line rate, and use the planned links."""

import pytest

from c4bench.bench.figures import bus_bandwidth_bps
from c4bench.control.paths.switches import carried_bytes
from c4bench.model.measurement import Clock
from c4bench.units import payload_bound
from c4bench.workload.jobs import job, place

SIZE_BYTES = 16 << 20
OPERATIONS = 2
WARMUP = 1
TIMED = {"size_bytes": SIZE_BYTES, "operations": OPERATIONS, "warmup": WARMUP, "back_to_back": True}
# What pipelining cannot hide: the first and the last piece's way.
AT_LEAST = {"all_gather": 0.98, "reduce_scatter": 0.98}


@pytest.mark.needs(hosts=8)
@pytest.mark.usefixtures("atlas")
def test_ring_is_exact_and_at_line_rate(cluster, rdma_hosts, switches, measure):
    """Every element on every rank is exact, the ring runs at line rate, and each connection uses its planned path."""
    hosts = place(rdma_hosts[:8])
    before = switches.ports()
    spec = job("ring", "bandwidth", hosts, seed=1, **TIMED)
    results = cluster.results(cluster.start(spec), "all_reduce", 120.0)
    planned = cluster.placed(spec.id)
    cluster.stop(spec.id)
    carried = carried_bytes(before, switches.ports())

    checked = sum(result["checked"] for result in results)
    assert checked == len(hosts) * (OPERATIONS + WARMUP) * SIZE_BYTES // 4
    measure(
        "all_reduce.exact_fraction", sum(result["exact"] for result in results) / checked, equals=1, clock=Clock.NONE
    )
    fraction = bus_bandwidth_bps("all_reduce", SIZE_BYTES, results) / bound_bps(hosts[0])
    measure("all_reduce.busbw_fraction", fraction, at_least=0.985, **labels(hosts))
    if switches.any:
        measure("paths.as_planned_fraction", as_planned(planned, carried, len(hosts)), equals=1, clock=Clock.NONE)


@pytest.mark.needs(hosts=8)
@pytest.mark.usefixtures("atlas")
@pytest.mark.parametrize("collective", AT_LEAST)
def test_bus_bandwidth(cluster, rdma_hosts, measure, collective):
    """Reduce-scatter and all-gather are exact too, and reach nearly the same bandwidth."""
    hosts = place(rdma_hosts[:8])
    spec = job(f"busbw-{collective}", "bandwidth", hosts, seed=1, collective=collective, **TIMED)
    results = cluster.results(cluster.start(spec), collective, 120.0)
    cluster.stop(spec.id)
    assert sum(result["exact"] for result in results) == sum(result["checked"] for result in results) > 0
    fraction = bus_bandwidth_bps(collective, SIZE_BYTES, results) / bound_bps(hosts[0])
    measure(f"{collective}.busbw_fraction", fraction, at_least=AT_LEAST[collective], **labels(hosts))


@pytest.mark.needs(hosts=4)
def test_all_to_all_under_one_switch(cluster, rdma_hosts, atlas, measure):
    """All-to-all leaves no link idle below a single switch, where every pair has its own path."""
    hosts = below_one_switch(rdma_hosts, atlas)
    if len(hosts) < 4:
        pytest.skip(f"no-shared-switch: at most {len(hosts)} hosts have all their NICs below the same switches")
    spec = job("busbw-all_to_all", "bandwidth", hosts, seed=1, collective="all_to_all", **TIMED)
    results = cluster.results(cluster.start(spec), "all_to_all", 120.0)
    cluster.stop(spec.id)
    assert sum(result["exact"] for result in results) == sum(result["checked"] for result in results) > 0
    fraction = bus_bandwidth_bps("all_to_all", SIZE_BYTES, results) / bound_bps(hosts[0])
    measure("all_to_all.busbw_fraction", fraction, at_least=0.95, **labels(hosts))


@pytest.mark.needs(hosts=2)
def test_corrupted_element_is_noticed(cluster, rdma_hosts):
    """The check detects a single element changed on purpose, on one rank, after the sum."""
    hosts = rdma_hosts[:2]
    spec = job("corrupt", "bandwidth", hosts, seed=1, size_bytes=64 << 10, operations=1, warmup=0, corrupt=True)
    results = cluster.results(cluster.start(spec), "all_reduce", 60.0)
    cluster.stop(spec.id)
    assert [result["checked"] - result["exact"] for result in results] == [1, 0]


def below_one_switch(hosts, atlas):
    """The first of the hosts, and the others that share its first switch, NIC by NIC."""
    first = hosts[0]

    def near(host):
        pairs = zip(first.nics, host.nics, strict=True)
        return all(len(path.hops) <= 2 for own, other in pairs for path in atlas.paths(own.name, other.name))

    return [first, *(host for host in hosts[1:] if near(host))]


def bound_bps(host):
    """Payload that all NICs of a host can carry."""
    return sum(payload_bound(nic.rate_bps) for nic in host.nics)


def labels(hosts):
    """What a bus bandwidth was measured over."""
    return {"hosts": len(hosts), "nics": len(hosts[0].nics), "bytes": SIZE_BYTES, "rate": hosts[0].nics[0].rate_bps}


def as_planned(planned, carried, ranks):
    """The share of connections whose every switch port saw the bytes of exactly the connections planned through it."""
    flow_bytes = 2 * (ranks - 1) / ranks * SIZE_BYTES * (OPERATIONS + WARMUP)
    expected = dict.fromkeys(carried, 0.0)
    for path in planned.values():
        for hop in path.hops:
            if hop in expected:
                expected[hop] += flow_bytes
    # Headers add 1.4 %, acknowledgements of the other direction about 1 %; a flow on a wrong link is 100 % off.
    near = {hop for hop, count in carried.items() if abs(count - expected[hop] * 1.0142) <= 0.03 * flow_bytes}
    right = [path for path in planned.values() if all(hop in near for hop in path.hops if hop in expected)]
    return len(right) / len(planned)
