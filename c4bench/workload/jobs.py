"""Job descriptions for a set of hosts."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from c4bench.errors import UsageError
from c4bench.model.fabric import Host
from c4bench.model.step import RankGroup, StepOp
from c4bench.model.telemetry import Gpu, Member
from c4bench.wire.messages import JobSpec


def place(hosts: Sequence[Host]) -> list[Host]:
    """Order hosts so that neighbours communicate across the fabric: first half and second half alternate."""
    half = (len(hosts) + 1) // 2
    first, second = hosts[:half], hosts[half:]
    return [host for pair in zip(first, second, strict=False) for host in pair] + list(first[len(second) :])


def host_rank(spec: JobSpec, rank: int) -> int:
    """The number of a rank among the job's ranks on its host."""
    return sum(member.host == spec.members[rank].host for member in spec.members[:rank])


def job(identity: str, program: str, hosts: Sequence[Host], *, seed: int, **parameters: object) -> JobSpec:
    """A job with one rank on each of `hosts`, in that order, using all NICs; a host given twice has two ranks."""
    return JobSpec(
        id=identity,
        program=program,
        members=tuple(Member(rank, host.name, tuple(nic.name for nic in host.nics)) for rank, host in enumerate(hosts)),
        nics=tuple(dict.fromkeys(nic for host in hosts for nic in host.nics)),
        parameters=dict(parameters),
        seed=seed,
    )


def gpu_job(
    identity: str, program: str, hosts: Sequence[Host], ranks_per_host: int, *, seed: int, **parameters: object
) -> JobSpec:
    """A job whose ranks have a GPU each: those of a host follow each other, in the order of its GPUs.

    Raises UsageError for hosts whose GPUs do not fit that, or are not alike.
    """
    for problem in _gpu_problems(hosts, ranks_per_host):
        raise UsageError(f"{ranks_per_host} ranks per host: {problem}")
    spec = job(identity, program, [host for host in hosts for _ in range(ranks_per_host)], seed=seed, **parameters)
    nearest, places = hosts[0].gpus, {nic.index: place for place, nic in enumerate(hosts[0].nics)}
    used = range(0, len(nearest), len(nearest) // ranks_per_host)
    gpus = [Gpu(index, places[nearest[index]]) for _ in hosts for index in used]
    members = tuple(msgspec.structs.replace(member, gpu=gpu) for member, gpu in zip(spec.members, gpus, strict=True))
    return msgspec.structs.replace(spec, members=members, inside=hosts[0].inside)


def _gpu_problems(hosts: Sequence[Host], ranks_per_host: int) -> Iterator[str]:
    first = hosts[0]
    ours = {nic.index for nic in first.nics}
    for place, host in enumerate(hosts):
        name, indices = host.name, {nic.index for nic in host.nics}
        if ranks_per_host < 1 or not host.gpus or len(host.gpus) % ranks_per_host:
            yield f"host {name} has {len(host.gpus)} GPUs; give a number that divides them, or 1 and no GPUs"
        if alone := [gpu for gpu, nic in enumerate(host.gpus) if nic not in indices]:
            yield f"GPU {alone[0]} of host {name} has no NIC; state the nearest one in c4.gpus[{alone[0]}].nic"
        if name in {other.name for other in hosts[:place]}:
            yield f"host {name} is given twice; name it once"
        if (host.gpus, host.inside) != (first.gpus, first.inside):
            yield f"hosts {first.name} and {name} have unlike GPUs; use hosts with the same c4.gpus and c4.inside"
        if missing := sorted(ours ^ indices):
            without, other = (host, first) if missing[0] in ours else (first, host)
            yield f"host {without.name} has no NIC {missing[0]}, and {other.name} has; a rail needs it on every host"


def training_job(identity: str, hosts: Sequence[Host], *, seed: int) -> JobSpec:
    """The job that faults are injected into: short steps of computing, ring and all-to-all."""
    return job(
        identity,
        "training",
        place(hosts),
        seed=seed,
        gradient_bytes=1 << 20,
        token_bytes=1 << 20,
        compute_s=0.04,
    )


Traffic = Literal["ring", "groups", "all_to_all"]

_MIB = 1 << 20
# Two ranks on each host, from different groups.
_TENSOR, _DATA, _PIPELINE = RankGroup("tensor", 2), RankGroup("data", 4, 2), RankGroup("pipeline", 2, 8)
STEPS: dict[Traffic, tuple[StepOp, ...]] = {
    "ring": (StepOp("all_reduce", _MIB, 0.15),),
    "groups": (
        StepOp("all_reduce", _MIB // 2, 0.07, _TENSOR),
        StepOp("send", _MIB // 2, 0.0, _PIPELINE),
        StepOp("all_reduce", _MIB, 0.07, _DATA),
    ),
    "all_to_all": (StepOp("all_to_all", _MIB, 0.15),),
}


def traffic_job(identity: str, traffic: Traffic, hosts: Sequence[Host], *, seed: int, **parameters: object) -> JobSpec:
    """A job with one kind of traffic: a ring or an all-to-all over all hosts, or Megatron's groups (16 ranks, 8 hosts).

    `parameters` are those of `workload.groups.Groups` except `step`.
    """
    placed = place(hosts)
    if traffic == "groups":
        placed += [*placed[1:], placed[0]]
    return job(identity, "groups", placed, seed=seed, step=STEPS[traffic], **parameters)
