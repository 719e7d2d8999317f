"""The fabric's cables as probing shows them: which addresses belong to one switch, and which links there are.

A hop is the address at the far end of a directed link, and the last hop of a path is the destination's own. A link has
one near end, so all hops that come directly before a hop belong to one switch. A NIC with one cable receives from the
switch that it sends to.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Atlas, Pair
from c4bench.model.graph import FabricGraph, HostPort, Trunk, distances, neighbours


class Link(msgspec.Struct, frozen=True, order=True):
    """A directed link between nodes (NICs or switches, by name); `hop` is the address at its far end."""

    source: str
    target: str
    hop: str


def infer(atlas: Atlas, names: Mapping[str, str] = MappingProxyType({})) -> tuple[Link, ...]:
    """Every link that a known path crosses, in order.

    `names` are the switches' names by address; a hop without an address of its own is `ADDRESS%INTERFACE`. A switch
    without a name is called by its lowest hop. Hops that no path shows to be of one switch count as several switches.
    """
    before, ends = _neighbours(atlas)
    switch = _switches(before, ends)
    members = defaultdict(list)
    for hop in sorted(before.keys() - ends.keys()):
        members[switch[hop]].append(hop)
    called = {root: _name(hops, names) for root, hops in members.items()}
    node = {hop: called[switch[hop]] for hop in before.keys() - ends.keys()} | ends
    return tuple(
        sorted({Link(node.get(near, near), node[hop], hop) for hop, nearer in before.items() for near in nearer})
    )


def tiers(links: Iterable[Link], nics: Iterable[str]) -> dict[str, int]:
    """The tier of every node, as hops from the nearest NIC: 0 for a NIC, 1 for a leaf, and so on."""
    joined = defaultdict(set)
    for link in links:
        joined[link.source].add(link.target)
        joined[link.target].add(link.source)
    return distances(nics, joined)


def _neighbours(atlas: Atlas) -> tuple[dict[str, set[str]], dict[str, str]]:
    """The hops or NICs directly before each hop, and the NIC that each last hop belongs to."""
    before: dict[str, set[str]] = defaultdict(set)
    ends: dict[str, str] = {}
    for source, destination in atlas.pairs:
        for path in atlas.paths(source, destination):
            for near, hop in zip((source, *path.hops), path.hops, strict=False):
                before[hop].add(near)
            if path.hops:
                ends[path.hops[-1]] = destination
    return before, ends


def _switches(before: Mapping[str, set[str]], ends: Mapping[str, str]) -> dict[str, str]:
    """A representative of the switch that each address belongs to."""
    same: DisjointSets[str] = DisjointSets()
    for together in _same_switch(before, ends):
        if together:
            same.join(together)
    return {hop: same.root(hop) for hop in before}


def _same_switch(before: Mapping[str, set[str]], ends: Mapping[str, str]) -> Iterator[list[str]]:
    """Sets of addresses that must belong to one switch."""
    into: dict[str, list[str]] = defaultdict(list)
    cables = Counter(ends.values())
    for hop, nearer in before.items():
        yield sorted(near for near in nearer if near in before)
        if hop in ends:
            into[ends[hop]] += sorted(near for near in nearer if near in before)
        else:
            for nic in nearer - before.keys():
                into[nic].append(hop)
    yield from (hops for nic, hops in into.items() if cables[nic] <= 1)


def _name(hops: list[str], names: Mapping[str, str]) -> str:
    """The name that most of a switch's addresses have, else its lowest address."""
    known = Counter(names[at] for at in (hop.partition("%")[0] for hop in hops) if at in names)
    return min(known, key=lambda name: (-known[name], name)) if known else hops[0]


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


def identify(links: Iterable[Link], stated: Cables, switches: Collection[str], known: Iterable[str]) -> dict[str, str]:
    """The stated name of each node of `links`; a node for which no name fits keeps its own.

    `switches` are the stated names of switches; `known` are nodes that have their stated names already: NICs, and
    switches that were asked.
    """
    naming = _Naming(links, stated, frozenset(switches))
    for node in known:
        naming.give(node, node)
    while naming.name_neighbours():
        pass
    return naming.nodes | naming.names


