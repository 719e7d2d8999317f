"""Jobs with a rank for each GPU of a host, and hosts whose GPUs do not fit."""

import msgspec
import pytest

from c4bench.errors import UsageError
from c4bench.model.fabric import Host, Inside, Nic
from c4bench.model.telemetry import Gpu, Member
from c4bench.workload.jobs import gpu_job, job

FAST = Inside(9e11, 2e-6)


def host(name, gpus, nics):
    """A host with NICs of these indices, and GPUs next to some of them."""
    devices = tuple(Nic(name, index, f"r{index}", f"n{index}", "10.0.0.1", 25e9) for index in nics)
    return Host(name, "10.0.0.9", devices, gpus=gpus, inside=FAST)


def test_each_rank_has_a_gpu_and_all_nics_of_its_host():
    """Ranks of a host follow each other, and a GPU says which of the rank's NICs is next to it."""
    spec = gpu_job("dp", "steps", [host("a", (2, 5), (2, 5)), host("b", (2, 5), (2, 5))], 2, seed=1)
    assert [(member.rank, member.host, member.gpu) for member in spec.members] == [
        (0, "a", Gpu(0, 0)),
        (1, "a", Gpu(1, 1)),
        (2, "b", Gpu(0, 0)),
        (3, "b", Gpu(1, 1)),
    ]
    assert spec.members[2].nics == ("b/2", "b/5")
    assert [nic.name for nic in spec.nics] == ["a/2", "a/5", "b/2", "b/5"]
    assert spec.inside == FAST


def test_fewer_ranks_than_gpus_are_spread_and_gpus_may_share_a_nic():
    """Two ranks of four GPUs have the first and the third; two GPUs may have the same nearest NIC."""
    spec = gpu_job("dp", "steps", [host(name, (0, 0, 1, 1), (0, 1)) for name in "ab"], 2, seed=1)
    assert [member.gpu for member in spec.members] == [Gpu(0, 0), Gpu(2, 1)] * 2


@pytest.mark.parametrize(
    ("hosts", "ranks", "words"),
    [
        ([host("a", (0, 1), (0, 1)), host("b", (0, 1), (0, 1))], 3, "host a has 2 GPUs"),
        ([host("a", (), (0, 1))], 2, "host a has 0 GPUs"),
        ([host("a", (0, -1), (0, 1))], 2, r"GPU 1 of host a has no NIC; .*c4.gpus\[1\].nic"),
        ([host("a", (0, 7), (0, 1))], 2, "GPU 1 of host a has no NIC"),
        ([host("a", (0, 1), (0, 1)), host("b", (1, 0), (0, 1))], 2, "a and b have unlike GPUs"),
        ([host("a", (0, 1), (0, 1, 2)), host("b", (0, 1), (0, 1))], 2, "b has no NIC 2, and a has"),
        ([host("a", (0, 1), (0, 1)), host("b", (0, 1), (0, 1, 2))], 2, "a has no NIC 2, and b has"),
        ([host("a", (0, 1), (0, 1))] * 2, 2, "host a is given twice"),
    ],
)
def test_hosts_that_do_not_fit_are_refused(hosts, ranks, words):
    """The error is one line that names the host and what is missing, before anything starts."""
    with pytest.raises(UsageError, match=words) as refused:
        gpu_job("dp", "steps", hosts, ranks, seed=1)
    assert "\n" not in str(refused.value)


def test_a_job_without_gpus_has_the_same_bytes():
    """Where ranks have no GPU of their own, a job's message has nothing about GPUs."""
    spec = job("dp", "steps", [host("a", (), (0,))], seed=1)
    assert b"gpu" not in msgspec.msgpack.encode(spec)
    assert b"inside" not in msgspec.msgpack.encode(spec)
    assert set(msgspec.to_builtins(Member(0, "a", ("a/0",)))) == {"rank", "host", "nics", "seat"}
