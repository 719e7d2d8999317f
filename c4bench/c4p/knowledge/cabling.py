"""The fabric's cables as probing shows them: which addresses belong to one switch, which links there are, what differs.

A hop is the address at the far end of a directed link, and the last hop of a path is the destination's own. A link has
one near end, so all hops that come directly before a hop belong to one switch. A NIC with one cable receives from the
switch that it sends to.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from types import MappingProxyType

import msgspec

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Atlas


class Link(msgspec.Struct, frozen=True, order=True):
    """A directed link between nodes (NICs or switches, by name); `hop` is the address at its far end."""

    source: str
    target: str
    hop: str


class Miscabling(msgspec.Struct, frozen=True, order=True):
    """A cable at `node` that is not as declared; `declared` or `found` is None if there is only the other."""

    node: str
    declared: str | None
    found: str | None

    def __str__(self) -> str:
        """What is wrong, and what to do."""
        if self.found is None:
            return f"{self.node}: no path crosses the declared link to {self.declared}; is it up?"
        if self.declared is None:
            return f"{self.node}: a link to {self.found} is not declared; add it to the inventory"
        return f"{self.node} is cabled to {self.found}, declared is {self.declared}; check the cable or the inventory"


def infer(atlas: Atlas, names: Mapping[str, str] = MappingProxyType({})) -> tuple[Link, ...]:
    """Every link that a known path crosses, in order.

    `names` are the switches' names by hop address. A switch without a name is called by its lowest address. Addresses
    that no path shows to be of one switch count as several switches.
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


def compare(declared: Iterable[Link], found: Iterable[Link]) -> tuple[Miscabling, ...]:
    """The cables that are not as declared. Both must name switches alike: give `infer` the declared names."""
    wanted = Counter((link.source, link.target) for link in declared)
    seen = Counter((link.source, link.target) for link in found)
    absent, extra = _by_node(wanted - seen), _by_node(seen - wanted)
    mismatches: list[Miscabling] = []
    for node in sorted(absent.keys() | extra.keys()):
        lost, got = sorted(absent[node]), sorted(extra[node])
        mismatches += [Miscabling(node, *pair) for pair in zip_longest(lost, got)]
    return tuple(mismatches)


def misplaced(links: Iterable[Link], declared: Mapping[str, str]) -> tuple[Miscabling, ...]:
    """NICs that are connected to another switch than declared, in order; `declared` are switches by NIC.

    A switch gets the name that most of its NICs declare; no two switches get the same name.
    """
    on = {link.source: link.target for link in links if link.source in declared}
    votes = Counter((node, declared[nic]) for nic, node in on.items())
    called: dict[str, str] = {}
    for node, name in sorted(votes, key=lambda vote: (-votes[vote], vote)):
        if node not in called and name not in called.values():
            called[node] = name
    return tuple(
        Miscabling(nic, declared[nic], called.get(node, node))
        for nic, node in sorted(on.items())
        if called.get(node) != declared[nic]
    )


def tiers(links: Iterable[Link], nics: Iterable[str]) -> dict[str, int]:
    """The tier of every node, as hops from the nearest NIC: 0 for a NIC, 1 for a leaf, and so on."""
    joined = defaultdict(set)
    for link in links:
        joined[link.source].add(link.target)
        joined[link.target].add(link.source)
    tier_of: dict[str, int] = {}
    nodes, tier = set(nics), 0
    while nodes:
        tier_of |= dict.fromkeys(nodes, tier)
        nodes, tier = {far for node in nodes for far in joined[node]} - tier_of.keys(), tier + 1
    return tier_of


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
    known = Counter(names[hop] for hop in hops if hop in names)
    return min(known, key=lambda name: (-known[name], name)) if known else hops[0]


def _by_node(cables: Counter[tuple[str, str]]) -> dict[str, list[str]]:
    targets: dict[str, list[str]] = defaultdict(list)
    for source, target in cables.elements():
        targets[source].append(target)
    return targets
