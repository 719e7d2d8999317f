"""Hosts with a NIC in each of two planes: both NICs receive the same amount, with ECMP and with the plan."""

from collections import Counter

import pytest

from c4bench.bench.bounds import bus_bandwidth_bps
from c4bench.units import payload_bound
from c4bench.workload.jobs import job, place

SIZE_BYTES = 16 << 20


@pytest.mark.needs(hosts=8)
@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("paths", ["ecmp", "planned"])
def test_both_ports_receive_alike(cluster, rdma_hosts, measure, paths):
    """In a ring over hosts with a NIC in each of two planes, neither receives 2 % more; planned, both are full."""
    hosts = place(rdma_hosts[:8])
    if len(hosts[0].nics) != 2:
        pytest.skip("one-plane: these hosts do not have two NICs each")
    spec = job(
        f"planes-{paths}",
        "bandwidth",
        hosts,
        seed=1,
        size_bytes=SIZE_BYTES,
        operations=3,
        back_to_back=True,
        paths=paths,
    )
    running = cluster.start(spec)
    results = cluster.results(running, "all_reduce", 120.0)
    carried = received(cluster.windows(spec.id))
    cluster.stop(spec.id)
    assert sum(result["exact"] for result in results) == sum(result["checked"] for result in results) > 0
    assert all(carried[nic.name] for host in hosts for nic in host.nics), carried
    skews = [
        abs(first - second) / (first + second) * 2
        for first, second in ((carried[nic.name] for nic in host.nics) for host in hosts)
    ]
    measure("c4p.plane_skew", max(skews), at_most=0.02, paths=paths)
    bound_bps = sum(payload_bound(nic.rate_bps) for nic in hosts[0].nics)
    fraction = bus_bandwidth_bps("all_reduce", SIZE_BYTES, results) / bound_bps
    labels = {"paths": paths, "jobs": 1, "oversubscription": "1:1", "state": "healthy"}
    measure("c4p.optimum_fraction", fraction, at_least=0.97 if paths == "planned" else None, **labels)


def received(windows):
    """Messages that have arrived at every NIC, as counted by its host; all messages of a ring have one size."""
    newest = {}
    for window in windows:
        for record in window.arrivals:
            newest[record.comm, record.source, record.destination, record.qp] = record
    messages = Counter()
    for record in newest.values():
        messages[record.destination] += record.messages
    return messages
