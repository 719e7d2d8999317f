"""When all paths between two leaves are known: the multipath detection algorithm. Pure.

The paths between two leaves are complete if k of them were found by so many traces that one more would have been found
too (Veitch et al., "Failure Control in Multipath Route Tracing", INFOCOM 2009, section II).
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.leaf_groups import InnerPath, Pair
from c4bench.c4p.knowledge.pair_search import PairSearch
from c4bench.c4p.knowledge.sample import sample_size

# The probability that there is one more path than those that were found.
_MISSED = 0.01


class FoundPaths(NamedTuple):
    """The paths found between two leaves, without the links of NICs; `all_found` if there are no more."""

    inner: frozenset[InnerPath]
    all_found: bool


def found_paths(
    searches: Mapping[Pair, PairSearch], leaf: DisjointSets[str], proven: Collection[frozenset[InnerPath]] = ()
) -> dict[Pair, FoundPaths]:
    """The paths found between the two leaves of each pair, by all pairs between these leaves together.

    NICs of one set of `leaf` are at one leaf. Pairs that share a path are between the same leaves too. That is no
    chance, so such a trace shows nothing about other paths: it counts once. Sets of paths that were `proven` to be all
    stay so when further pairs are searched.
    """
    inner = {pair: {hops[1:] for hops in search.complete().values()} - {()} for pair, search in searches.items()}
    ends = {(source, destination): (leaf.root(source), leaf.root(destination)) for source, destination in searches}
    together: DisjointSets[tuple[str, str]] = DisjointSets()
    by_path: dict[InnerPath, set[tuple[str, str]]] = defaultdict(set)
    for pair, paths in inner.items():
        for path in paths:
            by_path[path].add(ends[pair])
    for sharing in by_path.values():
        together.join(sorted(sharing))
    members: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair, leaves in ends.items():
        members[together.root(leaves)].append(pair)
    found: dict[Pair, FoundPaths] = {}
    for pairs in members.values():
        if known := frozenset(path for pair in pairs for path in inner[pair]):
            joined = len({ends[pair] for pair in pairs if inner[pair]}) - 1
            traces = sample_size([searches[pair].traced for pair in pairs]) - joined
            all_found = known in proven or enough_traces(len(known), traces)
            found |= dict.fromkeys(pairs, FoundPaths(known, all_found))
    return found


def enough_traces(paths: int, traces: int) -> bool:
    """Whether one more path than these would have been found by so many traces, with a probability of 0.99."""
    return bool((paths + 1) * (paths / (paths + 1)) ** traces <= _MISSED)
