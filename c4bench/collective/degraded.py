"""All-reduce when hosts have lost NICs: without the degraded hosts, or over a reordered ring.

In a split all-reduce (R2-AllReduce of R2CCL, arXiv 2512.25059) all hosts reduce the fraction 1 - y of an array, over
the NICs that the degraded hosts have left. At the same time the healthy hosts reduce the rest among themselves, over
the NICs that the degraded ones have lost. Then the degraded hosts' values are folded into the rest: around the ring in
chunks for one degraded host, directly to all healthy ranks for several (`schedule.fold_directly`). If hosts have lost
different NICs, each set of such hosts has its own fraction, and all are reduced at the same time. Where a host has a
rank for each GPU, its values are added up on their way around, and each set is a single host.

A reordered ring is a second ring, in which neighbours share more NICs. Two neighbours use only the NICs that both
have, and a ring is as fast as its slowest pair. A host that has lost nothing can use every NIC that its neighbour has
left, so it separates two hosts that have lost different NICs (re-ranking of R2CCL). The cost model chooses
(`cost.degraded`). All ranks first agree on what is lost, so that they make the same choice.
"""

import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import accumulate, combinations, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from c4bench.collective import schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.channel_order import hosts
from c4bench.collective.channel_transfer import ChannelSplit
from c4bench.collective.endpoint_context import RankProcess
from c4bench.collective.group import Group, SubGroup
from c4bench.collective.handshake import Signature
from c4bench.collective.memory import Array
from c4bench.collective.schedule import Sides
from c4bench.cost.degraded import Ring, cheapest_strategy, nest
from c4bench.model.telemetry import Member

# The channels that each host has lost.
Lost = Sequence[frozenset[int]]
# How many chunks the fold is pipelined in: enough to make the latency around the ring small.
FOLD_CHUNKS = 32
# Degraded ranks send to all others: every pair must still share a channel after the loss of one more NIC.
_SAFE_CHANNELS = 2


class SplitLevel(NamedTuple):
    """Reduce the fraction `y` of an array without the `degraded` hosts first, over the channels they have `lost`."""

    degraded: tuple[int, ...]
    lost: frozenset[int]
    y: float


class SplitReduce(NamedTuple):
    """Reduce all `levels` and the rest of the array at the same time, then fold in the degraded hosts' parts.

    With `direct` a degraded host sends its part to all healthy ones, otherwise around the ring.
    """

    levels: tuple[SplitLevel, ...]
    direct: bool

    @property
    def lost(self) -> frozenset[int]:
        """The channels of all levels."""
        return frozenset[int]().union(*(level.lost for level in self.levels))


class ReorderedRing(NamedTuple):
    """Reduce the array over a ring of the `hosts` in this order."""

    hosts: tuple[int, ...]


Strategy = SplitReduce | ReorderedRing
# The channels that exactly these hosts have lost, by hosts.
LossGroups = Mapping[tuple[int, ...], frozenset[int]]


