"""Cables as topology files and inventories write them: `{between: [leaf0, spine0], rate: 100gbit, count: 2}`.

What makes a graph of them no fabric is checked here too, within the limits of a lab or of an inventory.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

import msgspec

from c4bench import units
from c4bench.errors import UsageError
from c4bench.inventory.document import Keys, dotted
from c4bench.model.graph import FabricGraph, HostPort, Trunk, by_nic, neighbours, tiers_of

_AT_ONCE = 64


class GraphError(UsageError):
    """A graph that no fabric can be: the `problem`, and the `keys` of the value that has it."""

    def __init__(self, keys: Keys, problem: str) -> None:
        super().__init__(f"{dotted(keys)}: {problem}")
        self.keys, self.problem = tuple(keys), problem


class Cable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`count` cables `between` two switches, or a host and a switch, each with a NIC of its own (in that `plane`).

    An end may state its port: `leaf0/Ethernet4` of a switch, `gpu1/0` for a host's NIC by its index. A host's cables
    with the same `bond` are the ports of one NIC. A `rate` of "" is not known: nothing can be sent over such a fabric.
    """

    between: tuple[str, str]
    rate: str = ""
    delay: str = "0s"
    count: int = 1
    plane: int = 0
    bond: str = ""


def expand(cables: Sequence[Cable], hosts: Collection[str]) -> tuple[tuple[HostPort, ...], tuple[Trunk, ...]]:
    """The cables one by one. Raises GraphError that names the key and the reason."""
    ports: list[HostPort] = []
    trunks: list[Trunk] = []
    for position, cable in enumerate(cables):
        if not 1 <= cable.count <= _AT_ONCE:
            raise GraphError(_keys(position, "count"), f"{cable.count} cables; give 1 to {_AT_ONCE}")
        if cable.count > 1 and any("/" in end for end in cable.between):
            raise GraphError(_keys(position, "count"), f"{cable.count} cables at one port; give each its own entry")
        known = _known(hosts, cable.between)
        if cable.bond and not known:
            problem = "a link between switches; only a host's links are ports of a bond"
            raise GraphError(_keys(position, "bond"), problem)
        for _ in range(cable.count):
            if known:
                ports.append(_host_port(position, cable, known))
            else:
                trunks.append(_trunk(position, cable))
    return tuple(ports), tuple(trunks)


def rate_of(keys: Keys, text: str) -> float:
    """A rate in bit/s, 0 for "". Raises GraphError."""
    try:
        return units.parse_rate(text) if text else 0.0
    except UsageError as error:
        raise GraphError(keys, str(error)) from None


def delay_of(keys: Keys, text: str) -> float:
    """A time in s. Raises GraphError."""
    try:
        return units.parse_time(text)
    except UsageError as error:
        raise GraphError(keys, str(error)) from None


def _keys(position: int, key: str) -> Keys:
    return "links", position, key


def _known(hosts: Collection[str], ends: tuple[str, str]) -> tuple[str, str] | None:
    """The ends with the host first, None if neither is a host."""
    for host, switch in (ends, ends[::-1]):
        if host.partition("/")[0] in hosts:
            return host, switch
    return None


def _host_port(position: int, cable: Cable, ends: tuple[str, str]) -> HostPort:
    host, _, nic = ends[0].partition("/")
    switch, _, port = ends[1].partition("/")
    if nic and not nic.isdecimal():
        raise GraphError(_keys(position, "between"), f"{ends[0]!r} is no NIC; write a host and the NIC's index")
    rate_bps = rate_of(_keys(position, "rate"), cable.rate)
    delay_s = delay_of(_keys(position, "delay"), cable.delay)
    return HostPort(host, switch, rate_bps, delay_s, cable.plane, int(nic or -1), port, position, cable.bond)


def _trunk(position: int, cable: Cable) -> Trunk:
    (a, _, a_port), (b, _, b_port) = (end.partition("/") for end in cable.between)
    rate_bps = rate_of(_keys(position, "rate"), cable.rate)
    return Trunk(a, b, rate_bps, delay_of(_keys(position, "delay"), cable.delay), a_port, b_port, position)


Problem = tuple[Keys, str]


class Limits(msgspec.Struct, frozen=True):
    """The most that `what` may be: counts, a link's rates and its delay in s; `name` is a pattern, `naming` says it."""

    what: str
    name: str
    naming: str
    hosts: tuple[int, int]
    nics: int
    bond_ports: int
    switches: int
    ports: int
    trunks: int
    rates: tuple[str, str]
    delay_s: float


def check(graph: FabricGraph, limits: Limits, *, whole: bool = True) -> None:
    """Raises GraphError that names the key and the reason. A `whole` fabric has a path between all hosts."""
    for keys, problem in chain(_problems(graph, limits), _reach_problems(graph) if whole else ()):
        raise GraphError(keys, problem)


def unreached(graph: FabricGraph) -> str:
    """A host or a switch that cannot be reached, "" for none."""
    return next((problem for _, problem in _reach_problems(graph)), "")


def _problems(graph: FabricGraph, limits: Limits) -> Iterator[Problem]:
    yield from _name_problems(graph, limits)
    yield from _count_problems(graph, limits)
    hosts, known = frozenset(graph.hosts), frozenset((*graph.switches, *graph.hosts))
    for cable in graph.cables:
        for problem in (*_end_problems(cable, known, hosts), *_figure_problems(cable, limits)):
            yield _place(cable), f"{' to '.join(cable.ends)}: {problem}"
    for cables in by_nic(graph.host_ports):
        for problem in _bond_problems(cables, limits) if cables[0].bond else ():
            yield _place(cables[0]), f"bond {cables[0].bond} of {cables[0].host}: {problem}"
    yield from _shared_ports(graph)


