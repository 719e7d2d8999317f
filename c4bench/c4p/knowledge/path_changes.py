"""How traces differ from what was known of paths, and what a search that has not ended shows of other paths. Pure."""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from c4bench.c4p.knowledge.atlas import Pair


class Traced(NamedTuple):
    """How many source ports of a pair are or were traced, and how many before the first that is not complete."""

    ports: int
    complete: int


class PathSample(NamedTuple):
    """What a search shows of the hops that its paths do not cross.

    Switches have answers left for some NICs only, so paths over others are found first: what was `traced` of each pair,
    the hops that were `seen`, also on paths not known to their end, and whether a hop `can_answer` a NIC.
    """

    traced: Mapping[Pair, Traced]
    seen: Collection[str]
    can_answer: Callable[[str, str], bool]

    def size(self, hop: str, found: Mapping[Pair, int]) -> int:
        """How many of the paths `found` by pair are a random sample of those that may cross this hop."""
        answered = {pair for pair in found if self.can_answer(pair[0], hop)}
        others = [self.traced[pair] for pair in sorted(found) if pair not in answered and pair in self.traced]
        return sum(found[pair] for pair in answered) + sample_size(others)


def sample_size(pairs: Sequence[Traced]) -> int:
    """How many traces of these pairs are a random sample of paths: those before the first one that is not complete.

    Traces over a switch that has answers left are completed before others, whatever share of paths it has. The order is
    that in which they are asked: the first port of each pair, then the second.
    """
    stops = [(traced.complete, place) for place, traced in enumerate(pairs) if traced.complete < traced.ports]
    if not stops:
        return sum(traced.ports for traced in pairs)
    complete, stop = min(stops)
    return sum(min(traced.ports, complete + (place < stop)) for place, traced in enumerate(pairs))


Paths = list[tuple[str, ...]]
# The hops of each source port's path, by pair of NICs.
PathsOfPairs = Mapping[Pair, Mapping[int, tuple[str, ...]]]
# The probability that a hop which carries its share is not on any of the paths found since then.
_MISSED = 0.01


def gone_hops(before: PathsOfPairs, found: PathsOfPairs, sample: PathSample | None, *, certain: bool) -> set[str]:
    """The hops that pairs crossed `before`, and that no path `found` since then crosses.

    A port that crossed the hop must have been found to take another path. Unless it is `certain` that all paths were
    found, the `sample` must be large enough to have one over the hop; without one, the paths found are a random sample.
    """
    now = pairs_by_hop(found).keys() | set(sample.seen if sample else ())
    gone: set[str] = set()
    for hop, pairs in pairs_by_hop(before).items():
        if hop in now or not any(_bypassed(hop, before[pair], found[pair]) for pair in pairs):
            continue
        counts = {pair: len(found[pair]) for pair in pairs}
        size = sample.size(hop, counts) if sample else sum(counts.values())
        if certain or (1 - _share(hop, _paths(before, pairs), _paths(found, pairs), now)) ** size <= _MISSED:
            gone.add(hop)
    return gone


def _share(hop: str, before: Paths, found: Paths, now: Collection[str]) -> float:
    """The share of paths that cross a hop if it is there: as `before` beside paths that are crossed `now`.

    It is no more than that of each hop which paths `found` cross in its place.
    """
    over = [hops for hops in before if hop in hops]
    beside = sum(hop not in hops and all(each in now for each in hops) for hops in before)
    place = over[0].index(hop)
    instead = {hops[place] for hops in found if len(hops) > place}
    return min(len(over) / (len(over) + beside), 1 / (1 + len(instead)))


def _paths(known: PathsOfPairs, pairs: Iterable[Pair]) -> Paths:
    return [hops for pair in pairs for hops in known[pair].values()]


def pairs_by_hop(paths: PathsOfPairs) -> dict[str, set[Pair]]:
    """The pairs with a path over each hop."""
    by_hop: dict[str, set[Pair]] = {}
    for pair, of_ports in paths.items():
        for hop in {hop for hops in of_ports.values() for hop in hops}:
            by_hop.setdefault(hop, set()).add(pair)
    return by_hop


def _bypassed(hop: str, before: Mapping[int, tuple[str, ...]], found: Mapping[int, tuple[str, ...]]) -> bool:
    """Whether a port that crossed the hop before takes another path now."""
    return any(port in found and hop not in found[port] for port, hops in before.items() if hop in hops)


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
