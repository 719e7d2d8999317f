"""All-reduce around what has been lost: beside a rank that has lost NICs, or by a ring in another order.

Where one rank has lost some (the R2-AllReduce of R2CCL, arXiv 2512.25059) all ranks reduce the part 1 - y of an array
together, by the NICs that the degraded one has left. The others meanwhile reduce the rest among themselves, by those it
has lost. Then the degraded rank's own is folded into that, and the result goes around the ring in chunks. Whether this
is worth it, and at which y, the cost model says (`sim.degraded`). Where several have lost different ones, a ring in
which neighbours share more is connected beside the communicator's own (`order`). All ranks agree on what is lost
beforehand, so that they choose alike.
"""

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from c4bench.collective import schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.group import Carriage, Group
from c4bench.collective.memory import Array
from c4bench.collective.order import ring_order
from c4bench.collective.part import Part
from c4bench.collective.process import Process
from c4bench.collective.wire import Signature
from c4bench.model.telemetry import Member
from c4bench.sim.degraded import best

# Agreeing takes a lap of the ring; this many operations share its cost.
_AGREE_EVERY = 16
# Chunks that the fold is pipelined in: enough for the way around the ring to count for little.
FOLD_CHUNKS = 32
_SMALLEST_CHUNK_BYTES = 16 << 10


class Split(NamedTuple):
    """The part `y` of an array is reduced without rank `odd` first, by the channels `lost` to it."""

    odd: int
    lost: frozenset[int]
    y: float


class Order(NamedTuple):
    """The array is reduced by a ring of the `ranks` in this order."""

    ranks: tuple[int, ...]


def choose(lost: Sequence[frozenset[int]], weights: Sequence[int]) -> Split | Order | None:
    """What to do where the ranks have lost these channels; None for the ring as it is.

    `weights` are what the channels carry.
    """
    hurt = [rank for rank, channels in enumerate(lost) if channels]
    if not hurt or any(len(channels) == len(weights) for channels in lost):
        return None
    if len(hurt) > 1:
        order = ring_order(lost, weights)
        return Order(order) if order != tuple(range(len(lost))) else None
    (odd,) = hurt
    parts = [sum(weights[channel] for channel in channels) / sum(weights) for channels in lost]
    cost = best(parts, FOLD_CHUNKS)
    return Split(odd, lost[odd], cost.y) if cost.way == "split" else None


class DegradedReduce:
    """The all-reduces of a resilient communicator that are worth it. Its ranks must be on hosts of their own.

    `split` and `reordered` count them.
    """

    def __init__(self, group: Group, members: Sequence[Member], process: Process) -> None:
        self._group = group
        self._members = tuple(members)
        # Paths are moved between the communicator's own operations; these run beside them.
        self._process = replace(process, before_operation=lambda: None)
        self._lost = np.zeros(group.size, np.int64)
        self._count = 0
        self.split = self.reordered = 0
        self._way: Split | Order | None = None
        self._parts: dict[tuple[int, ...], Part] = {}
        self._helper = ThreadPoolExecutor(1, "beside")
        self._apart = len({member.host for member in members}) == len(members)

    def close(self) -> None:
        """See Communicator."""
        for part in self._parts.values():
            part.close()
        self._helper.shutdown()

    def plan(self, array: Array) -> Split | Order | None:
        """How this array is to be reduced; None for the ring. Every rank asks before each all-reduce of such arrays."""
        if array.nbytes < self._group.options.split_bytes or self._group.size < 3 or not self._apart:
            return None
        if not self._count % _AGREE_EVERY:
            self._agree()
        self._count += 1
        return self._way

    def _agree(self) -> None:
        """Have all ranks know what each has lost, a bit a channel."""
        said, rank = self._lost, self._group.rank
        said[rank] = sum(1 << channel for channel in self._group.lost)
        signature = Signature("all_gather", str(said.dtype), "", 0, said.nbytes)
        self._group.ring(signature, said, schedule.split(said.size, said.size), schedule.all_gather)
        weights = self._group.usual.weights
        lost = [frozenset(c for c in range(len(weights)) if bits >> c & 1) for bits in said.tolist()]
        self._way = choose(lost, weights)

    def run(self, way: Split | Order, signature: Signature, array: Array, reducing: Reducing) -> None:
        """All-reduce a flat array. Raises CollectiveError."""
        if isinstance(way, Split):
            self._run_split(way, signature, array, reducing)
            self.split += 1
        else:
            segments = schedule.split(array.size, self._group.size)
            self._part(way.ranks).ring(signature, array, segments, schedule.all_reduce, reducing)
            self.reordered += 1

    def _part(self, ranks: tuple[int, ...]) -> Part:
        """These ranks as a ring; connected when it is first needed."""
        if ranks not in self._parts:
            name = f"ring{zlib.crc32(repr(ranks).encode()):08x}"
            self._parts[ranks] = Part(self._group, name, ranks, self._members, self._process)
        return self._parts[ranks]

    def _run_split(self, split: Split, signature: Signature, array: Array, reducing: Reducing) -> None:
        group = self._group
        cut = array.size - round(array.size * split.y)
        together, rest = array[:cut], array[cut:]
        left = group.usual._replace(
            weights=tuple(0 if c in split.lost else weight for c, weight in enumerate(group.usual.weights))
        )
        others = tuple(rank for rank in range(group.size) if rank != split.odd)
        without = self._part(others) if group.rank != split.odd else None
        tasks = [self._helper.submit(self._reduce_beside, without, split, signature, rest, reducing)] if without else []
        try:
            group.ring(signature, together, schedule.split(cut, group.size), schedule.all_reduce, reducing, left)
        except BaseException as error:
            if without:
                without.abandon(error)
            raise
        finally:
            # It works on the caller's array.
            wait(tasks)
        for task in tasks:
            task.result()
        self._fold(split.odd, signature, rest, reducing, left)

    def _fold(self, odd: int, signature: Signature, rest: Array, reducing: Reducing, left: Carriage) -> None:
        channels = sum(map(bool, left.weights))
        wanted = max(_SMALLEST_CHUNK_BYTES, rest.nbytes // (channels * FOLD_CHUNKS) // 64 * 64)
        self._group.ring(
            signature,
            rest,
            [(0, rest.size)],
            lambda rank, size, chunks: schedule.fold(rank, size, chunks, odd),
            reducing,
            left._replace(chunk_bytes=min(left.chunk_bytes, wanted)),
        )

    @staticmethod
    def _reduce_beside(without: Part, split: Split, signature: Signature, rest: Array, reducing: Reducing) -> None:
        segments = schedule.split(rest.size, without.size)
        # What is averaged is divided when all of it is there.
        steps = Reducing(reducing.step, reducing.step)
        weights = tuple(weight if c in split.lost else 0 for c, weight in enumerate(without.usual.weights))
        without.ring(signature, rest, segments, schedule.all_reduce, steps, without.usual._replace(weights=weights))
