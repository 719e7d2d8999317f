"""LLDP neighbours, as lldpd reports them on hosts and switches, or systemd-networkd on hosts.

Written from the documented and recorded output of `lldpctl -f json0` (lldpcli(8)) and `networkctl lldp --json=short`
(systemd 257 and later); never run on hardware.
"""

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec

from c4bench.c4p.knowledge.cabling import CableDifference, Cables, Kind, compare, ends, nodes_of
from c4bench.decoding import DecodingError, json_in
from c4bench.model.fabric import Host
from c4bench.model.graph import FabricGraph, HostPort

COMMAND = ("lldpctl", "-f", "json0")
_BY = "LLDP"


class Neighbour(msgspec.Struct, frozen=True):
    """What is at the other end of the cable of `interface`: a `system` by its name, and its `port`.

    Where the port's ID is a name of local meaning only, as of SONiC, `port` is its description and `alias` its ID.
    """

    interface: str
    system: str
    port: str
    alias: str = ""


def neighbours(output: str | bytes) -> tuple[Neighbour, ...]:
    """The neighbours that have a name; none if the output is of another form, or empty.

    Known are the forms of `lldpctl`: json0, json (a list of one is an object there), keyvalue, plain; networkctl.
    """
    try:
        found = json_in(output, dict[str, object])
    except DecodingError:
        text = output.decode(errors="replace") if isinstance(output, bytes) else output
        return tuple(one for one in (*_of_keyvalue(text), *_of_plain(text)) if one.system)
    return tuple(one for one in (*_of_lldpd(found), *_of_networkd(found)) if one.system)


def _of_lldpd(found: Mapping[str, object]) -> Iterator[Neighbour]:
    for listing in _entries(found.get("lldp")):
        for name, interface in _named(listing.get("interface")):
            system = next((own or _value(chassis.get("name")) for own, chassis in _named(interface.get("chassis"))), "")
            for port in _entries(interface.get("port"))[:1]:
                (kind, value), described = _typed(port.get("id")), _value(port.get("descr"))
                yield _neighbour(name, system, kind, value, described)


def _of_networkd(found: Mapping[str, object]) -> Iterator[Neighbour]:
    for link in _entries(found.get("Neighbors")):
        for one in _entries(link.get("Neighbors")):
            yield Neighbour(_text(link.get("InterfaceName")), _text(one.get("SystemName")), _text(one.get("PortID")))


def _of_keyvalue(text: str) -> Iterator[Neighbour]:
    """Lines such as `lldp.eth0.port.ifname=swp1`; an interface may have dots in its name."""
    values: dict[str, dict[str, str]] = defaultdict(dict)
    for line in text.splitlines():
        match = _KEY_VALUE.fullmatch(line.strip())
        if match:
            values[match[1]].setdefault(match[2], match[3])
    for name, own in values.items():
        kind = next((kind for kind in _PORT_IDS if f"port.{kind}" in own), "")
        yield _neighbour(
            name, own.get("chassis.name", ""), kind, own.get(f"port.{kind}", ""), own.get("port.descr", "")
        )


def _of_plain(text: str) -> Iterator[Neighbour]:
    """Blocks that begin with `Interface:`, of indented lines `SysName:`, `PortID:` (with its kind) and `PortDescr:`."""
    for block in re.split(r"^Interface:", text, flags=re.MULTILINE)[1:]:
        lines = block.splitlines()
        values = {
            key: value.strip() for key, colon, value in (line.strip().partition(":") for line in lines[1:]) if colon
        }
        kind, _, value = values.get("PortID", "").partition(" ")
        name = lines[0].partition(",")[0].strip() if lines else ""
        yield _neighbour(name, values.get("SysName", ""), kind, value.strip(), values.get("PortDescr", ""))


_KEY_VALUE = re.compile(r"lldp\.(.+?)\.((?:chassis|port)\.[a-z-]+)=(.*)")
_PORT_IDS = ("ifname", "local", "mac")
# How switches call their ports.
_PORT_NAME = re.compile(r"(Ethernet|Eth|swp)[\d/.]+\w*")


def _neighbour(interface: str, system: str, kind: str, value: str, described: str) -> Neighbour:
    if kind == "local" and _PORT_NAME.fullmatch(described):
        return Neighbour(interface, system, described, value)
    return Neighbour(interface, system, value)


def _entries(value: object) -> list[Mapping[str, object]]:
    """The objects of a list, or the one object that stands for a list of one."""
    listed = value if isinstance(value, list) else [value]
    return [one for one in listed if isinstance(one, dict)]


def _named(value: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Objects with their names: `[{"name": N, ...}]` of json0, `{N: {...}}` or a list of such of json."""
    for one in _entries(value):
        if isinstance(one.get("name"), str):
            yield _text(one["name"]), one
        elif one and all(isinstance(below, dict) for below in one.values()) and "id" not in one:
            yield from ((name, below) for name, below in one.items() if isinstance(below, dict))
        else:
            yield "", one


def _typed(value: object) -> tuple[str, str]:
    """The kind of an ID and the ID."""
    return next(((_text(one.get("type")), _text(one.get("value"))) for one in _entries(value)), ("", ""))


def _value(value: object) -> str:
    """A text, which json0 writes as a list of an object with `value`."""
    return value if isinstance(value, str) else _typed(value)[1]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def compare_neighbours(
    graph: FabricGraph,
    hosts: Sequence[Host],
    seen: Mapping[str, Sequence[Neighbour]],
    alone: Container[str] = frozenset(),
) -> tuple[CableDifference, ...]:
    """How cables differ from the graph by what hosts and switches `seen`, by name, report of their neighbours.

    A cable is missed only if an end reports any neighbours and not this one; of a host that is `alone`, which speaks
    LLDP and hears nobody, its switch is such an end. Interfaces that are no NIC of the inventory are left aside.
    """
    known = _Known(graph, hosts, seen, alone)
    return (*compare(known.stated(), known.found(), _BY), *known.other_ports())


class _Known:
    """What is stated of the nodes that report neighbours, and what they report."""

    def __init__(
        self,
        graph: FabricGraph,
        hosts: Sequence[Host],
        seen: Mapping[str, Sequence[Neighbour]],
        alone: Container[str],
    ) -> None:
        self._alone = alone
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
        cables = [port for port in self._graph.host_ports if self._is_reported(port) and self._is_nic(port)]
        trunks = [trunk for trunk in self._graph.trunks if not self._seen.keys().isdisjoint(trunk.ends)]
        return Cables([ends(*nodes_of(cable)) for cable in cables] + [ends(*trunk.ends) for trunk in trunks])

    def _is_reported(self, port: HostPort) -> bool:
        """Whether an end reports neighbours that this cable would be among."""
        heard = {self._name(one.system).partition(".")[0] for one in self._seen.get(port.switch, ())}
        return port.host in self._seen or (port.host in self._alone and bool(heard) and port.host not in heard)

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
        if one and port and one.port and port not in (one.port, one.alias) and self._name(one.system) == switch:
            yield CableDifference(at, f"{switch}/{port}", Kind.ELSEWHERE, 1, 0, f"{switch}/{one.port}", _BY)
