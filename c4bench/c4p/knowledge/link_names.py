"""The names of links as people say them: by nodes, and by the switches' ports where they are known. Pure."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import msgspec

from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.cabling import Link, NamedFabric, infer, nodes_of, recognise, tiers
from c4bench.model.fabric import Nic
from c4bench.model.graph import FabricGraph, tiers_of

# A switch and its port.
Port = tuple[str, str]


def link_rates(
    fabric: NamedFabric,
    graph: FabricGraph,
    nics: Iterable[Nic],
    port_bps: Mapping[str, float],
    ports: Mapping[str, Port],
) -> dict[str, float]:
    """The rates of links in bit/s, by hop; a link of which nothing is stated is left out.

    The first of these that is stated counts: the rate of the port at the link's far end (`port_bps`, by hop: `c4.rates`
    of a switch); the cable at that port in the graph (`ports`, by hop); the slowest cable between the link's two ends
    in the graph; the rate of a cable of the NIC at either end. A switch whose name is guessed may be another of its
    tier. The graph's rate then counts only if it is that of all links that the link may be.
    """
    by_port, between = _by_port(graph), _Between(graph, fabric.guessed)
    nic_bps = {nic.name: nic.cable_bps for nic in nics}
    rates = {}
    for link in fabric.links:
        stated = (
            port_bps.get(link.hop),
            by_port.get(port_at(link.hop, ports)),
            between.rate_bps(link),
            nic_bps.get(link.source) or nic_bps.get(link.target),
        )
        if rate_bps := next(filter(None, stated), 0.0):
            rates[link.hop] = rate_bps
    return rates


def port_at(hop: str, ports: Mapping[str, Port]) -> Port:
    """The switch and the port at a hop, "" where not known; one without an own address is `ADDRESS%INTERFACE`."""
    address, _, interface = hop.partition("%")
    switch, own = ports.get(address, ("", ""))
    return switch, interface or own


class _Between:
    """The rates of a graph's cables, by what is known of their ends."""

    def __init__(self, graph: FabricGraph, guessed: frozenset[str]) -> None:
        self._guessed, self._tiers = guessed, tiers_of(graph)
        self._rates: dict[tuple[str | int, str | int], set[float]] = defaultdict(set)
        for cable in graph.cables:
            a, b = nodes_of(cable)
            for near, far in ((a, b), (b, a)):
                for one in (near, self._tiers.get(near, 0)):
                    for other in (far, self._tiers.get(far, 0)):
                        self._rates[one, other].add(cable.rate_bps)

    def rate_bps(self, link: Link) -> float:
        """The slowest of the link's two ends; 0 if there is none, or if a guess would choose among several."""
        rates = self._rates.get((self._end(link.source), self._end(link.target)), {0.0})
        guess = not self._guessed.isdisjoint((link.source, link.target))
        return 0.0 if guess and len(rates) > 1 else min(rates)

    def _end(self, node: str) -> str | int:
        """A node by its name, or by its tier if the name is guessed."""
        return self._tiers.get(node, 0) if node in self._guessed else node


def _by_port(graph: FabricGraph) -> dict[Port, float]:
    """The rate of the cable at each switch port that the graph states."""
    rates = {(port.switch, port.port): port.rate_bps for port in graph.host_ports}
    for trunk in graph.trunks:
        rates |= {(trunk.a, trunk.a_port): trunk.rate_bps, (trunk.b, trunk.b_port): trunk.rate_bps}
    return {port: rate_bps for port, rate_bps in rates.items() if port[1]}


# An address may have colons, and one may follow it.
_LINK = re.compile(r"\blink (\S+?)(?=[,;:]?(?:\s|$))")


class NamedLinks(msgspec.Struct, frozen=True):
    """What known paths show of a fabric: its directed links and their names, by hop, and each node's tier.

    A name is `leaf2/up1 > spine1/down2`, without the ports that nothing states. Tier 0 are NICs, 1 leaves.
    """

    links: Mapping[str, Link] = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})
    tiers: Mapping[str, int] = MappingProxyType({})

    def beside(self, before: "NamedLinks", missing: Collection[str]) -> "NamedLinks":
        """These links, and those that are missing and that only `before` has: no path shows them any more."""
        lost = {hop: before.links[hop] for hop in missing if hop in before.links and hop not in self.links}
        nodes = {node for link in lost.values() for node in (link.source, link.target)}
        tiers = {node: before.tiers[node] for node in nodes if node in before.tiers}
        return NamedLinks(
            lost | {**self.links}, {hop: before.names[hop] for hop in lost} | {**self.names}, tiers | {**self.tiers}
        )


def name_links(
    atlas: Atlas, graph: FabricGraph | None = None, ports: Mapping[str, Port] = MappingProxyType({})
) -> NamedLinks:
    """Name the links of the atlas's paths by the stated graph, if any, and by the switches' `ports`, by hop address."""
    switches = {address: port[0] for address, port in ports.items()}
    found = infer(atlas, switches) if graph is None else recognise(atlas, graph, switches).links
    links = {link.hop: link for link in found}
    ends = _Ends(graph, found, ports)
    nics = {nic for pair in atlas.pairs for nic in pair}
    names = {hop: " > ".join(ends.of(link, _port_of(link, ports))) for hop, link in links.items()}
    return NamedLinks(links, names, tiers(found, nics))


def in_words(text: str, names: Mapping[str, str]) -> str:
    """A sentence in which `link ADDRESS` has become `link NAME`, where `names` has one for the address."""
    return _LINK.sub(lambda found: f"link {names.get(found[1], found[1])}", text)


class _Ends:
    """The ends of links with their ports, by the cables that a graph states, else by the other direction's link."""

    def __init__(self, graph: FabricGraph | None, links: Iterable[Link], ports: Mapping[str, Port]) -> None:
        self._entered: dict[tuple[str, str], list[str]] = defaultdict(list)
        for link in links:
            self._entered[link.source, link.target].append(_port_of(link, ports))
        # By a port of either end, and by the nodes alone: the ports at (source, target) of the directed links there.
        self._stated: dict[tuple[str, str, str], list[tuple[str, str]]] = defaultdict(list)
        for source, source_port, target, target_port in _directed(graph):
            self._stated[source, target, target_port].append((source_port, target_port))
            if target_port:
                self._stated[source, target, ""].append((source_port, target_port))

    def of(self, link: Link, asked: str) -> tuple[str, str]:
        """The near and the far end; `asked` is the port at the far end, "" where its switch does not say."""
        stated = self._stated.get((link.source, link.target, asked), [])
        near, far = stated[0] if len(stated) == 1 else ("", "")
        back = self._entered.get((link.target, link.source), [])
        near = near or (back[0] if len(back) == 1 else "")
        return _end(link.source, near), _end(link.target, asked or far)


def _port_of(link: Link, ports: Mapping[str, Port]) -> str:
    """The port at the far end of a link, as its switch says."""
    switch, port = port_at(link.hop, ports)
    return port if switch == link.target else ""


def _directed(graph: FabricGraph | None) -> Iterable[tuple[str, str, str, str]]:
    """Both directions of each cable: source and its port, target and its port."""
    for cable in graph.host_ports if graph else ():
        nic = f"{cable.host}/{cable.nic}"
        yield nic, "", cable.switch, cable.port
        yield cable.switch, cable.port, nic, ""
    for trunk in graph.trunks if graph else ():
        yield trunk.a, trunk.a_port, trunk.b, trunk.b_port
        yield trunk.b, trunk.b_port, trunk.a, trunk.a_port


def _end(node: str, port: str) -> str:
    return f"{node}/{port}" if port else node
