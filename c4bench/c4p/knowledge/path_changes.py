"""How traces differ from what was known of paths. Pure."""

import itertools
from collections.abc import Collection, Iterable, Mapping

import msgspec

from c4bench.c4p.knowledge.gone_hops import PathsOfPairs, pairs_by_hop
from c4bench.c4p.knowledge.leaf_groups import Pair


class PathChanges(msgspec.Struct, frozen=True):
    """How traces differ from what was known.

    `changed` are pairs with a new port, or a port that takes another path. `answered` are hops that answered; `silent`
    are hops that should have answered and did not to any trace, and `refused` are these with the NICs that asked them.
    `gone` are hops that ports of pairs crossed before they were learnt again, and none crosses now. For each silent or
    gone hop, `crossed` are the pairs whose ports crossed it, and `onward` the next hops on their paths.
    """

    changed: frozenset[Pair] = frozenset()
    answered: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    crossed: Mapping[str, Collection[Pair]] = {}
    onward: Mapping[str, Collection[str]] = {}
    refused: frozenset[tuple[str, str]] = frozenset()


def path_changes(
    known: PathsOfPairs,
    changed: Collection[Pair] = (),
    answered: Collection[str] = (),
    refused: Collection[tuple[str, str]] = (),
    gone: Collection[str] = (),
) -> PathChanges:
    """The changes, with the pairs and next hops of the `known` paths that crossed a silent or gone hop."""
    silent = frozenset(hop for _, hop in refused)
    by_hop = pairs_by_hop(known)
    crossed = {hop: frozenset(by_hop.get(hop, ())) for hop in silent.union(gone)}
    onward = _onward(itertools.chain.from_iterable(of_ports.values() for of_ports in known.values()), crossed)
    sets = frozenset(changed), frozenset(answered), silent, frozenset(gone)
    return PathChanges(*sets, crossed, onward, frozenset(refused))


def _onward(paths: Iterable[tuple[str, ...]], hops: Collection[str]) -> dict[str, set[str]]:
    """The hops that follow each of `hops` on these paths."""
    onward: dict[str, set[str]] = {}
    for hop, following in itertools.chain.from_iterable(map(itertools.pairwise, paths if hops else ())):
        if hop in hops:
            onward.setdefault(hop, set()).add(following)
    return onward
