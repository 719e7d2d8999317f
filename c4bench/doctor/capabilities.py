"""A host's capabilities, from its own report. Pure."""

import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from c4bench.doctor import retries, traffic_class
from c4bench.doctor.facts import Remark
from c4bench.doctor.findings import HostSelfReport, MtuToPeer
from c4bench.doctor.lldp import Neighbour, neighbours
from c4bench.doctor.rules import is_down
from c4bench.doctor.settings import NicSettings
from c4bench.errors import UsageError, meant
from c4bench.model.fabric import Host
from c4bench.remote.clock import ClockOffset

CLOCKS_APART_S = 0.1
_RDMA_MTUS = (4096, 2048, 1024, 512, 256)
_HEADERS_BYTES = 60
_MEMLOCK_AT_LEAST_BYTES = 1 << 30


class State(StrEnum):
    """How a host provides a capability: in hardware, in software, or not at all."""

    REAL = "real"
    EMULATED = "emulated"
    ABSENT = "absent"


class Capability(msgspec.Struct, frozen=True):
    """A capability and its state. A host without a `needed` one is unhealthy; without others, scenarios skip it."""

    name: str
    state: State
    detail: str
    fix: str = ""
    needed: bool = False

    @property
    def bad(self) -> bool:
        """Whether this keeps the host from being used."""
        return self.needed and self.state is State.ABSENT


class Report(msgspec.Struct, frozen=True):
    """A host's capabilities, its clock offset from ours if it was reachable, and its neighbours by LLDP.

    `remarks` are those of the rules that saved outputs are judged by, `settings` are what its NICs are set to. `lldp`
    says whether anything speaks LLDP there.
    """

    host: str
    capabilities: tuple[Capability, ...]
    clock: ClockOffset | None = None
    neighbours: tuple[Neighbour, ...] = ()
    remarks: tuple[Remark, ...] = ()
    settings: tuple[NicSettings, ...] = ()
    lldp: bool = False

    @property
    def bad(self) -> tuple[Capability, ...]:
        """The missing capabilities that are needed."""
        return tuple(capability for capability in self.capabilities if capability.bad)

    def lacks(self, name: str) -> Capability | None:
        """The capability of that name if the host lacks it, else None."""
        by_name = {capability.name: capability for capability in self.capabilities}
        capability = by_name.get(name) or by_name["reachable"]
        return capability if capability.state is State.ABSENT else None


NAMES = (
    "reachable",
    "python",
    "agents",
    "rdma",
    "rocev2",
    "infiniband",
    "paths",
    "mtu",
    "pfc",
    "ecn",
    "lossless",
    "clock",
    "gpu",
    "memlock",
    "root",
    "clean",
    "disruptive",
)
# Scenarios use these only through the hosts' agents.
THROUGH_AGENTS = frozenset({"rdma", "rocev2", "infiniband", "paths"})


