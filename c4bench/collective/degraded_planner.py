"""Choose how large all-reduces avoid lost NICs: pure functions, with the same result on ranks with the same input.

Two neighbours of a ring use only the NICs that both have, and the ring is as fast as its slowest pair. A rank that has
lost nothing can use every NIC that its neighbour has left, so it separates two ranks that have lost different NICs
(re-ranking of R2CCL, arXiv 2512.25059).
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from operator import itemgetter
from typing import NamedTuple

from c4bench.cost.degraded import Ring, cheapest_strategy, nest

# The channels that each rank has lost.
Lost = Sequence[frozenset[int]]
# How many chunks the fold is pipelined in: enough to make the latency around the ring small.
FOLD_CHUNKS = 32
# Degraded ranks send to all others: every pair must still share a channel after the loss of one more NIC.
_SAFE_CHANNELS = 2


class SplitLevel(NamedTuple):
    """Reduce the fraction `y` of an array without the `degraded` ranks first, over the channels they have `lost`."""

    degraded: tuple[int, ...]
    lost: frozenset[int]
    y: float


class SplitReduce(NamedTuple):
    """Reduce all `levels` and the rest of the array at the same time, then fold in the degraded ranks' parts.

    With `direct` a degraded rank sends its part to all healthy ranks, otherwise around the ring.
    """

    levels: tuple[SplitLevel, ...]
    direct: bool

    @property
    def lost(self) -> frozenset[int]:
        """The channels of all levels."""
        return frozenset[int]().union(*(level.lost for level in self.levels))


class ReorderedRing(NamedTuple):
    """Reduce the array over a ring of the `ranks` in this order."""

    ranks: tuple[int, ...]


Strategy = SplitReduce | ReorderedRing
# The channels that exactly these ranks have lost, by ranks.
LossGroups = Mapping[tuple[int, ...], frozenset[int]]


def agree_on_losses(lost: Sequence[frozenset[int]], sure: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """The channels that each rank of a ring has lost, from what each reports; `sure` are those known for certain.

    A rank that reaches neither neighbour on a channel, when both report that channel as lost, may itself be healthy.
    """
    size = len(lost)
    around = [lost[rank - 1] & lost[(rank + 1) % size] for rank in range(size)]
    return [own - (around[rank] - sure[rank]) for rank, own in enumerate(lost)]


def choose_strategy(lost: Sequence[frozenset[int]], weights: Sequence[int]) -> Strategy | None:
    """The strategy when ranks have lost these channels; None for the plain ring. `weights` are the channels' rates."""
    hurt = tuple(rank for rank, channels in enumerate(lost) if channels)
    if not hurt or any(len(channels) == len(weights) for channels in lost):
        return None
    plain, order = tuple(range(len(lost))), ring_order(lost, weights)
    split, relative = _without_one(lost, weights, hurt) if len(hurt) == 1 else _without_several(lost, weights)
    if split.levels and relative * poorest(order, lost, weights) < sum(weights):
        return split
    return ReorderedRing(order) if order != plain else None


def _without_one(lost: Lost, weights: Sequence[int], hurt: tuple[int, ...]) -> tuple[SplitReduce, float]:
    """The cheapest split for one degraded rank, and its relative cost; no levels if no split pays."""
    whole = sum(weights)
    cost = cheapest_strategy([sum(weights[channel] for channel in channels) / whole for channels in lost], FOLD_CHUNKS)
    levels = (SplitLevel(hurt, lost[hurt[0]], cost.y),) if cost.strategy == "split" else ()
    return SplitReduce(levels, direct=False), cost.relative


def _without_several(lost: Lost, weights: Sequence[int]) -> tuple[SplitReduce, float]:
    """The cheapest split for several degraded ranks: a level for each set of ranks, without levels that do not pay."""
    if len(frozenset(range(len(weights))).difference(*lost)) < _SAFE_CHANNELS:
        return SplitReduce((), direct=True), float("inf")
    best = _nested(_losers(lost, len(weights)), lost, weights)
    while best[0].levels:
        levels = best[0].levels
        candidate = min((_nested(_less(levels, each), lost, weights) for each in levels), key=itemgetter(1))
        if candidate[1] > best[1]:
            break
        best = candidate
    return best


