"""All-reduce beside a rank that has lost NICs (the R2-AllReduce of R2CCL, arXiv 2512.25059).

All ranks reduce the part 1 - y of an array together, at the pace of the degraded one. The others meanwhile reduce the
rest among themselves with what this leaves of their bandwidth. Then the degraded rank's own is folded into that, and
the result goes around the ring in chunks. Whether this is worth it, and at which y, the cost model says
(`sim.degraded`); all ranks agree on what is lost beforehand, so that they choose alike.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from c4bench.collective import schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.errors import CollectiveError
from c4bench.collective.group import Group
from c4bench.collective.memory import Array
from c4bench.collective.options import Options
from c4bench.collective.process import Process
from c4bench.collective.wire import Signature
from c4bench.model.telemetry import Member
from c4bench.sim.degraded import best

# Agreeing takes a lap of the ring; this many operations share its cost.
_AGREE_EVERY = 16
# Chunks that the fold is pipelined in: enough for the way around the ring to count for little.
_FOLD_CHUNKS = 32
_SMALLEST_CHUNK_BYTES = 16 << 10
# What one QP keeps in a NIC's queue at most (rdma_rxe: 64 packets).
_QUEUED_BYTES = 256 << 10


class Split(NamedTuple):
    """Rank `odd` has lost the part `lost` of its bandwidth; the part `y` of an array is reduced without it first."""

    odd: int
    lost: float
    y: float


def choose(lost: Sequence[float]) -> Split | None:
    """What to do where the ranks have lost these parts of their bandwidth; None for the ring as it is."""
    hurt = [rank for rank, part in enumerate(lost) if part]
    if len(hurt) != 1 or max(lost) >= 1:
        return None
    cost = best(lost, _FOLD_CHUNKS)
    return Split(hurt[0], lost[hurt[0]], cost.y) if cost.way == "split" else None


class DegradedReduce:
    """The all-reduces of a resilient communicator that are worth it. Its ranks must be on hosts of their own.

    `done` counts them.
    """

    def __init__(self, group: Group, members: Sequence[Member], process: Process) -> None:
        self._group = group
        self._members = tuple(members)
        # Paths are moved between the communicator's own operations; these run beside them.
        self._process = replace(process, before_operation=lambda: None)
        self._lost: Array = np.zeros(group.size)
        self._count = 0
        self.done = 0
        self._split: Split | None = None
        self._beside: dict[int, Group] = {}
        self._helper = ThreadPoolExecutor(1, "beside")
        self._apart = len({member.host for member in members}) == len(members)

    def close(self) -> None:
        """See Communicator."""
        for beside in self._beside.values():
            beside.close()
        self._helper.shutdown()

    def plan(self, array: Array) -> Split | None:
        """How this array is to be reduced; None for the ring. Every rank asks before each all-reduce of such arrays."""
        if array.nbytes < self._group.options.split_bytes or self._group.size < 3 or not self._apart:
            return None
        if not self._count % _AGREE_EVERY:
            self._agree()
        self._count += 1
        return self._split

    def _agree(self) -> None:
        """Have all ranks know what each has lost."""
        lost, rank = self._lost, self._group.rank
        lost[rank] = self._group.lost
        signature = Signature("all_gather", str(lost.dtype), "", 0, lost.nbytes)
        self._group.ring(signature, lost, schedule.split(lost.size, lost.size), schedule.all_gather)
        self._split = choose(lost.tolist())

    def run(self, split: Split, signature: Signature, array: Array, reducing: Reducing) -> None:
        """All-reduce a flat array. Raises CollectiveError."""
        size = self._group.size
        cut = array.size - round(array.size * split.y)
        together, rest = array[:cut], array[cut:]
        without = self._without(split)
        beside = self._helper.submit(self._reduce_beside, without, signature, rest, reducing) if without else None
        try:
            self._group.ring(signature, together, schedule.split(cut, size), schedule.all_reduce, reducing)
        except BaseException as error:
            if without:
                without.abandon(error)
            raise
        finally:
            # It works on the caller's array.
            wait([beside] if beside else [])
        _raise_from(beside)
        self._fold(split, signature, rest, reducing)
        self.done += 1

    def _fold(self, split: Split, signature: Signature, rest: Array, reducing: Reducing) -> None:
        channels = len(self._group.site.ports)
        wanted = max(_SMALLEST_CHUNK_BYTES, rest.nbytes // (channels * _FOLD_CHUNKS) // 64 * 64)
        self._group.ring(
            signature,
            rest,
            [(0, rest.size)],
            lambda rank, size, chunks: schedule.fold(rank, size, chunks, split.odd),
            reducing,
            chunk_bytes=min(self._group.chunk_bytes, wanted),
        )

    def _without(self, split: Split) -> Group | None:
        """The group of all ranks but the degraded one; None there. Connected when it is first needed."""
        rank, odd = self._group.rank, split.odd
        if rank == odd:
            return None
        if odd not in self._beside:
            others = [member for member in self._members if member.rank != odd]
            members = [msgspec.structs.replace(member, rank=place) for place, member in enumerate(others)]
            options = beside_options(self._group.options, self._group.chunk_bytes, split.lost)
            name = f"{self._group.name}/beside{odd}"
            with self._group.guard("connecting"):
                self._beside[odd] = Group(name, rank - (rank > odd), members, self._process, options)
        return self._beside[odd]

    def _reduce_beside(self, without: Group, signature: Signature, rest: Array, reducing: Reducing) -> None:
        segments = schedule.split(rest.size, without.size)
        # What is averaged is divided when all of it is there.
        steps = Reducing(reducing.step, reducing.step)
        try:
            without.ring(signature, rest, segments, schedule.all_reduce, steps)
        except CollectiveError as error:
            self._group.abandon(error)
            raise error.seen_by(self._group.name, self._group.rank, signature.kind, -1) from error


def beside_options(options: Options, chunk_bytes: int, lost: float) -> Options:
    """Options with which a group takes about the part `lost` of a queue that it shares with its communicator's.

    A queue serves each in proportion to what it has in it.
    """
    flight = min(options.window * chunk_bytes, _QUEUED_BYTES) * lost / (1 - lost)
    chunk = min(chunk_bytes, max(4096, int(flight / 2) // 4096 * 4096))
    return msgspec.structs.replace(options, chunk_bytes=chunk, window=max(1, round(flight / chunk)))


def _raise_from(beside: "Future[None] | None") -> None:
    if beside:
        beside.result()