def agree_on_losses(lost: Sequence[frozenset[int]], sure: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """The channels that each host of a ring has lost, from what each reports; `sure` are those known for certain.

    A host that reaches neither neighbour on a channel, when both report that channel as lost, may itself be healthy.
    """
    size = len(lost)
    around = [lost[rank - 1] & lost[(rank + 1) % size] for rank in range(size)]
    return [own - (around[rank] - sure[rank]) for rank, own in enumerate(lost)]


def choose_strategy(lost: Sequence[frozenset[int]], weights: Sequence[int], width: int = 1) -> Strategy | None:
    """The strategy when hosts of `width` ranks have lost these channels; None for the plain ring.

    `weights` are the channels' rates.
    """
    hurt = tuple(rank for rank, channels in enumerate(lost) if channels)
    if not hurt or any(len(channels) == len(weights) for channels in lost):
        return None
    plain, order = tuple(range(len(lost))), ring_order(lost, weights)
    split, relative = (
        _without_one(lost, weights, hurt, width) if len(hurt) == 1 else _without_several(lost, weights, width)
    )
    if split.levels and relative * poorest(order, lost, weights) < sum(weights):
        return split
    return ReorderedRing(order) if order != plain else None


def _without_one(lost: Lost, weights: Sequence[int], hurt: tuple[int, ...], width: int) -> tuple[SplitReduce, float]:
    """The cheapest split for one degraded host, and its relative cost; no levels if no split pays."""
    whole = sum(weights)
    fractions = [sum(weights[channel] for channel in channels) / whole for channels in lost]
    cost = cheapest_strategy(fractions, FOLD_CHUNKS, width)
    levels = (SplitLevel(hurt, lost[hurt[0]], cost.y),) if cost.strategy == "split" else ()
    return SplitReduce(levels, direct=False), cost.relative


def _without_several(lost: Lost, weights: Sequence[int], width: int) -> tuple[SplitReduce, float]:
    """The cheapest split for several degraded hosts: a level for each set of hosts, without levels that do not pay."""
    if len(frozenset(range(len(weights))).difference(*lost)) < _SAFE_CHANNELS:
        return SplitReduce((), direct=True), float("inf")
    groups = _losers(lost, len(weights))
    if width > 1:
        groups = {degraded: channels for degraded, channels in groups.items() if len(degraded) == 1}
    best = _nested(groups, lost, weights, width)
    while best[0].levels:
        levels = best[0].levels
        candidate = min((_nested(_less(levels, each), lost, weights, width) for each in levels), key=itemgetter(1))
        if candidate[1] > best[1]:
            break
        best = candidate
    return best


def _losers(lost: Lost, channels: int) -> LossGroups:
    """The hosts that have lost each channel, if at least two still have it."""
    losers: dict[tuple[int, ...], frozenset[int]] = {}
    for channel in range(channels):
        degraded = tuple(rank for rank, gone in enumerate(lost) if channel in gone)
        if 0 < len(degraded) <= len(lost) - 2:
            losers[degraded] = losers.get(degraded, frozenset()) | {channel}
    return losers


def _less(levels: Sequence[SplitLevel], level: SplitLevel) -> LossGroups:
    return {each.degraded: each.lost for each in levels if each != level}


def _nested(groups: LossGroups, lost: Lost, weights: Sequence[int], width: int) -> tuple[SplitReduce, float]:
    """Levels for these hosts and channels, sized by the cost model, and their relative cost."""
    whole = sum(weights)
    used = frozenset[int]().union(*groups.values())
    left = poorest(range(len(lost)), lost, [0 if c in used else weight for c, weight in enumerate(weights)])
    rings = [Ring(len(degraded), sum(weights[c] for c in channels) / whole) for degraded, channels in groups.items()]
    cost = nest(len(lost), left / whole, rings, FOLD_CHUNKS, width, around=width > 1)
    levels = [
        SplitLevel(degraded, channels, y) for (degraded, channels), y in zip(groups.items(), cost.parts, strict=True)
    ]
    return SplitReduce(tuple(levels), direct=width == 1), cost.relative


def poorest(order: Sequence[int], lost: Lost, weights: Sequence[int]) -> int:
    """The rate that the slowest pair of neighbours of a ring shares; the sum of `weights` if nothing is lost."""
    return min(_shared(rank, other, lost, weights) for rank, other in pairwise((*order, order[0])))


def qps_of_a_nic(order: Sequence[int], lost: Lost, width: int) -> int:
    """How many QPs send by a NIC at most, around a ring of hosts in this order.

    The `width` ranks of a host have QPs of their own, and those that have lost their NIC use the others' too.
    """
    return 1 if width == 1 else 1 + max(len(lost[rank] | lost[other]) for rank, other in pairwise((*order, order[0])))


def ring_order(lost: Lost, weights: Sequence[int]) -> tuple[int, ...]:
    """An order of the ring whose slowest pair shares as much as possible; the plain order if none found is better.

    The order is optimal if at least half of the hosts have lost nothing.
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


# Agreement is an all-gather over the ring; this many operations share its cost.
_AGREE_EVERY = 16


class DegradedReduce:
    """The all-reduces of a resilient communicator that avoid lost NICs; `split` and `reordered` count them.

    It needs at least 3 hosts, with one rank each or with equally many that have a GPU each.
    """

    def __init__(self, group: Group, members: Sequence[Member], process: RankProcess) -> None:
        self._group = group
        self._members = tuple(members)
        # Guidance is applied between the communicator's own operations; these run concurrently with them.
        self._process = replace(process, before_operation=lambda: None)
        self._lost_bits = np.zeros(2 * group.size, np.int64)
        self._scratch = np.empty(0, np.uint8)
        self._count = 0
        self.split = self.reordered = 0
        self._lost: list[frozenset[int]] = []
        self._strategy: Strategy | None = None
        self._parts: dict[tuple[int, ...], SubGroup] = {}
        self._executor = ThreadPoolExecutor(len(group.site.ports), "beside")
        self._hosts = hosts(members)
        self._width = len(self._hosts[0])
        names = {members[ranks[0]].host for ranks in self._hosts}
        self._able = len(names) == len(self._hosts) > 2 and len(set(map(len, self._hosts))) == 1

    def close(self) -> None:
        """See Communicator."""
        for part in self._parts.values():
            part.close()
        self._executor.shutdown()

    def all_reduce(self, signature: Signature, array: Array, reducing: Reducing) -> bool:
        """All-reduce a flat array on all ranks; False, and nothing done, if the plain ring is to do it.

        Raises CollectiveError.
        """
        strategy = self._plan(array)
        if strategy is None:
            return False
        if isinstance(strategy, SplitReduce):
            self._run_split(strategy, signature, array, reducing)
            self.split += 1
        else:
            segments = schedule.split(array.size, self._group.size)
            part = self._part(tuple(rank for host in strategy.hosts for rank in self._hosts[host]))
            split = part.default_split.for_shared_nics(qps_of_a_nic(strategy.hosts, self._lost, self._width))
            part.ring(signature, array, segments, schedule.all_reduce, reducing, split)
            self.reordered += 1
        return True

    def _plan(self, array: Array) -> Strategy | None:
        """The strategy for this array, None for the plain ring. Every rank must call it for each such array."""
        if array.nbytes < self._group.options.split_bytes or not self._able:
            return None
        if not self._count % _AGREE_EVERY:
            self._agree()
        self._count += 1
        return self._strategy

    def _agree(self) -> None:
        """All-gather what each rank has lost, and which of it for certain, as bit sets of channels."""
        group, lost_bits = self._group, self._lost_bits
        lost = group.lost
        elsewhere = frozenset[int]().union(*(part.lost for part in self._parts.values()))
        sure = frozenset(channel for channel in lost if channel in elsewhere or not group.site.ports[channel].active)
        lost_bits[2 * group.rank : 2 * group.rank + 2] = _bits(lost), _bits(sure)
        signature = Signature("all_gather", str(lost_bits.dtype), "", 0, lost_bits.nbytes)
        group.ring(signature, lost_bits, schedule.split(lost_bits.size, group.size), schedule.all_gather)
        reported = [_channels(bits) for bits in lost_bits.tolist()]
        # What only some ranks of a host do not reach is not lost.
        everywhere = [
            reported[2 * ranks[0]].intersection(*(reported[2 * rank] for rank in ranks)) for ranks in self._hosts
        ]
        certain = [frozenset[int]().union(*(reported[2 * rank + 1] for rank in ranks)) for ranks in self._hosts]
        losses = agree_on_losses(everywhere, certain)
        if losses != self._lost:
            weights = group.default_split.weights
            self._lost, self._strategy = losses, choose_strategy(losses, weights, self._width)

    def _part(self, ranks: tuple[int, ...]) -> SubGroup:
        """A ring of these ranks; connected when first needed."""
        if ranks not in self._parts:
            name = f"ring{zlib.crc32(repr(ranks).encode()):08x}"
            self._parts[ranks] = SubGroup(self._group, name, ranks, self._members, self._process)
        return self._parts[ranks]

    def _run_split(self, split: SplitReduce, signature: Signature, array: Array, reducing: Reducing) -> None:
        group = self._group
        together, rests = _cut(array, split.levels)
        left = group.default_split.without(split.lost)
        beside = [
            (self._part(healthy), level, rest)
            for level, rest in rests
            if group.rank in (healthy := self._healthy_ranks(level))
        ]
        tasks = [
            self._executor.submit(self._reduce_beside, *each, signature, reducing, scatter=split.direct)
            for each in beside
        ]
        try:
            segments = schedule.split(together.size, group.size)
            group.ring(signature, together, segments, schedule.all_reduce, reducing, left)
        except BaseException as error:
            for part, _, _ in beside:
                part.guard.abandon(error)
            raise
        finally:
            # The tasks use the caller's array.
            wait(tasks)
        for task in tasks:
            task.result()
        for level, rest in rests:
            (self._fold if split.direct else self._fold_around)(level, signature, rest, reducing, left)

    def _fold_around(
        self, level: SplitLevel, signature: Signature, rest: Array, reducing: Reducing, left: ChannelSplit
    ) -> None:
        """Fold in the single degraded host's values over the ring, which begins with its ranks."""
        (host,) = level.degraded
        degraded = frozenset(self._hosts[host])

        def first(order: Sequence[int]) -> int:
            return next(
                rank for place, rank in enumerate(order) if rank in degraded and order[place - 1] not in degraded
            )

        plan = partial(schedule.fold, degraded=len(degraded))
        fine = left.finer(rest.nbytes, FOLD_CHUNKS)
        self._group.ring(signature, rest, [(0, rest.size)], plan, reducing, fine, first)

    def _healthy_ranks(self, level: SplitLevel) -> tuple[int, ...]:
        return tuple(
            sorted(rank for host, ranks in enumerate(self._hosts) if host not in level.degraded for rank in ranks)
        )

    def _fold(
        self, level: SplitLevel, signature: Signature, rest: Array, reducing: Reducing, left: ChannelSplit
    ) -> None:
        """Fold in the degraded ranks' values, each segment at the healthy rank that has its sum."""
        group, others = self._group, self._healthy_ranks(level)
        room = -(-rest.size // len(others)) * len(level.degraded) if group.rank in others else 0
        fine = left.finer(rest.nbytes // len(others), FOLD_CHUNKS)
        group.fold(
            signature, rest, self._scratch_array(room, rest.dtype), Sides(level.degraded, others), reducing, fine
        )

    def _scratch_array(self, items: int, dtype: np.dtype[Any]) -> Array:
        """Scratch memory, reused as long as it is large enough."""
        if self._scratch.nbytes < items * dtype.itemsize:
            self._scratch = np.empty(items * dtype.itemsize, np.uint8)
        return self._scratch[: items * dtype.itemsize].view(dtype)

    @staticmethod
    def _reduce_beside(
        part: SubGroup, level: SplitLevel, rest: Array, signature: Signature, reducing: Reducing, *, scatter: bool
    ) -> None:
        segments = schedule.split(rest.size, part.size)
        plan = schedule.reduce_scatter if scatter else schedule.all_reduce
        # An average is divided once, when all values are in.
        steps = Reducing(reducing.step, reducing.step)
        part.ring(signature, rest, segments, plan, steps, part.default_split.by(level.lost))


def _cut(array: Array, levels: Sequence[SplitLevel]) -> tuple[Array, list[tuple[SplitLevel, Array]]]:
    """The part of a flat array that all ranks reduce, and the part of each level."""
    edges = list(accumulate((round(array.size * level.y) for level in levels), initial=0))
    cut = array.size - edges[-1]
    rests = [array[cut + low : cut + high] for low, high in pairwise(edges)]
    return array[:cut], list(zip(levels, rests, strict=True))


def _bits(channels: frozenset[int]) -> int:
    return sum(1 << channel for channel in channels)


def _channels(bits: int) -> frozenset[int]:
    return frozenset(channel for channel in range(bits.bit_length()) if bits >> channel & 1)
