"""Collectives of hosts with a rank for each GPU are exact, and nearly as fast as NICs and the inside allow."""

import pytest

from c4bench.cost.all_reduce import ALL_REDUCES, GpuHosts, all_to_all
from c4bench.units import payload_bound
from c4bench.workload.jobs import gpu_job

SIZE_BYTES = 32 << 20
AT_LEAST = {"ring": 0.97, "tree": 0.95, "hierarchical": 0.97, "pxn": 0.93}
LOADS = {**ALL_REDUCES, "pxn": all_to_all}


@pytest.mark.nightly
@pytest.mark.needs(hosts=2)
@pytest.mark.parametrize("algorithm", LOADS)
def test_collectives_of_gpus_are_near_their_bounds(cluster, rdma_hosts, measure, algorithm):
    """Every element on every rank is exact, and the time is near the least in which the algorithm's bytes can pass."""
    host = rdma_hosts[0]
    if not host.gpus:
        pytest.skip("no-gpus: this topology has no GPUs")
    collective = "all_to_all" if algorithm == "pxn" else "all_reduce"
    options = {} if algorithm == "pxn" else {"algorithm": algorithm}
    # Rails have one path each.
    timed = {"size_bytes": SIZE_BYTES, "operations": 2, "warmup": 1, "collective": collective, "paths": "ecmp"}
    spec = gpu_job(
        f"gpus-{algorithm}", "bandwidth", rdma_hosts, len(host.gpus), seed=1, back_to_back=True, **timed, **options
    )
    results = cluster.results(cluster.start(spec), collective, 240.0)
    cluster.stop(spec.id)
    assert sum(result["exact"] for result in results) == sum(result["checked"] for result in results) > 0
    shape = GpuHosts(len(rdma_hosts), len(host.gpus), payload_bound(host.nics[0].rate_bps), host.inside.rate_bps)
    # From the end of one to the end of the next: ranks leave the barrier before the first one after another.
    first_s, second_s = (max(ended for _, ended in spans) for spans in zip(*(r["spans"] for r in results), strict=True))
    took_s = second_s - first_s
    fraction = LOADS[algorithm](shape).least_s(SIZE_BYTES, shape) / took_s
    labels = {"algorithm": algorithm, "hosts": shape.hosts, "ranks": shape.ranks}
    measure("gpu_host.busbw_fraction", fraction, at_least=AT_LEAST[algorithm], **labels)


@pytest.mark.needs(hosts=2)
@pytest.mark.parametrize(
    "collective",
    ["all_reduce", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("all_gather", "reduce_scatter"))],
)
def test_collectives_of_gpus_are_exact(cluster, rdma_hosts, measure, collective):
    """Small arrays pass through all GPUs of all hosts, and every element is exact on every rank."""
    if not rdma_hosts[0].gpus:
        pytest.skip("no-gpus: this topology has no GPUs")
    few = {"size_bytes": 4 << 20, "operations": 1, "warmup": 0, "collective": collective, "paths": "ecmp"}
    spec = gpu_job(f"exact-{collective}", "bandwidth", rdma_hosts, len(rdma_hosts[0].gpus), seed=1, **few)
    results = cluster.results(cluster.start(spec), collective, 120.0)
    cluster.stop(spec.id)
    exact, checked = (sum(result[name] for result in results) for name in ("exact", "checked"))
    measure("gpu_host.exact_fraction", exact / checked, equals=1, collective=collective, ranks=len(results))