def _losers(lost: Lost, channels: int) -> LossGroups:
    """The ranks that have lost each channel, if at least two still have it."""
    losers: dict[tuple[int, ...], frozenset[int]] = {}
    for channel in range(channels):
        degraded = tuple(rank for rank, gone in enumerate(lost) if channel in gone)
        if 0 < len(degraded) <= len(lost) - 2:
            losers[degraded] = losers.get(degraded, frozenset()) | {channel}
    return losers


def _less(levels: Sequence[SplitLevel], level: SplitLevel) -> LossGroups:
    return {each.degraded: each.lost for each in levels if each != level}


def _nested(groups: LossGroups, lost: Lost, weights: Sequence[int]) -> tuple[SplitReduce, float]:
    """Levels for these ranks and channels, sized by the cost model, and their relative cost."""
    whole = sum(weights)
    used = frozenset[int]().union(*groups.values())
    left = poorest(range(len(lost)), lost, [0 if c in used else weight for c, weight in enumerate(weights)])
    rings = [Ring(len(degraded), sum(weights[c] for c in channels) / whole) for degraded, channels in groups.items()]
    cost = nest(len(lost), left / whole, rings, FOLD_CHUNKS)
    levels = [
        SplitLevel(degraded, channels, y) for (degraded, channels), y in zip(groups.items(), cost.parts, strict=True)
    ]
    return SplitReduce(tuple(levels), direct=True), cost.relative


def poorest(order: Sequence[int], lost: Lost, weights: Sequence[int]) -> int:
    """The rate that the slowest pair of neighbours of a ring shares; the sum of `weights` if nothing is lost."""
    return min(_shared(rank, other, lost, weights) for rank, other in pairwise((*order, order[0])))


def ring_order(lost: Lost, weights: Sequence[int]) -> tuple[int, ...]:
    """An order of the ring whose slowest pair shares as much as possible; the plain order if none found is better.

    The order is optimal if at least half of the ranks have lost nothing.
    """
    plain = tuple(range(len(lost)))
    bridges = [rank for rank in plain if not lost[rank]]
    ring: list[int] = []
    for chain in _chains([rank for rank in plain if lost[rank]], max(1, len(bridges)), lost, weights):
        ring += chain
        ring += bridges[:1]
        del bridges[:1]
    candidate = _from_first(ring + bridges)
    return candidate if poorest(candidate, lost, weights) > poorest(plain, lost, weights) else plain


def _shared(rank: int, other: int, lost: Lost, weights: Sequence[int]) -> int:
    gone = lost[rank] | lost[other]
    return sum(weight for channel, weight in enumerate(weights) if channel not in gone)


def _chains(ranks: Sequence[int], most: int, lost: Lost, weights: Sequence[int]) -> list[list[int]]:
    """Join ranks to `most` chains; pairs that share the most are joined first."""
    chain_of = {rank: [rank] for rank in ranks}
    count = len(ranks)
    for rank, other in sorted(combinations(ranks, 2), key=lambda pair: -_shared(pair[0], pair[1], lost, weights)):
        first, second = chain_of[rank], chain_of[other]
        ends = rank in (first[0], first[-1]) and other in (second[0], second[-1])
        if count > most and first is not second and ends:
            _join(first, second, rank, other)
            chain_of |= dict.fromkeys(second, first)
            count -= 1
    return list({id(chain): chain for chain in chain_of.values()}.values())


def _join(first: list[int], second: list[int], rank: int, other: int) -> None:
    """Append a chain to another, so that the ends `one` and `other` meet."""
    if first[-1] != rank:
        first.reverse()
    first += second if second[0] == other else second[::-1]


def _from_first(ring: Sequence[int]) -> tuple[int, ...]:
    """The same ring, starting from its lowest rank towards the lower one of that rank's neighbours."""
    at = ring.index(min(ring))
    rotated = (*ring[at:], *ring[:at])
    return rotated if rotated[1] <= rotated[-1] else (rotated[0], *reversed(rotated[1:]))
