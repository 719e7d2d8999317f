"""The fabric's cables as probing shows them: which addresses belong to one switch, and which links there are.

A hop is the address at the far end of a directed link, and the last hop of a path is the destination's own. A link has
one near end, so all hops that come directly before a hop belong to one switch. A NIC with one cable receives from the
switch that it sends to.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Atlas


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
    known = Counter(names[at] for at in (hop.partition("%")[0] for hop in hops) if at in names)
    return min(known, key=lambda name: (-known[name], name)) if known else hops[0]
