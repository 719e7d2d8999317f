"""Job descriptions for a set of hosts."""

from collections.abc import Sequence

from c4bench.model.fabric import Host
from c4bench.model.telemetry import Member
from c4bench.wire.messages import JobSpec


def place(hosts: Sequence[Host]) -> list[Host]:
    """Hosts in an order that makes neighbours cross the fabric: first half and second half in turn."""
    half = (len(hosts) + 1) // 2
    first, second = hosts[:half], hosts[half:]
    return [host for pair in zip(first, second, strict=False) for host in pair] + list(first[len(second) :])


def job(identity: str, program: str, hosts: Sequence[Host], *, seed: int, **parameters: object) -> JobSpec:
    """One rank on each of `hosts`, in that order, using all their NICs."""
    return JobSpec(
        id=identity,
        program=program,
        members=tuple(Member(rank, host.name, tuple(nic.name for nic in host.nics)) for rank, host in enumerate(hosts)),
        nics=tuple(nic for host in hosts for nic in host.nics),
        parameters=dict(parameters),
        seed=seed,
    )


def training_job(identity: str, hosts: Sequence[Host], *, seed: int) -> JobSpec:
    """The job faults are tried on: short steps of compute, ring and all-to-all, so that causes can be told apart."""
    return job(
        identity,
        "training",
        place(hosts),
        seed=seed,
        gradient_bytes=1 << 20,
        token_bytes=1 << 20,
        compute_s=0.04,
    )