class _Naming:
    """The names given so far. Cables count once in each direction, because paths may show only one."""

    def __init__(self, links: Iterable[Link], stated: Cables, switches: frozenset[str]) -> None:
        self._switches = switches
        self.names: dict[str, str] = {}
        # By node, its links to and from others: (other node, whether towards it).
        self._found: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
        # By name, the stated ones, and those of the nodes that have the name to nodes with a name.
        self._stated: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
        self._used: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
        for link in links:
            self._found[link.source][link.target, True] += 1
            self._found[link.target][link.source, False] += 1
        for (a, b), count in stated.items():
            for near, far in ((a, b), (b, a)):
                self._stated[near].update({(far, True): count, (far, False): count})
        self.nodes = {node: node for node in self._found}

    def give(self, node: str, name: str) -> None:
        """Give a node its name."""
        self.names[node] = name
        for (far, towards), count in self._seen(node).items():
            self._used[name][far, towards] += count
            self._used[far][name, not towards] += count

    def _seen(self, node: str) -> Counter[tuple[str, bool]]:
        """The links of a node to nodes with a name, by that name."""
        seen: Counter[tuple[str, bool]] = Counter()
        for (far, towards), count in self._found[node].items():
            if far in self.names:
                seen[self.names[far], towards] += count
        return seen

    def name_neighbours(self) -> bool:
        """Name the nodes that agree best with named ones they are joined to; return whether there were any."""
        candidates = sorted(self._candidates())
        for agreement, *_, node, name in candidates:
            best = agreement == candidates[0][0]
            if best and node not in self.names and self._agreement(node, name) == -agreement:
                self.give(node, name)
        return bool(candidates)

    def _candidates(self) -> Iterator[tuple[int, int, bool, str, str]]:
        """Nodes without a name, each with names that it may have, and how badly each fits; a new name fits better."""
        given = set(self.names.values())
        for node in sorted(self._found.keys() - self.names.keys()):
            names = {name for far, _ in self._seen(node) for name, _ in self._stated[far]} & self._switches
            for name in names:
                if agreement := self._agreement(node, name):
                    yield -agreement, self._left(name, self._seen(node)), name in given, node, name

    def _agreement(self, node: str, name: str) -> int:
        """How many links of a node to named nodes are stated of the name and not used yet."""
        return (self._seen(node) & (self._stated[name] - self._used[name])).total()

    def _left(self, name: str, more: Counter[tuple[str, bool]]) -> int:
        """How many links of a name would be other than stated with `more` of them; those to names not given aside."""
        used = self._used[name] + more
        given = {far for far, _ in used}
        wanted = Counter({end: count for end, count in self._stated[name].items() if end[0] in given})
        return ((wanted - used) + (used - wanted)).total()


class Kind(StrEnum):
    """How what was found differs from what is stated."""

    MISSING = "missing"
    UNEXPECTED = "unexpected"
    ELSEWHERE = "elsewhere"
    FEWER = "fewer"
    MORE = "more"


class CableDifference(msgspec.Struct, frozen=True, order=True):
    """Cables between `a` and `b` (NICs, or switches with or without a port) that are not as stated.

    `stated` and `found` are how many there are. With kind `elsewhere`, the cable at `a` leads to `instead`, not to `b`.
    `by` is what found it: `paths` or `LLDP`.
    """

    a: str
    b: str
    kind: Kind
    stated: int
    found: int
    instead: str = ""
    by: str = "paths"

    def __str__(self) -> str:
        """What is wrong, and what to do."""
        where, check = f"{self.a} to {self.b} by {self.by}", "check the cables and the inventory"
        match self.kind:
            case Kind.MISSING:
                return f"{where}: the stated link is not found; is it up?"
            case Kind.UNEXPECTED:
                return f"{where}: a link that is not stated; add it to c4_fabric"
            case Kind.ELSEWHERE:
                return f"{self.a} by {self.by}: cabled to {self.instead}, stated is {self.b}; {check}"
            case Kind.FEWER:
                return f"{where}: {self.found} of {self.stated} stated parallel links are found; are the others up?"
            case Kind.MORE:
                return f"{where}: {self.found} parallel links, {self.stated} stated; {check}"


