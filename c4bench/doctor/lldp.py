"""LLDP neighbours, as lldpd reports them on hosts and switches, or systemd-networkd on hosts.

Written from the documented and recorded output of `lldpctl -f json0` (lldpcli(8)) and `networkctl lldp --json=short`
(systemd 257 and later); never run on hardware.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from c4bench.c4p.knowledge.cabling import CableDifference, Cables, Kind, compare, ends, nodes_of
from c4bench.decoding import DecodingError, json_in
from c4bench.model.fabric import Host
from c4bench.model.graph import FabricGraph, HostPort

COMMAND = ("lldpctl", "-f", "json0")
_BY = "LLDP"


class Neighbour(msgspec.Struct, frozen=True):
    """What is at the other end of the cable of `interface`: a `system` by its name, and its `port`."""

    interface: str
    system: str
    port: str


class _Text(msgspec.Struct, frozen=True):
    value: str = ""


class _Chassis(msgspec.Struct, frozen=True):
    name: tuple[_Text, ...] = ()


class _Port(msgspec.Struct, frozen=True):
    id: tuple[_Text, ...] = ()


class _Interface(msgspec.Struct, frozen=True):
    name: str = ""
    chassis: tuple[_Chassis, ...] = ()
    port: tuple[_Port, ...] = ()


class _Listing(msgspec.Struct, frozen=True):
    interface: tuple[_Interface, ...] = ()


class _NetworkdNeighbour(msgspec.Struct, frozen=True):
    system: str = msgspec.field(default="", name="SystemName")
    port: str = msgspec.field(default="", name="PortID")


class _NetworkdLink(msgspec.Struct, frozen=True):
    interface: str = msgspec.field(default="", name="InterfaceName")
    neighbours: tuple[_NetworkdNeighbour, ...] = msgspec.field(default=(), name="Neighbors")


class _Output(msgspec.Struct, frozen=True):
    """The output of lldpctl, or of networkctl."""

    lldp: tuple[_Listing, ...] = ()
    links: tuple[_NetworkdLink, ...] = msgspec.field(default=(), name="Neighbors")


def neighbours(output: str | bytes) -> tuple[Neighbour, ...]:
    """The neighbours that have a name; none if the output is of another form, or empty."""
    try:
        found = json_in(output, _Output)
    except DecodingError:
        return ()
    of_lldpd = (
        Neighbour(one.name, _first(chassis.name for chassis in one.chassis), _first(port.id for port in one.port))
        for listing in found.lldp
        for one in listing.interface
    )
    of_networkd = (Neighbour(link.interface, one.system, one.port) for link in found.links for one in link.neighbours)
    return tuple(one for one in (*of_lldpd, *of_networkd) if one.system)


def _first(texts: Iterable[Sequence[_Text]]) -> str:
    return next((text.value for several in texts for text in several), "")


def compare_neighbours(
    graph: FabricGraph, hosts: Sequence[Host], seen: Mapping[str, Sequence[Neighbour]]
) -> tuple[CableDifference, ...]:
    """How cables differ from the graph by what hosts and switches `seen`, by name, report of their neighbours.

    A cable is missed only if an end reports any neighbours and not this one. Interfaces that are no NIC of the
    inventory are left aside.
    """
    known = _Known(graph, hosts, seen)
    return (*compare(known.stated(), known.found(), _BY), *known.other_ports())


class _Known:
    """What is stated of the nodes that report neighbours, and what they report."""

    def __init__(self, graph: FabricGraph, hosts: Sequence[Host], seen: Mapping[str, Sequence[Neighbour]]) -> None:
        self._graph, self._seen = graph, {name: of for name, of in seen.items() if of}
        self._switches = frozenset(graph.switches)
        self._nics = {
            (nic.host, netdev): nic.name
            for host in hosts
            for nic in host.nics
            for netdev in nic.bond or (nic.netdev,)
            if netdev
        }

    def stated(self) -> Cables:
        """The stated cables of which an end reports neighbours."""
        cables = [port for port in self._graph.host_ports if port.host in self._seen and self._is_nic(port)]
        trunks = [trunk for trunk in self._graph.trunks if not self._seen.keys().isdisjoint(trunk.ends)]
        return Cables([ends(*nodes_of(cable)) for cable in cables] + [ends(*trunk.ends) for trunk in trunks])

    def _is_nic(self, port: HostPort) -> bool:
        return nodes_of(port)[0] in self._nics.values()

    def found(self) -> Cables:
        """The reported cables; both ends of one may report it."""
        found: Cables = Cables()
        for name, neighbours_of in self._seen.items():
            cables = Cables(ends(*pair) for pair in self._pairs(name, neighbours_of))
            found |= cables
        return found

    def _pairs(self, name: str, neighbours_of: Sequence[Neighbour]) -> Iterable[tuple[str, str]]:
        for one in neighbours_of:
            system = self._name(one.system)
            if (nic := self._nics.get((name, one.interface))) or (name in self._switches and system in self._switches):
                yield nic or name, system

    def _name(self, system: str) -> str:
        """A system by its stated name, which may be its host name without the domain."""
        short = system.partition(".")[0]
        return short if short in self._switches and system not in self._switches else system

    def other_ports(self) -> Iterable[CableDifference]:
        """NICs and switch ports whose cable leads to another port of the stated switch."""
        reported = {(name, one.interface): one for name, of in self._seen.items() for one in of}
        netdevs: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for at, nic in self._nics.items():
            netdevs[nic].append(at)
        for port in self._graph.host_ports:
            nic = nodes_of(port)[0]
            for at in netdevs[nic]:
                yield from self._other_port(nic, reported.get(at), port.switch, port.port)
        for trunk in self._graph.trunks:
            ways = ((trunk.a, trunk.a_port, trunk.b, trunk.b_port), (trunk.b, trunk.b_port, trunk.a, trunk.a_port))
            for near, near_port, far, far_port in ways:
                yield from self._other_port(f"{near}/{near_port}", reported.get((near, near_port)), far, far_port)

    def _other_port(self, at: str, one: Neighbour | None, switch: str, port: str) -> Iterable[CableDifference]:
        if one and port and one.port and one.port != port and self._name(one.system) == switch:
            yield CableDifference(at, f"{switch}/{port}", Kind.ELSEWHERE, 1, 0, f"{switch}/{one.port}", _BY)
