"""What devices are set to, from facts about them: NICs of hosts, and ports of switches. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from c4bench.doctor.facts import (
    CongestionControl,
    Fact,
    FixedClass,
    Gid,
    Interface,
    PausedPriorities,
    Qos,
    RdmaPort,
)
from c4bench.doctor.lldp import Neighbour
from c4bench.model.fabric import ECN_BITS, Host
from c4bench.model.graph import FabricGraph, HostPort
from c4bench.switches.facts import Ecn, Port, PortQos, SwitchFacts
from c4bench.switches.tables import numbers

_CODE_V2 = "v2"
_DSCPS, _PRIORITIES = 64, 8
# What may be empty, or false, because it was said to be.
_EMPTY_IS_SAID = {"admin_up", "up", "pfc", "marks", "watchdog", "adaptive_routing"}
# The end of a cable: a device and its port.
End = tuple[str, str]


class PortSettings(msgspec.Struct, frozen=True):
    """The settings of one port; None, 0 and "" are what the system does not state.

    `trust` is the field that a packet's priority comes from: `dscp`, `pcp` or `none`. `priorities` has the priority
    (SONiC, EOS: traffic class) of each DSCP, empty if DSCP is not trusted or the map is not stated. `pfc` are the
    priorities that are paused instead of dropped, `marks` the marking of those priorities whose queue marks packets.
    """

    name: str
    admin_up: bool | None = None
    up: bool | None = None
    rate_bps: float = 0.0
    mtu_bytes: int = 0
    trust: str = ""
    priorities: tuple[int, ...] = ()
    pfc: tuple[int, ...] | None = None
    marks: dict[int, Ecn] | None = None
    watchdog: bool | None = None
    adaptive_routing: bool | None = None


class NicSettings(msgspec.Struct, frozen=True):
    """The settings of a NIC by its interface, else by its RDMA device; None, 0 and "" are what nothing states.

    `trust`, `priorities` and `pfc` are as of `PortSettings`. `dcqcn` are the priorities at which congestion control is
    on, `dscp` is the one that its driver gives all packets, `gids` are the indices of RoCE v2 over IPv4.
    """

    name: str
    device: str = ""
    mtu_bytes: int = 0
    trust: str = ""
    priorities: tuple[int, ...] = ()
    pfc: tuple[int, ...] | None = None
    dcqcn: tuple[int, ...] | None = None
    dscp: int | None = None
    gids: tuple[int, ...] | None = None


class Device(NamedTuple):
    """A host with NICs, or a switch that runs `system` with ports; `links` has the far end of each known cable."""

    name: str
    nics: tuple[NicSettings, ...] = ()
    ports: tuple[PortSettings, ...] = ()
    system: str = ""
    links: Mapping[str, End] = {}


def links_of(found: Iterable[Neighbour]) -> dict[str, End]:
    """The far end of each cable by LLDP; a system's name is that before its domain."""
    return {one.interface: (one.system.partition(".")[0], one.port) for one in found}


def stated_links(graph: FabricGraph, hosts: Iterable[Host]) -> dict[str, dict[str, End]]:
    """The far end of each cable whose ports the inventory states, by device and port."""
    netdevs = {nic.name: nic.netdev for host in hosts for nic in host.nics if nic.netdev and not nic.bond}
    found: dict[str, dict[str, End]] = defaultdict(dict)
    for cable in graph.cables:
        if isinstance(cable, HostPort):
            near, far = (cable.host, netdevs.get(f"{cable.host}/{cable.nic}", "")), (cable.switch, cable.port)
        else:
            near, far = (cable.a, cable.a_port), (cable.b, cable.b_port)
        if near[1] and far[1]:
            found[near[0]][near[1]], found[far[0]][far[1]] = far, near
    return found


