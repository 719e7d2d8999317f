"""All-reduce when ranks have lost NICs: without the degraded ranks, or over a reordered ring.

In a split all-reduce (R2-AllReduce of R2CCL, arXiv 2512.25059) all ranks reduce the fraction 1 - y of an array, over
the NICs that the degraded ranks have left. At the same time the healthy ranks reduce the rest among themselves, over
the NICs that the degraded ones have lost. Then the degraded ranks' values are folded into the rest: around the ring in
chunks for one degraded rank, directly to all healthy ranks for several (`two_level_reduce`). If ranks have lost
different NICs, each set of such ranks has its own fraction, and all are reduced at the same time.

A reordered ring is a second ring, in which neighbours share more NICs. The cost model chooses (`degraded_planner`,
`cost.degraded`). All ranks first agree on what is lost, so that they make the same choice.
"""

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from c4bench.collective import schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.channel_transfer import ChannelSplit
from c4bench.collective.degraded_planner import (
    FOLD_CHUNKS,
    SplitLevel,
    SplitReduce,
    Strategy,
    agree_on_losses,
    choose_strategy,
)
from c4bench.collective.group import Group, SubGroup
from c4bench.collective.handshake import Signature
from c4bench.collective.memory import Array
from c4bench.collective.process import RankProcess
from c4bench.collective.two_level_reduce import Sides
from c4bench.model.telemetry import Member

# Agreement is an all-gather over the ring; this many operations share its cost.
_AGREE_EVERY = 16


class DegradedReduce:
    """The all-reduces of a resilient communicator that avoid lost NICs; `split` and `reordered` count them.

    It needs at least 3 ranks, each on its own host.
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
        self._one_rank_per_host = len({member.host for member in members}) == len(members)

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
            self._part(strategy.ranks).ring(signature, array, segments, schedule.all_reduce, reducing)
            self.reordered += 1
        return True

    def _plan(self, array: Array) -> Strategy | None:
        """The strategy for this array, None for the plain ring. Every rank must call it for each such array."""
        if array.nbytes < self._group.options.split_bytes or self._group.size < 3 or not self._one_rank_per_host:
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
        losses = agree_on_losses(reported[::2], reported[1::2])
        if losses != self._lost:
            self._lost, self._strategy = losses, choose_strategy(losses, group.default_split.weights)

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
            (self._part(_healthy_ranks(level, group.size)), level, rest)
            for level, rest in rests
            if group.rank not in level.degraded
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
                part.abandon(error)
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
        """Fold in the single degraded rank's values over the ring."""
        (degraded_rank,) = level.degraded
        plan = partial(schedule.fold, degraded_rank=degraded_rank)
        self._group.ring(signature, rest, [(0, rest.size)], plan, reducing, left.finer(rest.nbytes, FOLD_CHUNKS))

    def _fold(
        self, level: SplitLevel, signature: Signature, rest: Array, reducing: Reducing, left: ChannelSplit
    ) -> None:
        """Fold in the degraded ranks' values, each segment at the healthy rank that has its sum."""
        group, others = self._group, _healthy_ranks(level, self._group.size)
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


def _healthy_ranks(level: SplitLevel, size: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(size) if rank not in level.degraded)


def _bits(channels: frozenset[int]) -> int:
    return sum(1 << channel for channel in channels)


def _channels(bits: int) -> frozenset[int]:
    return frozenset(channel for channel in range(bits.bit_length()) if bits >> channel & 1)
