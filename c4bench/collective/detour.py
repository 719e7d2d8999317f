"""Which way large all-reduces take around what ranks have lost: pure planning, alike on ranks that know the same."""

from collections.abc import Sequence
from typing import NamedTuple

from c4bench.collective.order import poorest, ring_order
from c4bench.sim.degraded import Cost, best, fold

# Chunks that the fold is pipelined in: enough for the way around the ring to count for little.
FOLD_CHUNKS = 32
# Several degraded ranks send to all others: none of these may be out of their reach once it loses a NIC too.
_SAFE_CHANNELS = 2


class Split(NamedTuple):
    """The part `y` of an array is reduced without the ranks `odds` first, by the channels `lost` to all of them."""

    odds: tuple[int, ...]
    lost: frozenset[int]
    y: float


class Order(NamedTuple):
    """The array is reduced by a ring of the `ranks` in this order."""

    ranks: tuple[int, ...]


Way = Split | Order


def settle(lost: Sequence[frozenset[int]], sure: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """What each rank of a ring has lost, where it can say so itself or by its neighbours.

    One that reaches neither neighbour by a channel, while both have lost that too, may be well.
    """
    size = len(lost)
    around = [lost[rank - 1] & lost[(rank + 1) % size] for rank in range(size)]
    return [own - (around[rank] - sure[rank]) for rank, own in enumerate(lost)]


def choose(lost: Sequence[frozenset[int]], weights: Sequence[int]) -> Way | None:
    """What to do where the ranks have lost these channels; None for the ring as it is.

    `weights` are what the channels carry.
    """
    hurt = tuple(rank for rank, channels in enumerate(lost) if channels)
    if not hurt or any(len(channels) == len(weights) for channels in lost):
        return None
    plain, order = tuple(range(len(lost))), ring_order(lost, weights)
    common = frozenset.intersection(*(lost[rank] for rank in hurt))
    cost = _split_cost(lost, weights, hurt, common)
    if cost.way == "split" and cost.relative * poorest(order, lost, weights) < sum(weights):
        return Split(hurt, common, cost.y)
    return Order(order) if order != plain else None


def _split_cost(
    lost: Sequence[frozenset[int]], weights: Sequence[int], hurt: Sequence[int], common: frozenset[int]
) -> Cost:
    """What it costs to go beside the degraded ranks, by the channels that these have lost in common."""
    whole, left = sum(weights), poorest(range(len(lost)), lost, weights)
    if len(hurt) == 1:
        return best([sum(weights[channel] for channel in channels) / whole for channels in lost], FOLD_CHUNKS)
    channels = min(len(weights) - len(lost[rank]) for rank in hurt)
    if not (common and left) or channels < _SAFE_CHANNELS:
        return Cost("balance", float("inf"))
    return fold(len(lost), len(hurt), left / whole, sum(weights[channel] for channel in common) / whole, FOLD_CHUNKS)
