"""Schedules of collectives: pure functions with the same result on every rank.

A ring schedule gives each rank an ordered list of messages to its right neighbour and one of messages from its left. A
message waits for the arrivals it depends on (`needs`), so chunks flow through the ring without global steps.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

# Overlapping a message shorter than this with another one costs more than it gains.
PIPELINED_BYTES = 128 << 10


class Send(NamedTuple):
    """A message to the right neighbour, sent once `needs` messages have arrived from the left.

    A `staged` message goes to the receiver's staging memory, to be reduced; others go straight to the array.
    """

    segment: int
    chunk: int
    staged: bool
    needs: int


class Receive(NamedTuple):
    """A message from the left neighbour: `reduce` it into the segment, unless it was written there; `final` is last."""

    segment: int
    chunk: int
    reduce: bool
    final: bool


class RingPlan(NamedTuple):
    """A rank's part of a ring collective."""

    sends: tuple[Send, ...]
    receives: tuple[Receive, ...]


Span = tuple[int, int]


def split(count: int, parts: int) -> list[Span]:
    """Cut `range(count)` into `parts` spans whose lengths differ by at most one; spans may be empty."""
    edges = [index * count // parts for index in range(parts + 1)]
    return list(pairwise(edges))


def chunk_count(count: int, parts: int, itemsize: int, chunk_bytes: int) -> int:
    """Into how many chunks each of `parts` segments of `count` items is cut: at least 1, and the same on every rank.

    A long segment is cut into at least 2, so that one chunk is in flight while the other is reduced.
    """
    longest = -(-count // parts) * itemsize
    fewest = 2 if longest >= 2 * PIPELINED_BYTES else 1
    return max(fewest, -(-longest // chunk_bytes))


@lru_cache(maxsize=256)
def reduce_scatter(rank: int, size: int, chunks: int) -> RingPlan:
    """Ring reduce-scatter: size - 1 steps, after which segment `rank` holds the reduction."""
    steps = range(size - 1)
    sends = [
        Send((rank - 1 - step) % size, chunk, staged=True, needs=max(0, step * chunks + chunk + 1 - chunks))
        for step in steps
        for chunk in range(chunks)
    ]
    receives = [
        Receive((rank - 2 - step) % size, chunk, reduce=True, final=step == size - 2)
        for step in steps
        for chunk in range(chunks)
    ]
    return RingPlan(tuple(sends), tuple(receives))


@lru_cache(maxsize=256)
def all_gather(rank: int, size: int, chunks: int, ready: int = 0) -> RingPlan:
    """Ring all-gather: size - 1 steps that copy every rank's own segment to all.

    `ready` arrivals precede this phase; chunk c of the own segment is complete after arrival ready - chunks + c + 1.
    """
    steps = range(size - 1)
    sends = [
        Send((rank - step) % size, chunk, staged=False, needs=max(0, ready + step * chunks + chunk + 1 - chunks))
        for step in steps
        for chunk in range(chunks)
    ]
    receives = [
        Receive((rank - 1 - step) % size, chunk, reduce=False, final=False) for step in steps for chunk in range(chunks)
    ]
    return RingPlan(tuple(sends), tuple(receives))


@lru_cache(maxsize=256)
def all_reduce(rank: int, size: int, chunks: int) -> RingPlan:
    """Ring all-reduce (Patarasuk and Yuan, 2009): reduce-scatter, then all-gather, pipelined."""
    first = reduce_scatter(rank, size, chunks)
    second = all_gather(rank, size, chunks, ready=len(first.receives))
    return RingPlan(first.sends + second.sends, first.receives + second.receives)


@lru_cache(maxsize=256)
def broadcast(rank: int, size: int, chunks: int, root: int = 0) -> RingPlan:
    """Pipelined broadcast along the ring from `root`; the last rank before the root sends nothing."""
    distance = (rank - root) % size
    sends = [Send(0, chunk, staged=False, needs=chunk + 1 if distance else 0) for chunk in range(chunks)]
    receives = [Receive(0, chunk, reduce=False, final=False) for chunk in range(chunks)]
    return RingPlan(tuple(sends) if distance < size - 1 else (), tuple(receives) if distance else ())


@lru_cache(maxsize=256)
def reduce(rank: int, size: int, chunks: int, root: int = 0) -> RingPlan:
    """Pipelined reduction along the ring that ends at `root`; the rank to the right of the root receives nothing."""
    distance = (rank - root) % size
    sends = [Send(0, chunk, staged=True, needs=chunk + 1 if distance > 1 else 0) for chunk in range(chunks)]
    receives = [Receive(0, chunk, reduce=True, final=not distance) for chunk in range(chunks)]
    return RingPlan(tuple(sends) if distance else (), tuple(receives) if distance != 1 else ())


@lru_cache(maxsize=256)
def fold(rank: int, size: int, chunks: int, degraded_rank: int) -> RingPlan:
    """Reduce the degraded rank's array into its right neighbour's, and pass the result around the ring to all.

    The result of a chunk reaches the degraded rank after that chunk was sent, so both can use one array.
    """
    distance = (rank - degraded_rank) % size
    sends = [Send(0, chunk, staged=not distance, needs=chunk + 1 if distance else 0) for chunk in range(chunks)]
    receives = [Receive(0, chunk, reduce=distance == 1, final=distance == 1) for chunk in range(chunks)]
    return RingPlan(tuple(sends), tuple(receives))


@lru_cache(maxsize=256)
def barrier(rank: int, size: int, chunks: int = 1) -> RingPlan:
    """A token passes around the ring twice from rank 0: first all ranks enter, then all leave.

    `chunks` is 1, since there are no bytes.
    """
    assert chunks == 1
    rounds = (0, 1) if rank < size - 1 else (0,)
    sends = [Send(0, 0, staged=False, needs=round_index + (rank > 0)) for round_index in rounds]
    receives = [Receive(0, 0, reduce=False, final=False) for _ in range(2 if rank else 1)]
    return RingPlan(tuple(sends), tuple(receives))


def shift(rank: int, size: int) -> list[tuple[int, int]]:
    """Linear shift for all-to-all: at step k the rank sends to rank + k and receives from rank - k.

    Every step is a permutation, so no receiver is shared, and all size x (size - 1) pairs occur.
    """
    return [((rank + step) % size, (rank - step) % size) for step in range(1, size)]