class NamedFabric(msgspec.Struct, frozen=True):
    """What an atlas shows of a stated graph: directed links between nodes by their stated names.

    `stated` are the stated cables that the atlas's paths should cross or do cross. `guessed` are the names of
    switches without NICs that were not asked.
    """

    links: tuple[Link, ...]
    stated: Cables
    guessed: frozenset[str]


def recognise(atlas: Atlas, graph: FabricGraph, names: Mapping[str, str] = MappingProxyType({})) -> NamedFabric:
    """Name the atlas's switches as the graph does; `names` are those of switches that were asked, by hop address."""
    known = {hop: name for hop, name in names.items() if name in graph.switches}
    links = infer(atlas, known)
    pairs = [pair for pair in atlas.pairs if atlas.pair_paths(*pair).source_ports]
    stated = expected(graph, pairs)
    certain = {nic for pair in pairs for nic in pair} | set(known.values())
    called = identify(links, stated, graph.switches, certain)
    named = tuple(sorted(Link(called[link.source], called[link.target], link.hop) for link in links))
    everywhere = Cables(ends(*nodes_of(cable)) for cable in graph.cables)
    leaves = {port.switch for port in graph.host_ports}
    return NamedFabric(
        named,
        stated | Cables({pair: everywhere[pair] for pair in crossed(named)}),
        frozenset({*graph.switches, *called.values()} - certain - leaves),
    )


def compare_paths(
    atlas: Atlas, graph: FabricGraph, names: Mapping[str, str] = MappingProxyType({})
) -> tuple[CableDifference, ...]:
    """How the cables that known paths cross differ from the stated ones; `names` as for `recognise`.

    A graph without links between switches is compared only where NICs are stated. Links between two switches whose
    names are guessed are not compared.
    """
    fabric = recognise(atlas, graph, names)
    found = crossed(fabric.links)
    if not graph.trunks:
        stated = {nodes_of(port)[0] for port in graph.host_ports}
        found = Cables({pair: count for pair, count in found.items() if not stated.isdisjoint(pair)})
    return compare(_without_guesses(fabric.stated, fabric), _without_guesses(found, fabric), "paths")


def _without_guesses(cables: Cables, fabric: NamedFabric) -> Cables:
    """The cables of which at least one end is certain."""
    return Cables({pair: count for pair, count in cables.items() if not fabric.guessed.issuperset(pair)})


def compare(stated: Cables, found: Cables, by: str) -> tuple[CableDifference, ...]:
    """The differences in order; a cable that is missing and one at the same node that is unexpected are one."""
    missing = {pair for pair in stated if not found[pair]}
    unexpected = {pair for pair in found if found[pair] and not stated[pair]}
    moved = dict(_moved(missing, unexpected))
    taken = {ends(stays, instead) for stays, _, instead in moved.values()}
    differences = []
    for a, b in sorted(stated.keys() | found.keys()):
        kind = _kind(stated[a, b], found[a, b])
        if (a, b) in moved:
            stays, stated_end, instead = moved[a, b]
            differences.append(CableDifference(stays, stated_end, Kind.ELSEWHERE, stated[a, b], 0, instead, by))
        elif kind and (a, b) not in taken:
            differences.append(CableDifference(a, b, kind, stated[a, b], found[a, b], by=by))
    return tuple(differences)


def _kind(stated: int, found: int) -> Kind | None:
    if stated == found:
        return None
    if not found:
        return Kind.MISSING
    if not stated:
        return Kind.UNEXPECTED
    return Kind.FEWER if found < stated else Kind.MORE


def _moved(missing: set[Ends], unexpected: set[Ends]) -> Iterator[tuple[Ends, tuple[str, str, str]]]:
    """Each missing cable that an unexpected one at the same node replaces: the node, the stated end, the found one."""
    left = set(unexpected)
    for pair in sorted(missing):
        for stays, gone in (pair, pair[::-1]):
            if other := next((other for other in sorted(left) if stays in other), None):
                left.discard(other)
                yield pair, (stays, gone, other[other[0] == stays])
                break
