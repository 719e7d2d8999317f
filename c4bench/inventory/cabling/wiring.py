"""The cables that a file of another tool lists, and which of their ends are hosts. Pure.

A file states some of it: names, ports, speeds, which node is a host. What it does not state stays unknown; where nodes
are taken for hosts by the names of their ports or by their own, a note says so.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from c4bench.errors import UsageError
from c4bench.foreign_text import one_line
from c4bench.model.graph import FabricGraph, HostPort, Trunk

HOST, SWITCH = "host", "switch"
_LONGEST = 64
_SHOWN = 8
_NIC_PORT = re.compile(
    r"en[opsxP]\w*|eth\d+\w*|ib\w*\d+|mlx\d_\d+\w*|hsn\d+|p\d+p\d+\w*|bond\d+|rdma\d+|roce\w*", re.IGNORECASE
)
_SWITCH_PORT = re.compile(
    r"swp\d+\w*|(?:Ethernet|Eth|Gi\w*|Te\w*|Hu\w*|[FTE]\w*GigE?)[\d/.:]+|(?:et|xe|ge)-\S+|\d+(?:/\d+)*"
)
_SWITCH_NAME = re.compile(
    r"(?:^|[^a-z])(?:leaf|spine|tor|agg|core|border|super-?spine|switch|sw|fab|rtr|router)(?:[^a-z]|$)", re.IGNORECASE
)
_HOST_NAME = re.compile(
    r"(?:^|[^a-z])(?:gpu|node|host|server|srv|compute|dgx|hgx|worker|trainer|h|cn|client)(?:[^a-z]|$)", re.IGNORECASE
)


class End(msgspec.Struct, frozen=True, order=True):
    """An end of a cable: the node, and its port, "" where the file does not state it."""

    node: str
    port: str = ""


class Wire(msgspec.Struct, frozen=True):
    """A cable; `rate_bps` is 0 where the file does not state a speed."""

    a: End
    b: End
    rate_bps: float = 0.0

    @property
    def ends(self) -> tuple[End, End]:
        """Both ends."""
        return self.a, self.b


class Wiring(msgspec.Struct, frozen=True):
    """What a file of the format `kind` lists: each cable once, the roles that it states, and `notes` about the rest."""

    kind: str
    wires: tuple[Wire, ...]
    roles: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes with cables, in the order of the file."""
        return tuple(dict.fromkeys(end.node for wire in self.wires for end in wire.ends))


def once(wires: Iterable[Wire]) -> Iterator[Wire]:
    """Each cable once, of those that are listed by both ends; without ports nothing shows that two are one."""
    seen: set[frozenset[End]] = set()
    for wire in wires:
        both = frozenset(wire.ends)
        if all(end.port for end in wire.ends):
            if both in seen:
                continue
            seen.add(both)
        yield wire


def with_roles(wiring: Wiring, hosts: Sequence[str] = ()) -> Wiring:
    """The wiring with a role for each node: as stated, by the patterns in `hosts`, or by names.

    Raises UsageError where names do not tell hosts from switches.
    """
    cabled = set(wiring.nodes)
    roles = {node: role for node, role in wiring.roles.items() if node in cabled}
    if hosts:
        roles = {node: HOST if any(fnmatchcase(node, one) for one in hosts) else SWITCH for node in wiring.nodes}
        if HOST not in roles.values():
            raise UsageError(f"no node is called {', '.join(hosts)}; the nodes are {_some(wiring.nodes)}")
    unknown = [node for node in wiring.nodes if node not in roles]
    if not unknown:
        return msgspec.structs.replace(wiring, roles=roles)
    for named, by in ((_by_ports(wiring, unknown), "ports"), (_by_names(unknown), "own names")):
        found = roles | named
        if len(found) == len(wiring.nodes) and _is_possible(wiring, found):
            taken = [node for node in unknown if found[node] == HOST]
            note = (
                f"the file does not state which nodes are hosts; by the names of their {by} these are: {_some(taken)}"
            )
            return msgspec.structs.replace(wiring, roles=found, notes=(*wiring.notes, note))
    raise UsageError(f"it does not state which nodes are hosts ({_some(unknown)}); name them with --hosts")


def _by_ports(wiring: Wiring, unknown: Sequence[str]) -> dict[str, str]:
    ports: dict[str, list[str]] = {node: [] for node in unknown}
    for end in (end for wire in wiring.wires for end in wire.ends):
        if end.node in ports:
            ports[end.node].append(end.port)
    found: dict[str, str] = {}
    for node, own in ports.items():
        if all(_NIC_PORT.fullmatch(port) for port in own):
            found[node] = HOST
        elif all(_SWITCH_PORT.fullmatch(port) for port in own):
            found[node] = SWITCH
    return found


def _by_names(unknown: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in unknown:
        if _SWITCH_NAME.search(_spaced(node)):
            found[node] = SWITCH
        elif _HOST_NAME.search(_spaced(node)):
            found[node] = HOST
    return found


def _spaced(name: str) -> str:
    """A name with letters and digits apart: `leaf01` is the word leaf."""
    return re.sub(r"(?<=[A-Za-z])(?=\d)", " ", name)


def _is_possible(wiring: Wiring, roles: Mapping[str, str]) -> bool:
    """Whether there are hosts, and no cable joins two of them."""
    pairs = [{roles[end.node] for end in wire.ends} for wire in wiring.wires]
    return HOST in roles.values() and {HOST} not in pairs


def graph_of(wiring: Wiring, rate_bps: float = 0.0) -> FabricGraph:
    """The graph of a wiring in which every node has a role; `rate_bps` is that of cables without a stated speed."""
    nodes = wiring.nodes
    hosts = tuple(node for node in nodes if wiring.roles[node] == HOST)
    switches = tuple(node for node in nodes if wiring.roles[node] == SWITCH)
    ports: list[HostPort] = []
    trunks: list[Trunk] = []
    for position, wire in enumerate(ordered(wiring)):
        (a, b), rate = wire.ends, wire.rate_bps or rate_bps
        if wiring.roles[a.node] == HOST:
            ports.append(HostPort(a.node, b.node, rate, port=b.port, position=position))
        else:
            trunks.append(Trunk(a.node, b.node, rate, a_port=a.port, b_port=b.port, position=position))
    return FabricGraph(switches, hosts, tuple(ports), tuple(trunks))


def ordered(wiring: Wiring) -> list[Wire]:
    """The cables of hosts first, each with the host as its first end; a host's NICs are numbered in this order."""
    turned = [
        msgspec.structs.replace(wire, a=wire.b, b=wire.a)
        if wiring.roles[wire.b.node] == HOST and wiring.roles[wire.a.node] != HOST
        else wire
        for wire in wiring.wires
    ]
    return sorted(turned, key=lambda wire: wiring.roles[wire.a.node] != HOST)


def _some(names: Sequence[str]) -> str:
    listed = [one_line(name, _LONGEST) for name in names]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return f"{', '.join(listed[:_SHOWN])}{more}"