def check(names: Iterable[str]) -> None:
    """Raises UsageError for a name that is no capability."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        near = meant(unknown[0], NAMES, f"; there are {', '.join(NAMES)}")
        raise UsageError(f"{unknown[0]!r} is no capability{near}")


def unreachable(host: Host, problem: str) -> Report:
    """The report of an unreachable host: nothing but that."""
    fix = "repair the access, then run the check again"
    return Report(host.name, (Capability("reachable", State.ABSENT, problem, fix, needed=True),))


def evaluate(host: Host, facts: HostSelfReport, clock: ClockOffset, mtus: Sequence[MtuToPeer] = ()) -> Report:
    """All capabilities of a host, in the order of `NAMES`."""
    capabilities = (
        Capability("reachable", State.REAL, host.address),
        _python(facts),
        _agents(facts),
        _rdma(host, facts),
        _link_layer(facts, "rocev2"),
        _link_layer(facts, "infiniband"),
        _paths(host, facts),
        _mtu(host, facts, mtus),
        _pfc(facts),
        _ecn(facts),
        _lossless(host, facts),
        _clock(clock),
        _present("gpu", ", ".join(facts.gpus), "nvidia-smi lists none"),
        _memlock(facts),
        _root(facts),
        _clean(facts),
        _present("disruptive", "faults are permitted" if host.disruptive else "", "not marked `disruptive: true`"),
    )
    return Report(host.name, capabilities, clock, neighbours(facts.lldp), lldp=bool(facts.lldp))


def _present(name: str, detail: str, otherwise: str, fix: str = "", *, needed: bool = False) -> Capability:
    state = State.REAL if detail else State.ABSENT
    return Capability(name, state, detail or otherwise, "" if detail else fix, needed=needed)


def _python(facts: HostSelfReport) -> Capability:
    version = ".".join(map(str, sys.version_info[:2]))
    same = facts.python.split(".")[:2] == version.split(".")
    fix = f"install python{version} there, or run c4bench with the host's version"
    if facts.agent:
        return Capability("python", State.REAL, facts.python)
    return _present("python", facts.python if same else "", f"{facts.python}, not {version}", fix, needed=True)


def _agents(facts: HostSelfReport) -> Capability:
    version = facts.agent and f"version {facts.agent}"
    return _present("agents", version, "c4bench is not installed", "install it: playbooks/deploy.yml", needed=True)


def _rdma(host: Host, facts: HostSelfReport) -> Capability:
    devices = {device.name: device for device in facts.rdma}
    named = [nic.device for nic in host.nics if nic.device]
    missing = [name for name in named if name not in devices]
    chosen = [devices[name] for name in named if name in devices] or list(facts.rdma)
    down = [device.name for device in chosen if all(is_down(port.state) for port in device.ports)]
    fix = "load the NIC's RDMA driver, or correct c4.nics in the inventory"
    if missing or not chosen:
        there = f"has {', '.join(devices) or 'none'}" + (f", lacks {', '.join(missing)}" if missing else "")
        return Capability("rdma", State.ABSENT, there, fix, needed=True)
    if down or facts.uverbs:
        problem = f"no active port: {', '.join(down)}" if down else facts.uverbs
        fix = "plug it in, or bring its link up" if down else "load ib_uverbs, and let the user into the rdma group"
        return Capability("rdma", State.ABSENT, problem, fix, needed=True)
    kinds = {f"{device.firmware or 'no firmware'}" for device in chosen if not device.software}
    detail = f"{', '.join(device.name for device in chosen)} ({'software' if not kinds else ', '.join(sorted(kinds))})"
    detail = "; ".join(filter(None, (detail, retries.meaning(chosen))))
    return Capability("rdma", State.REAL if kinds else State.EMULATED, detail)


def _link_layer(facts: HostSelfReport, name: str) -> Capability:
    if name == "infiniband":
        ports = [port for device in facts.rdma for port in device.ports if port.link_layer == "InfiniBand"]
        managed = all(port.subnet_manager_lid for port in ports)
        detail = "" if not ports else f"{len(ports)} ports, {'a' if managed else 'no'} subnet manager"
        return _present(
            name, detail if managed else "", detail or "no InfiniBand port", detail and "start a subnet manager"
        )
    software = [device.software for device in facts.rdma for port in device.ports if "RoCE v2" in port.gid_types]
    if not software:
        return Capability(name, State.ABSENT, "no GID of type RoCE v2", "give the NIC's interface an address")
    return Capability(name, State.EMULATED if all(software) else State.REAL, f"{len(software)} ports")


def _paths(host: Host, facts: HostSelfReport) -> Capability:
    knobs = {nic.name: facts.knobs[str(nic.index)] for nic in host.nics if str(nic.index) in facts.knobs}
    working = {name: knob.name for name, knob in knobs.items() if knob.name not in {"", "Unsteered"}}
    if knobs and len(working) == len(knobs):
        state = State.EMULATED if all(device.software for device in facts.rdma) else State.REAL
        return Capability("paths", state, ", ".join(sorted(set(working.values()))))
    stuck = [f"{name}: {knob.why or knob.name}" for name, knob in knobs.items() if name not in working]
    return Capability("paths", State.ABSENT, stuck[0] if stuck else "c4.nics is empty", "see docs/lab-setup.md")


def _mtu(host: Host, facts: HostSelfReport, mtus: Sequence[MtuToPeer]) -> Capability:
    """The path to each peer must carry the NIC's own MTU; without a reply it is unknown."""
    own = {nic.name: _carried(facts.netdevs[nic.netdev].mtu_bytes) for nic in host.nics if nic.netdev in facts.netdevs}
    for measured in mtus:
        if not measured.mtu_bytes:
            detail = f"unknown: no echo reply from {measured.peer} to {measured.nic}"
            return Capability("mtu", State.ABSENT, detail, "permit ICMP echo between the NICs")
        if measured.mtu_bytes < own.get(measured.nic, 0):
            detail = f"{measured.nic} has {own[measured.nic]}, but only {measured.mtu_bytes} reaches {measured.peer}"
            fix = "set the same MTU, 4200 or more, on every switch port and NIC of the path"
            return Capability("mtu", State.ABSENT, detail, fix, needed=True)
    sizes = ", ".join(map(str, sorted(set(own.values()))))
    tried = f"{len(mtus)} paths tried" if mtus else "no path tried"
    return _present("mtu", f"{sizes} ({tried})" if sizes else "", "no interface of c4.nics is here")


