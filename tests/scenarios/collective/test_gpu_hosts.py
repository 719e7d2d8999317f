"""Ranks that have a GPU each: collectives through all GPUs and NICs of their hosts are exact, and near their bounds."""

import pytest

from c4bench.bench.figures import bus_bandwidth_bps
from c4bench.cost.gpu_hosts import ring_bound_bps
from c4bench.model.measurement import Clock
from c4bench.units import payload_bound
from c4bench.workload.jobs import gpu_job

MANY_BYTES = 32 << 20
FEW_BYTES = 4 << 20


@pytest.fixture
def gpu_hosts(rdma_hosts):
    """Hosts with several GPUs each."""
    if len(rdma_hosts[0].gpus) < 2:
        pytest.skip("no-gpus: the inventory states fewer than two GPUs a host; state c4.gpus")
    return rdma_hosts


def results_of(cluster, hosts, collective, size_bytes, **parameters):
    """What the ranks of a job report that measures a collective with a rank for each GPU."""
    name = f"gpus-{collective}".replace("_", "-")
    spec = gpu_job(
        name,
        "bandwidth",
        hosts,
        len(hosts[0].gpus),
        seed=1,
        collective=collective,
        size_bytes=size_bytes,
        back_to_back=True,
        paths="ecmp",
        **parameters,
    )
    try:
        return cluster.results(cluster.start(spec), collective, 300.0)
    finally:
        cluster.stop(spec.id)


def exact_fraction(results):
    """The share of elements that are as expected."""
    return sum(result["exact"] for result in results) / sum(result["checked"] for result in results)


def test_all_reduce_is_exact(cluster, gpu_hosts, measure):
    """Every element is exact on every rank, through all GPUs of a host and each of its NICs."""
    results = results_of(cluster, gpu_hosts, "all_reduce", FEW_BYTES, operations=1, warmup=0)
    measure("gpu_host.exact_fraction", exact_fraction(results), equals=1, clock=Clock.NONE, **labels(gpu_hosts))


@pytest.mark.nightly
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_rings_reach_their_bound(cluster, gpu_hosts, measure, collective):
    """A ring for each NIC through all GPUs of the hosts has nearly the bandwidth that NICs and the inside allow."""
    results = results_of(cluster, gpu_hosts, collective, MANY_BYTES, operations=2, warmup=1)
    assert exact_fraction(results) == 1.0
    first = gpu_hosts[0]
    bound = ring_bound_bps(
        [payload_bound(nic.rate_bps) for nic in first.nics], first.inside.rate_bps, len(gpu_hosts), len(first.gpus)
    )
    fraction = bus_bandwidth_bps(collective, MANY_BYTES, results) / bound
    measure(
        "gpu_host.busbw_fraction", fraction, at_least=0.97, algorithm="ring", collective=collective, **labels(gpu_hosts)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("collective", ["all_to_all", "broadcast", "reduce"])
def test_other_collectives_are_exact(cluster, gpu_hosts, collective):
    """Every element is exact, inside hosts and between them."""
    assert exact_fraction(results_of(cluster, gpu_hosts, collective, FEW_BYTES, operations=1, warmup=0)) == 1.0


def labels(hosts):
    """What a figure was measured over."""
    return {"hosts": len(hosts), "ranks": len(hosts) * len(hosts[0].gpus), "rate": hosts[0].nics[0].rate_bps}
