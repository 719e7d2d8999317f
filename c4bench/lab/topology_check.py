"""What makes a graph of cables no fabric that a lab can be."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from c4bench.errors import UsageError
from c4bench.lab.topology import Graph, HostPort, distances, nics_of, subnet_numbers, tiers_of

# An interface of a host is its name with up to three letters or digits more, and has at most 15 (IFNAMSIZ).
_NAME = re.compile(r"[a-z][a-z0-9-]{0,11}")
_RATE_MIN_BPS, _RATE_MAX_BPS = 1e8, 1e11
_DELAY_MAX_S = 1.0
_HOSTS_MIN, _HOSTS_MAX = 2, 64
NICS_AT_MOST = 8
SWITCHES_AT_MOST = 128
_BOND_PORTS = 2
_PORTS_AT_MOST = 254  # a byte of the address
_LINKS_AT_MOST = 4096
_ICMP_MAX = 1_000_000
_SUBNETS_AT_MOST = 254  # a byte of the address


def check(graph: Graph) -> None:
    """Raises UsageError that names the key and the reason."""
    problem = next(_problems(graph), "")
    if problem:
        raise UsageError(problem)


def _problems(graph: Graph) -> Iterator[str]:
    yield from _name_problems(graph)
    yield from _count_problems(graph)
    for port in graph.host_ports:
        yield from _cable_problems(graph, (port.host, port.switch), port.rate_bps, port.delay_s)
    for trunk in graph.trunks:
        yield from _cable_problems(graph, (trunk.a, trunk.b), trunk.rate_bps, trunk.delay_s)
    for host in graph.hosts:
        for cables in nics_of(port for port in graph.host_ports if port.host == host):
            yield from _bond_problems(cables) if cables[0].bond else ()
    if not 0 <= graph.withdraw_s <= _DELAY_MAX_S * 10:
        yield f"withdraw_s: {graph.withdraw_s:g}; give 0 to {_DELAY_MAX_S * 10:g} seconds"
    for key in ("ratelimit_ms", "msgs_per_sec", "msgs_burst"):
        if not 0 <= (value := getattr(graph.icmp, key)) <= _ICMP_MAX:
            yield f"icmp.{key}: {value}; give 0 to {_ICMP_MAX}"
    yield from _reach_problems(graph)


def _name_problems(graph: Graph) -> Iterator[str]:
    for key, names in (("switches", graph.switches), ("hosts", graph.hosts)):
        for name in names:
            if not _NAME.fullmatch(name):
                yield f"{key}: {name!r} is not a name; use up to 12 lower-case letters, digits and hyphens"
    for name, count in Counter((*graph.switches, *graph.hosts)).items():
        if count > 1:
            yield f"switches, hosts: {name} is named {count} times; give each its own name"


def _count_problems(graph: Graph) -> Iterator[str]:
    if not _HOSTS_MIN <= len(graph.hosts) <= _HOSTS_MAX:
        yield f"hosts: {len(graph.hosts)} hosts; a lab has {_HOSTS_MIN} to {_HOSTS_MAX}"
    for host in graph.hosts:
        nics = len(nics_of(port for port in graph.host_ports if port.host == host))
        if nics > NICS_AT_MOST:
            yield f"links: {host} has {nics} NICs; give it 1 to {NICS_AT_MOST}"
    if (subnets := len(subnet_numbers(graph))) > _SUBNETS_AT_MOST:
        yield f"links: {subnets} edge switches and pairs of them with bonds; give at most {_SUBNETS_AT_MOST}"
    for switch, ports in Counter(port.switch for port in graph.host_ports).items():
        if ports > _PORTS_AT_MOST:
            yield f"links: {switch} has {ports} NICs; give it at most {_PORTS_AT_MOST}"
    if len(graph.switches) > SWITCHES_AT_MOST:
        yield f"switches: {len(graph.switches)}; a lab has up to {SWITCHES_AT_MOST}"
    if len(graph.trunks) > _LINKS_AT_MOST:
        yield f"links: {len(graph.trunks)} between switches; give at most {_LINKS_AT_MOST}"


def _cable_problems(graph: Graph, ends: tuple[str, str], rate_bps: float, delay_s: float) -> Iterator[str]:
    where = f"links: {ends[0]} to {ends[1]}"
    if ends[0] == ends[1]:
        yield f"{where}: a link to itself; name two switches"
    for name in ends:
        if name not in graph.switches and name not in graph.hosts:
            yield f"{where}: no switch and no host is called {name!r}"
    if ends[1] in graph.hosts:
        yield f"{where}: a link between two hosts; put a switch between them"
    if not _RATE_MIN_BPS <= rate_bps <= _RATE_MAX_BPS:
        yield f"{where}: rates: a link carries 100mbit to 100gbit"
    if not 0 <= delay_s <= _DELAY_MAX_S:
        yield f"{where}: delay: {delay_s:g} s; give 0 to {_DELAY_MAX_S:g} seconds"


def _bond_problems(cables: Sequence[HostPort]) -> Iterator[str]:
    """Ports of one NIC that a bond over two switches cannot have."""
    where = f"links: bond {cables[0].bond} of {cables[0].host}"
    if len(cables) != _BOND_PORTS:
        yield f"{where}: {len(cables)} ports; give it {_BOND_PORTS} links"
    if len({cable.switch for cable in cables}) < len(cables):
        yield f"{where}: two ports on {cables[0].switch}; connect them to two switches"
    if len({(cable.rate_bps, cable.delay_s, cable.plane) for cable in cables}) > 1:
        yield f"{where}: ports of different rate, delay or plane; give them the same"


def _reach_problems(graph: Graph) -> Iterator[str]:
    """Hosts that another host cannot reach from any NIC, and switches that reach no host."""
    neighbours: dict[str, list[str]] = defaultdict(list)
    for trunk in graph.trunks:
        neighbours[trunk.a].append(trunk.b)
        neighbours[trunk.b].append(trunk.a)
    edges: dict[str, set[str]] = {host: set() for host in graph.hosts}
    for port in graph.host_ports:
        edges[port.host].add(port.switch)
    for host, mine in edges.items():
        reached = distances(mine, neighbours)
        if other := next((other for other, theirs in edges.items() if theirs.isdisjoint(reached)), ""):
            yield f"links: {host if not mine else other} cannot be reached from {graph.hosts[0] if not mine else host}"
    tiers = tiers_of(graph)
    for switch in graph.switches:
        if switch not in tiers:
            yield f"links: no host can be reached from {switch}"