def _carried(mtu_bytes: int) -> int:
    """The largest RDMA MTU an interface carries."""
    return next((size for size in _RDMA_MTUS if size + _HEADERS_BYTES <= mtu_bytes), 0)


def _pfc(facts: HostSelfReport) -> Capability:
    known = {name: netdev.pfc for name, netdev in facts.netdevs.items()}
    on = {name: priorities for name, priorities in known.items() if priorities}
    if known and len(on) == len(known):
        return Capability("pfc", State.REAL, _priorities(on))
    if not known:
        return Capability("pfc", State.ABSENT, "no interface of c4.nics is here")
    untold = any(priorities is None for priorities in known.values())
    return Capability(
        "pfc", State.ABSENT, "neither `dcb` nor `mlnx_qos` reports it" if untold else "off on some interface"
    )


def _ecn(facts: HostSelfReport) -> Capability:
    on = {name: netdev.ecn for name, netdev in facts.netdevs.items() if netdev.ecn}
    return _present("ecn", _priorities(on) if on else "", "no DCQCN settings on these NICs, or off")


def _lossless(host: Host, facts: HostSelfReport) -> Capability:
    """The packets of every NIC have a priority with PFC on the host, by their DSCP in the inventory."""
    gaps = [gap for nic in host.nics if (gap := traffic_class.gap(nic, facts))]
    if gaps or not host.nics:
        problem, fix = gaps[0] if gaps else traffic_class.Gap("c4.nics is empty")
        return Capability("lossless", State.ABSENT, problem, fix)
    return Capability("lossless", State.REAL, f"DSCP {', '.join(map(str, sorted({nic.dscp for nic in host.nics})))}")


def _priorities(by_netdev: dict[str, tuple[int, ...]]) -> str:
    kinds = {",".join(map(str, priorities)) for priorities in by_netdev.values()}
    return f"priority {' or '.join(sorted(kinds))}"


def _clock(clock: ClockOffset) -> Capability:
    detail = f"{clock.offset_s:+.4f} s from ours (+-{clock.error_s:.4f} s)"
    near = abs(clock.offset_s) <= CLOCKS_APART_S + clock.error_s
    return _present(
        "clock", detail if near else "", detail, "synchronise the hosts' clocks: chrony or ptp4l", needed=True
    )


def _memlock(facts: HostSelfReport) -> Capability:
    limit = facts.memlock_bytes
    enough = facts.root or limit < 0 or limit >= _MEMLOCK_AT_LEAST_BYTES
    detail = "unlimited" if limit < 0 else f"{limit >> 10} KiB" + (" (root is exempt)" if facts.root else "")
    return _present("memlock", detail if enough else "", detail, "raise it: limits.d, LimitMEMLOCK in the agent's unit")


def _root(facts: HostSelfReport) -> Capability:
    ours = "root" if facts.root else "by sudo"
    fix = "deploy with -e c4_operators=USER (playbooks/deploy.yml)"
    return _present("root", ours if facts.injector.runs else "", f"the injector: {facts.injector.why}", fix)


def _clean(facts: HostSelfReport) -> Capability:
    """No fault in force and no residue; unknown where the injector cannot run, which `root` reports."""
    lines = facts.injector.lines
    left = f"{len(lines)} faults in force or residues: {lines[0][:160]}" if lines else ""
    return _present("clean", "" if left else "nothing in force", left, "c4bench fault heal --hosts ...", needed=True)