def nic_settings(facts: Iterable[Fact]) -> tuple[NicSettings, ...]:
    """The NICs that facts about a host are of. Interfaces without RDMA are none."""
    known = list(facts)
    ports = [fact for fact in known if isinstance(fact, RdmaPort) and fact.netdev]
    mtus = {fact.name: fact.mtu_bytes for fact in known if isinstance(fact, Interface) and fact.mtu_bytes}
    netdevs = {name: port.netdev for port in ports for name in (port.device, f"{port.device} port {port.number}")}
    found: dict[str, dict[str, Any]] = {port.netdev: {"device": port.device} for port in ports}
    for name, values in _stated(known):
        found.setdefault(netdevs.get(name, name), {}).update(values)
    return tuple(
        NicSettings(**{"name": name, "mtu_bytes": mtus.get(name, 0), **own}) for name, own in sorted(found.items())
    )


def _stated(facts: Sequence[Fact]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What facts state, by interface, RDMA device, or port of one."""
    gids: dict[tuple[str, int], set[int]] = {}
    for fact in facts:
        match fact:
            case Qos():
                yield fact.netdev, {"trust": fact.trust, "priorities": fact.priorities, "pfc": fact.pfc}
            case CongestionControl():
                yield fact.netdev, {"dcqcn": fact.priorities}
            case FixedClass():
                yield fact.device, {"device": fact.device, "dscp": fact.traffic_class >> ECN_BITS}
            case Gid():
                own = gids.setdefault((fact.device, fact.number), set())
                own.update([fact.index] if fact.version.lower() == _CODE_V2 and fact.address else [])
    without = [(fact.device, fact.number) for fact in facts if isinstance(fact, RdmaPort) and fact.netdev]
    for port in without if gids else ():
        gids.setdefault(port, set())
    for (device, number), indices in gids.items():
        yield f"{device} port {number}", {"device": device, "gids": tuple(sorted(indices))}


def switch_ports(facts: Iterable[Fact]) -> tuple[str, tuple[PortSettings, ...]]:
    """The system of a switch, "" if it is not known, and its ports, of which several outputs may tell."""
    system, found = "", dict[str, PortSettings]()
    for fact in facts:
        match fact:
            case SwitchFacts():
                system = fact.system
                for port in of_switch(fact):
                    found[port.name] = _joined(port, found.get(port.name))
            case PausedPriorities():
                port = PortSettings(fact.port, pfc=numbers(fact.priorities))
                found[port.name] = _joined(found.get(port.name), port)
            case Interface():
                port = PortSettings(fact.name, fact.admin_up, fact.up, fact.rate_bps, fact.mtu_bytes)
                found[port.name] = _joined(found.get(port.name), port)
    return system, tuple(found.values())


def of_switch(facts: SwitchFacts) -> tuple[PortSettings, ...]:
    """The settings of a switch's ports."""
    return tuple(_of_port(facts, port, facts.qos.get(port.name, PortQos())) for port in facts.ports.values())


def _of_port(facts: SwitchFacts, port: Port, qos: PortQos) -> PortSettings:
    classes = qos.classes
    routing = facts.adaptive_routing if qos.adaptive_routing is None else qos.adaptive_routing
    return PortSettings(
        port.name,
        admin_up=port.admin_up,
        up=port.oper_up,
        rate_bps=port.speed_bps,
        mtu_bytes=port.mtu_bytes,
        trust=qos.trust,
        priorities=() if classes is None else tuple(classes.get(dscp, 0) for dscp in range(_DSCPS)),
        pfc=qos.pfc,
        marks=None if qos.ecn is None else dict(_marks(qos.queues, qos.ecn)),
        watchdog=qos.watchdog,
        adaptive_routing=routing,
    )


def _marks(queues: Mapping[int, int], marking: Mapping[int, Ecn]) -> Iterator[tuple[int, Ecn]]:
    """The priorities (traffic classes) whose queue marks packets."""
    for number in range(_PRIORITIES):
        queue = queues.get(number, number)
        if queue in marking:
            yield number, marking[queue]


def _joined(one: PortSettings | None, other: PortSettings | None) -> PortSettings:
    """What the first states, and of the rest what the second does. One of them is given."""
    if one is None or other is None:
        return one or other or PortSettings("")
    stated = {name: getattr(one, name) for name in one.__struct_fields__}
    stated = {name: value for name, value in stated.items() if value is not None and (value or name in _EMPTY_IS_SAID)}
    return msgspec.structs.replace(other, **stated)
