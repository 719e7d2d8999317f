"""C4D on ranks with a GPU each: what is slow inside a host and what is slow at its NICs are told apart."""

import random

import pytest

from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.measurement import Clock
from c4bench.workload.jobs import gpu_job

PATIENCE_S = 15.0
# Nobody has tuned anything on what these draw.
SEEDS = range(62001, 62041)
FAULTS = {
    "nvlink.rate": Syndrome.COMMUNICATION_SLOW,
    "nvlink.down": Syndrome.COMMUNICATION_HANG,
    "nic.rate": Syndrome.COMMUNICATION_SLOW,
    "gpu.clock": Syndrome.NON_COMMUNICATION_SLOW,
}


@pytest.fixture
def job(request, cluster, rdma_hosts, run_directory):
    """The job that faults are injected into, with a rank for each GPU."""
    if len(rdma_hosts[0].gpus) < 2:
        pytest.skip("no-gpus: the inventory states fewer than two GPUs a host; state c4.gpus")
    sizes = {"gradient_bytes": 1 << 20, "token_bytes": 1 << 20, "compute_s": 0.04}
    spec = gpu_job(request.node.name, "training", rdma_hosts, len(rdma_hosts[0].gpus), seed=1, **sizes)
    running = cluster.start(spec)
    try:
        cluster.results(running, "ready", 120.0)
        yield spec
    finally:
        run_directory.save_telemetry(spec.id, cluster.recording(spec.id))
        cluster.stop(spec.id)


@pytest.mark.nightly
@pytest.mark.needs("disruptive", "root", hosts=2)
@pytest.mark.parametrize("seed", SEEDS)
def test_inside_and_outside_are_told_apart(job, rdma_hosts, inject, c4d, measure, seed):
    """A slow or dead link of a GPU, a slow NIC, and a slow GPU are each named with the side, wherever they are."""
    draw = random.Random(seed)
    fault, host = draw.choice(sorted(FAULTS)), draw.choice(rdma_hosts)
    number, direction = draw.randrange(len(host.gpus)), draw.choice(("tx", "rx"))
    place = f"{host.name}/{number}" if fault == "nic.rate" else f"{host.name}/gpu{number}"
    asked = {"fraction": 0.1, "direction": direction} if fault.endswith(".rate") else {}
    c4d.learn_baseline()
    with inject(fault, at=place, **asked) as applied:
        found = c4d.wait(PATIENCE_S)
    inside, outside = fault.startswith("nvlink"), fault == "nic.rate"
    right = {"gpu": inside, "nic": outside, "path": False}.get(found.component.kind, not inside and not outside)
    # A slow GPU is its rank, which has another name.
    rank = Component("rank", f"{job.id}:{rdma_hosts.index(host) * len(host.gpus) + number}")
    expected = rank if fault == "gpu.clock" else applied.target
    exact = (found.syndrome, found.component) == (FAULTS[fault], expected)
    measure("c4d.inside_told_fraction", float(right), equals=1, clock=Clock.NONE, fault=fault)
    measure("c4d.gpu_host_named_fraction", float(exact), clock=Clock.NONE, fault=fault)
