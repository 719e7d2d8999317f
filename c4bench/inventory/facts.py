"""The variable `c4` of a host in the inventory, checked against a schema."""

from typing import Annotated

import msgspec

from c4bench import units
from c4bench.errors import UsageError
from c4bench.inventory.groups import Keys, Tables, Variable, convert
from c4bench.model.fabric import Hash, Inside, Nic

DEFAULT_PYTHON = "/opt/c4bench/bin/python"
_BOND_PORTS = 2  # at least
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Dscp = Annotated[int, msgspec.Meta(ge=0, le=63)]
_Priority = Annotated[int, msgspec.Meta(ge=0, le=7)]
_ServiceLevel = Annotated[int, msgspec.Meta(ge=0, le=15)]


class NicFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One NIC: `index` is its place in the list unless given, `rate` is like `10gbit` ("" when not stated).

    `plane` is its rail or plane; `leaf` the switch port it is plugged into, such as `leaf3/Ethernet12`. `dscp` and
    `service_level` are the host's unless given. `bond` are the interfaces of its ports if `netdev` is a bond; `rate` is
    that of all together. `ecn`: what is sent by it may be marked, and its host's IP layer counts marks, as for rxe.
    """

    index: _Count | None = None
    device: str = ""
    netdev: str = ""
    address: str = ""
    plane: _Count = 0
    rate: str = ""
    leaf: str = ""
    dscp: _Dscp | None = None
    service_level: _ServiceLevel | None = None
    bond: tuple[str, ...] = ()
    ecn: bool = False


class GpuFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU: `pci` is its address on the bus, `nic` the index of the NIC next to it."""

    index: _Count | None = None
    model: str = ""
    pci: str = ""
    nic: _Count | None = None


class InsideFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What joins the GPUs of a host, where a lab stands for it: a rate like `900gbit` and a delay like `2us`."""

    rate: str
    delay: str = "0s"

    def parsed(self) -> Inside:
        """The same in bit/s and s. Raises UsageError."""
        return Inside(units.parse_rate(self.rate), units.parse_time(self.delay))


class HostFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The variable `c4` of a host: whether faults are permitted, the Python that has c4bench, the NICs of the fabric.

    `inside` is what joins the `gpus`. `management` is the management interface, which is not a NIC of the fabric.
    `netns` is the network namespace of a switch's ports, when not its own. `shared` is a folder on storage that all
    hosts share, for checkpoints. `requires` are the capabilities (`c4bench doctor`) that the host is meant to have: a
    scenario that misses one fails instead of being skipped. `rates` are the rates of a switch's ports by interface,
    such as `{Ethernet0: 100gbit}`. `dscp` and `service_level` are those of the packets that its NICs send, and
    `priority` is the lossless one that these have on hosts and switches, None where it is not stated; a switch sprays
    RoCE packets of `spray_dscp`, 0 is none. `hash` is what it chooses the way of other RoCE packets by; C4P finds out
    what is not stated. `counters` names the reader of a switch's packet counters: `ip`, `sonic`, or one that a package
    adds; without it, `sonic` where the switch runs SONiC. `os` is the operating system of a switch on which c4bench is
    not installed (`c4bench.switches`): faults there are applied over SSH, from where `c4bench` runs. All keys are
    optional; `playbooks/discover.yml` finds what a host can report.
    """

    disruptive: bool = False
    python: str = DEFAULT_PYTHON
    netns: str = ""
    shared: str = ""
    requires: tuple[str, ...] = ()
    nics: tuple[NicFacts, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    inside: InsideFacts | None = None
    management: str = ""
    rates: dict[str, str] = {}
    counters: str = ""
    os: str = ""
    dscp: _Dscp = 0
    priority: _Priority | None = None
    service_level: _ServiceLevel = 0
    spray_dscp: _Dscp = 0
    hash: Hash | None = None


_TABLES: Tables = {"nics": NicFacts, "gpus": GpuFacts}


def read(host: str, variable: Variable | None) -> tuple[HostFacts, tuple[Nic, ...]]:
    """Check one host's `c4`. Raises UsageError naming file, line, host and key."""
    if variable is None:
        return HostFacts(), ()
    facts = convert(variable, HostFacts, _TABLES, f" (host {host})")
    for interface, rate in facts.rates.items():
        _rate(host, variable, rate, ("rates", interface))
    nics = [_nic(host, variable, position, nic, facts) for position, nic in enumerate(facts.nics)]
    _refuse_duplicates(host, variable, nics)
    _refuse_duplicate_gpus(host, variable, facts)
    _inside(host, variable, facts)
    return facts, tuple(nics)


def gpu_nics(facts: HostFacts) -> tuple[int, ...]:
    """The index of the NIC next to each GPU, in the order of the GPUs' numbers; -1 where none is stated."""
    numbered = zip(_gpu_numbers(facts), (gpu.nic for gpu in facts.gpus), strict=True)
    return tuple(-1 if nic is None else nic for _, nic in sorted(numbered, key=lambda gpu: gpu[0]))


def _gpu_numbers(facts: HostFacts) -> list[int]:
    return [position if gpu.index is None else gpu.index for position, gpu in enumerate(facts.gpus)]


def _refuse_duplicate_gpus(host: str, variable: Variable, facts: HostFacts) -> None:
    numbers = _gpu_numbers(facts)
    for position, number in enumerate(numbers):
        if number in numbers[:position]:
            problem = f"duplicate GPU index {number}; give each GPU of a host its own (host {host})"
            raise variable.error(problem, ("gpus", position))


def inside_of(facts: HostFacts) -> Inside:
    """What joins the host's GPUs. Raises UsageError unless `read` has checked it."""
    return facts.inside.parsed() if facts.inside else Inside()


def _inside(host: str, variable: Variable, facts: HostFacts) -> None:
    try:
        inside_of(facts)
    except UsageError as error:
        raise variable.error(f"{error} (host {host})", ("inside",)) from None


def _nic(host: str, variable: Variable, position: int, facts: NicFacts, of_host: HostFacts) -> Nic:
    rate_bps = _rate(host, variable, facts.rate, ("nics", position, "rate")) if facts.rate else 0.0
    if facts.bond and len(set(facts.bond)) < max(len(facts.bond), _BOND_PORTS):
        problem = f"{', '.join(facts.bond)}: name two or more interfaces, each once (host {host})"
        raise variable.error(problem, ("nics", position, "bond"))
    if facts.bond and facts.leaf:
        problem = f"{facts.leaf}: a bond is cabled to several switches; state its links in c4_fabric (host {host})"
        raise variable.error(problem, ("nics", position, "leaf"))
    return Nic(
        host=host,
        index=position if facts.index is None else facts.index,
        device=facts.device,
        netdev=facts.netdev,
        address=facts.address,
        rate_bps=rate_bps,
        plane=facts.plane,
        dscp=of_host.dscp if facts.dscp is None else facts.dscp,
        service_level=of_host.service_level if facts.service_level is None else facts.service_level,
        bond=facts.bond,
        ecn=facts.ecn,
    )


def _rate(host: str, variable: Variable, text: str, keys: Keys) -> float:
    try:
        return units.parse_rate(text)
    except UsageError as error:
        raise variable.error(f"{error} (host {host})", keys) from None


def _refuse_duplicates(host: str, variable: Variable, nics: list[Nic]) -> None:
    seen: set[tuple[str, object]] = set()
    for position, nic in enumerate(nics):
        stated = {"index": nic.index, "device": nic.device, "netdev": nic.netdev}
        for key, value in stated.items():
            if value != "" and (key, value) in seen:
                problem = f"duplicate NIC {key} {value}; give each NIC of a host its own (host {host})"
                raise variable.error(problem, ("nics", position, key))
            seen.add((key, value))
