"""Cables counted by their ends: those that a graph states, and those that paths cross."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from c4bench.c4p.knowledge.cabling import Link
from c4bench.c4p.knowledge.leaf_groups import Pair
from c4bench.model.graph import FabricGraph, HostPort, Trunk, distances, neighbours

# Two nodes (NICs or switches, by name) in alphabetical order.
Ends = tuple[str, str]
# How many cables are between two nodes.
Cables = Counter[Ends]


def ends(a: str, b: str) -> Ends:
    """The ends of a cable, in order."""
    return (a, b) if a <= b else (b, a)


def nodes_of(cable: HostPort | Trunk) -> Ends:
    """The nodes that a stated cable joins, the NIC first."""
    return (f"{cable.host}/{cable.nic}", cable.switch) if isinstance(cable, HostPort) else (cable.a, cable.b)


def crossed(links: Iterable[Link]) -> Cables:
    """The cables of directed links, of which either direction may be known."""
    directed = Counter((link.source, link.target) for link in links)
    found: Cables = Counter()
    for (source, target), count in directed.items():
        found[ends(source, target)] = max(found[ends(source, target)], count)
    return found


def expected(graph: FabricGraph, pairs: Iterable[Pair]) -> Cables:
    """The stated cables that paths of these pairs of NICs cross, if each switch forwards over all shortest paths."""
    leaves: dict[str, set[str]] = defaultdict(set)
    for nic, leaf in map(nodes_of, graph.host_ports):
        leaves[nic].add(leaf)
    sources: dict[frozenset[str], set[str]] = defaultdict(set)
    nics: set[str] = set()
    for source, destination in pairs:
        nics |= {source, destination}
        if source in leaves and destination in leaves:
            sources[frozenset(leaves[destination])] |= leaves[source]
    joined = neighbours(graph)
    used = {ends(*step) for targets, starts in sources.items() for step in _steps(joined, starts, targets)}
    stated = Counter(ends(*nodes_of(cable)) for cable in graph.trunks)
    found = Counter({pair: count for pair, count in stated.items() if pair in used})
    found.update(ends(nic, leaf) for nic in nics & leaves.keys() for leaf in leaves[nic])
    return found


def _steps(joined: Mapping[str, Iterable[str]], starts: Collection[str], targets: Collection[str]) -> Iterator[Ends]:
    """The steps of all shortest paths from the switches `starts` to the nearest of `targets`."""
    left = distances(targets, joined)
    here = {switch for switch in starts if switch in left}
    while here:
        steps = {(near, far) for near in here for far in joined.get(near, ()) if left[far] < left[near]}
        yield from sorted(steps)
        here = {far for _, far in steps}
