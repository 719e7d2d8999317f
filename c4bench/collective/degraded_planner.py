"""Which way large all-reduces take around what ranks have lost: pure planning, alike on ranks that know the same."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from c4bench.collective.ring_order import Lost, poorest, ring_order
from c4bench.sim.degraded import Ring, cheapest_strategy, nest

# Chunks that the fold is pipelined in: enough for the way around the ring to count for little.
FOLD_CHUNKS = 32
# Several degraded ranks send to all others: none of these may be out of their reach once it loses a NIC too.
_SAFE_CHANNELS = 2


class SplitLevel(NamedTuple):
    """The part `y` of an array is reduced without the ranks `odds` first, by the channels that these have `lost`."""

    odds: tuple[int, ...]
    lost: frozenset[int]
    y: float


class SplitReduce(NamedTuple):
    """All `levels` and what is left of the array are reduced at the same time, then the odd ranks' parts folded in.

    These send theirs to all others where it is `direct`, and else around the ring.
    """

    levels: tuple[SplitLevel, ...]
    direct: bool

    @property
    def lost(self) -> frozenset[int]:
        """The channels of all levels."""
        return frozenset[int]().union(*(level.lost for level in self.levels))


class ReorderedRing(NamedTuple):
    """The array is reduced by a ring of the `ranks` in this order."""

    ranks: tuple[int, ...]


Way = SplitReduce | ReorderedRing
# Ranks, and the channels that they have lost and no others have.
Apart = Mapping[tuple[int, ...], frozenset[int]]


def agree_on_losses(lost: Sequence[frozenset[int]], sure: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """What each rank of a ring has lost, where it can say so itself or by its neighbours.

    One that reaches neither neighbour by a channel, while both have lost that too, may be well.
    """
    size = len(lost)
    around = [lost[rank - 1] & lost[(rank + 1) % size] for rank in range(size)]
    return [own - (around[rank] - sure[rank]) for rank, own in enumerate(lost)]


def choose_strategy(lost: Sequence[frozenset[int]], weights: Sequence[int]) -> Way | None:
    """What to do where the ranks have lost these channels; None for the ring as it is.

    `weights` are what the channels carry.
    """
    hurt = tuple(rank for rank, channels in enumerate(lost) if channels)
    if not hurt or any(len(channels) == len(weights) for channels in lost):
        return None
    plain, order = tuple(range(len(lost))), ring_order(lost, weights)
    split, relative = _without_one(lost, weights, hurt) if len(hurt) == 1 else _without_several(lost, weights)
    if split.levels and relative * poorest(order, lost, weights) < sum(weights):
        return split
    return ReorderedRing(order) if order != plain else None


def _without_one(lost: Lost, weights: Sequence[int], hurt: tuple[int, ...]) -> tuple[SplitReduce, float]:
    """The cheapest split where one rank is degraded, and its relative cost; no levels where none is worth it."""
    whole = sum(weights)
    cost = cheapest_strategy([sum(weights[channel] for channel in channels) / whole for channels in lost], FOLD_CHUNKS)
    levels = (SplitLevel(hurt, lost[hurt[0]], cost.y),) if cost.way == "split" else ()
    return SplitReduce(levels, direct=False), cost.relative


def _without_several(lost: Lost, weights: Sequence[int]) -> tuple[SplitReduce, float]:
    """The same where several are: a level for each channel's losers, but for those that win nothing."""
    if len(frozenset(range(len(weights))).difference(*lost)) < _SAFE_CHANNELS:
        return SplitReduce((), direct=True), float("inf")
    found = _nested(_losers(lost, len(weights)), lost, weights)
    while found[0].levels:
        levels = found[0].levels
        fewer = min((_nested(_less(levels, each), lost, weights) for each in levels), key=itemgetter(1))
        if fewer[1] > found[1]:
            break
        found = fewer
    return found


def _losers(lost: Lost, channels: int) -> Apart:
    """Of each channel that not all but one have lost."""
    losers: dict[tuple[int, ...], frozenset[int]] = {}
    for channel in range(channels):
        odds = tuple(rank for rank, gone in enumerate(lost) if channel in gone)
        if 0 < len(odds) <= len(lost) - 2:
            losers[odds] = losers.get(odds, frozenset()) | {channel}
    return losers


def _less(levels: Sequence[SplitLevel], one: SplitLevel) -> Apart:
    return {each.odds: each.lost for each in levels if each != one}


def _nested(apart: Apart, lost: Lost, weights: Sequence[int]) -> tuple[SplitReduce, float]:
    """Levels of these ranks and channels, as large as the cost model says, and what they cost."""
    whole = sum(weights)
    used = frozenset[int]().union(*apart.values())
    left = poorest(range(len(lost)), lost, [0 if c in used else weight for c, weight in enumerate(weights)])
    rings = [Ring(len(odds), sum(weights[c] for c in channels) / whole) for odds, channels in apart.items()]
    cost = nest(len(lost), left / whole, rings, FOLD_CHUNKS)
    levels = [SplitLevel(odds, channels, y) for (odds, channels), y in zip(apart.items(), cost.parts, strict=True)]
    return SplitReduce(tuple(levels), direct=True), cost.relative
