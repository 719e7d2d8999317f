"""The rate of every link that paths cross, from all that the inventory states. This is the one place that decides."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from c4bench.c4p.knowledge.cables import nodes_of
from c4bench.c4p.knowledge.cabling import Link
from c4bench.c4p.knowledge.graph_comparison import NamedFabric
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
