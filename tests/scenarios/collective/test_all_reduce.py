"""A ring all-reduce over RC connections with planned paths: exact, at line rate, on the links it was told to use."""

import pytest

from c4bench.control.switches import carried_bytes
from c4bench.model.measurement import Clock
from c4bench.units import payload_bound
from c4bench.workload.jobs import job, place

SIZE_BYTES = 16 << 20
OPERATIONS = 3
WARMUP = 1


@pytest.mark.needs(hosts=8)
@pytest.mark.usefixtures("atlas")
def test_ring_is_exact_and_at_line_rate(cluster, rdma_hosts, switches, measure):
    """Every element on every rank is exact, the ring runs at the link's rate, each connection on its planned path."""
    hosts = place(rdma_hosts[:8])
    before = switches.ports()
    spec = job("ring", "bandwidth", hosts, seed=1, size_bytes=SIZE_BYTES, operations=OPERATIONS, warmup=WARMUP)
    results = cluster.results(cluster.start(spec), "all_reduce", 120.0)
    planned = cluster.placed(spec.id)
    cluster.stop(spec.id)
    carried = carried_bytes(before, switches.ports())

    checked = sum(result["checked"] for result in results)
    assert checked == len(hosts) * (OPERATIONS + WARMUP) * SIZE_BYTES // 4
    measure(
        "all_reduce.exact_fraction", sum(result["exact"] for result in results) / checked, equals=1, clock=Clock.NONE
    )
    fraction = bus_bandwidth_bps(results, len(hosts)) / payload_bound(hosts[0].nics[0].rate_bps)
    measure("all_reduce.busbw_fraction", fraction, at_least=0.98, hosts=8, nics=1, bytes=SIZE_BYTES)
    if switches.any:
        measure("paths.as_planned_fraction", as_planned(planned, carried, len(hosts)), equals=1, clock=Clock.NONE)


@pytest.mark.needs(hosts=2)
def test_corrupted_element_is_noticed(cluster, rdma_hosts):
    """The check of every element notices when a single one is changed on purpose, on one rank, after the sum."""
    hosts = rdma_hosts[:2]
    spec = job("corrupt", "bandwidth", hosts, seed=1, size_bytes=64 << 10, operations=1, warmup=0, corrupt=True)
    results = cluster.results(cluster.start(spec), "all_reduce", 60.0)
    cluster.stop(spec.id)
    assert [result["checked"] - result["exact"] for result in results] == [1, 0]


def bus_bandwidth_bps(results, ranks):
    """Bus bandwidth as nccl-tests defines it, 2(n-1)/n x bytes / time, over the span of all timed operations."""
    began = max(result["spans"][0][0] for result in results)
    ended = max(result["spans"][-1][1] for result in results)
    operations = len(results[0]["spans"])
    return 2 * (ranks - 1) / ranks * SIZE_BYTES * 8 * operations / (ended - began)


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
