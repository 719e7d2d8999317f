"""Pairs of NICs between the same two leaves, which share all paths between these leaves."""

from collections.abc import Collection, Mapping

from c4bench.c4p.disjoint_sets import DisjointSets

# The links of a path without the first and the last, which lead from and to a NIC.
InnerPath = tuple[str, ...]
Pair = tuple[str, str]


def leaf_groups(inner_paths: Mapping[Pair, Collection[InnerPath]]) -> dict[Pair, InnerPath]:
    """A representative for each pair, the same for all pairs that share an inner path; none for pairs at one leaf."""
    same_leaves: DisjointSets[InnerPath] = DisjointSets()
    several = {pair: sorted(set(paths) - {()}) for pair, paths in inner_paths.items()}
    for paths in filter(None, several.values()):
        same_leaves.join(paths)
    return {pair: same_leaves.root(paths[0]) for pair, paths in several.items() if paths}