def _name_problems(graph: FabricGraph, limits: Limits) -> Iterator[Problem]:
    pattern = re.compile(limits.name)
    for key, names in (("switches", graph.switches), ("hosts", graph.hosts)):
        for name in names:
            if not pattern.fullmatch(name):
                yield (key,), f"{name!r} is not a name; {limits.naming}"
    for name, count in Counter((*graph.switches, *graph.hosts)).items():
        if count > 1:
            yield ("switches",), f"{name} is named {count} times among switches and hosts; give each its own name"


def _count_problems(graph: FabricGraph, limits: Limits) -> Iterator[Problem]:
    least, most = limits.hosts
    if not least <= len(graph.hosts) <= most:
        yield ("hosts",), f"{len(graph.hosts)} hosts; {limits.what} has {least} to {most}"
    for host, nics in Counter(cables[0].host for cables in by_nic(graph.host_ports)).items():
        if nics > limits.nics:
            yield ("links",), f"{host} has {nics} NICs; give it 1 to {limits.nics}"
    for switch, ports in Counter(port.switch for port in graph.host_ports).items():
        if ports > limits.ports:
            yield ("links",), f"{switch} has {ports} NICs; give it at most {limits.ports}"
    if len(graph.switches) > limits.switches:
        yield ("switches",), f"{len(graph.switches)}; {limits.what} has up to {limits.switches}"
    if len(graph.trunks) > limits.trunks:
        yield ("links",), f"{len(graph.trunks)} between switches; give at most {limits.trunks}"


def _end_problems(cable: HostPort | Trunk, known: frozenset[str], hosts: frozenset[str]) -> Iterator[str]:
    ends = cable.ends
    if ends[0] == ends[1]:
        yield "a link to itself; name two switches"
    yield from (f"no switch and no host is called {name!r}" for name in ends if name not in known)
    if ends[1] in hosts:
        yield "a link between two hosts; put a switch between them"


def _figure_problems(cable: HostPort | Trunk, limits: Limits) -> Iterator[str]:
    slowest, fastest = limits.rates
    if not units.parse_rate(slowest) <= cable.rate_bps <= units.parse_rate(fastest):
        unknown = "" if cable.rate_bps else ", and its rate is 0 or not stated"
        yield f"rates: a link carries {slowest} to {fastest}{unknown}"
    if not 0 <= cable.delay_s <= limits.delay_s:
        yield f"delay: {cable.delay_s:g} s; give 0 to {limits.delay_s:g} seconds"


def _bond_problems(cables: Sequence[HostPort], limits: Limits) -> Iterator[str]:
    """What the ports of one NIC cannot be."""
    if len(cables) == 1:
        yield "a single port; give it a further link, or no bond"
    if len(cables) > limits.bond_ports:
        yield f"{len(cables)} ports; give it at most {limits.bond_ports} links"
    if len({cable.switch for cable in cables}) < len(cables):
        yield "two ports on one switch; connect each to a switch of its own"
    if len({(cable.rate_bps, cable.delay_s, cable.plane) for cable in cables}) > 1:
        yield "ports of different rate, delay or plane; give them the same"
    if len({cable.nic for cable in cables}) > 1:
        yield "ports of different NICs; name one"


def _shared_ports(graph: FabricGraph) -> Iterator[Problem]:
    """Ports and NICs that have two cables."""
    used: set[str] = set()
    for cable, end in _stated_ends(graph):
        if end in used:
            yield _place(cable), f"{end} has two cables; give each its own port"
        used.add(end)


def _stated_ends(graph: FabricGraph) -> Iterator[tuple[HostPort | Trunk, str]]:
    """Every stated switch port, and every stated NIC once, with its cable."""
    for port in graph.host_ports:
        if port.port:
            yield port, f"{port.switch}/{port.port}"
    for first, *_ in by_nic(graph.host_ports):
        if first.nic >= 0:
            yield first, f"{first.host}/{first.nic}"
    for trunk in graph.trunks:
        for switch, number in ((trunk.a, trunk.a_port), (trunk.b, trunk.b_port)):
            if number:
                yield trunk, f"{switch}/{number}"


def _reach_problems(graph: FabricGraph) -> Iterator[Problem]:
    """Hosts that another host cannot reach from any NIC, and switches that reach no host."""
    part = _parts(graph)
    parts: dict[str, set[int]] = {host: set() for host in graph.hosts}
    for port in graph.host_ports:
        parts.get(port.host, set()).add(part.get(port.switch, -1))
    first = {frozenset(mine): host for host, mine in reversed(parts.items())}
    for mine, host in sorted(first.items(), key=lambda item: graph.hosts.index(item[1])):
        if other := next((other for theirs, other in first.items() if theirs.isdisjoint(mine)), ""):
            lost, start = (other, host) if mine else (host, graph.hosts[0])
            yield ("links",), f"{lost} cannot be reached from {start}; cable it, or state its switch"
    tiers = tiers_of(graph)
    for switch in graph.switches:
        if switch not in tiers:
            yield ("links",), f"no host can be reached from {switch}"


def _parts(graph: FabricGraph) -> dict[str, int]:
    """The number of the connected part that each switch is in."""
    joined, part = neighbours(graph), {}
    for number, start in enumerate(graph.switches):
        waiting: list[str] = [start]
        while waiting:
            here = waiting.pop()
            if here not in part:
                part[here] = number
                waiting += joined.get(here, ())
    return part


def _place(cable: HostPort | Trunk) -> Keys:
    return ("links", cable.position) if cable.position >= 0 else ("links",)
