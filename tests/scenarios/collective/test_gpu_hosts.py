"""All-reduces of hosts with a rank for each GPU are exact, and nearly as fast as NICs and the inside allow."""

import pytest

from c4bench.cost.all_reduce import ALL_REDUCES, GpuHosts
from c4bench.units import payload_bound
from c4bench.workload.jobs import gpu_job

SIZE_BYTES = 64 << 20
AT_LEAST = {"ring": 0.97, "tree": 0.95, "hierarchical": 0.97}


@pytest.mark.needs(hosts=2)
@pytest.mark.parametrize("algorithm", [pytest.param(name, marks=pytest.mark.nightly) for name in ALL_REDUCES])
def test_all_reduce_of_gpus_is_near_its_bound(cluster, rdma_hosts, measure, algorithm):
    """Every element on every rank is exact, and the time is near the least in which the algorithm's bytes can pass."""
    if not rdma_hosts[0].gpus:
        pytest.skip("no-gpus: this topology has no GPUs")
    host = rdma_hosts[0]
    timed = {"size_bytes": SIZE_BYTES, "operations": 2, "warmup": 1, "back_to_back": True}
    spec = gpu_job(f"gpus-{algorithm}", "bandwidth", rdma_hosts, len(host.gpus), seed=1, algorithm=algorithm, **timed)
    results = cluster.results(cluster.start(spec), "all_reduce", 240.0)
    cluster.stop(spec.id)
    assert sum(result["exact"] for result in results) == sum(result["checked"] for result in results) > 0
    shape = GpuHosts(len(rdma_hosts), len(host.gpus), payload_bound(host.nics[0].rate_bps), host.inside.rate_bps)
    # From the first rank's start to the last one's end, of both operations.
    took_s = max(result["spans"][-1][1] - result["spans"][0][0] for result in results)
    fraction = 2 * ALL_REDUCES[algorithm](shape).least_s(SIZE_BYTES, shape) / took_s
    labels = {"algorithm": algorithm, "hosts": shape.hosts, "ranks": shape.ranks}
    measure("gpu_host.busbw_fraction", fraction, at_least=AT_LEAST[algorithm], **labels)
