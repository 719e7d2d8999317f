"""Who sends which piece when: pure schedules, the same on every rank.

A ring schedule is, for each rank, one ordered list of messages to its right neighbour and one from its left. A message
waits for the arrival it forwards (`needs`), so pieces flow through the ring without a global step.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

# A message shorter than this costs more than overlapping it with another one wins.
PIPELINED_BYTES = 128 << 10


class Send(NamedTuple):
    """Message to the right: chunk `chunk` of segment `segment`, once `needs` messages have arrived from the left.

    `staged` messages go to the receiver's staging memory because it must reduce them; others straight to their place.
    """

    segment: int
    chunk: int
    staged: bool
    needs: int


class Receive(NamedTuple):
    """Message from the left. `reduce` it into the segment, or find it there; `final`: the segment is then complete."""

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
    """Cut `range(count)` into `parts` spans whose lengths differ by at most one; the short ones may be empty."""
    edges = [index * count // parts for index in range(parts + 1)]
    return list(pairwise(edges))


def chunk_count(count: int, parts: int, itemsize: int, chunk_bytes: int) -> int:
    """Chunks that each of `parts` segments of `count` items is cut into: at least one, and the same on every rank.

    A segment worth it is cut in two at least, so that one half is on its way while the other is being reduced.
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
    """Ring all-gather: size - 1 steps that spread every rank's own segment.

    `ready` arrivals precede this phase; the own segment's chunk `c` is then complete after arrival ready - chunks + c
    + 1.
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
    """Ring all-reduce (Patarasuk and Yuan, 2009): reduce-scatter, then all-gather, pipelined through each other."""
    first = reduce_scatter(rank, size, chunks)
    second = all_gather(rank, size, chunks, ready=len(first.receives))
    return RingPlan(first.sends + second.sends, first.receives + second.receives)


@lru_cache(maxsize=256)
def broadcast(rank: int, size: int, chunks: int, root: int = 0) -> RingPlan:
    """Pipelined broadcast along the ring from `root`; the last rank before the root sends nothing."""
    place = (rank - root) % size
    sends = [Send(0, chunk, staged=False, needs=chunk + 1 if place else 0) for chunk in range(chunks)]
    receives = [Receive(0, chunk, reduce=False, final=False) for chunk in range(chunks)]
    return RingPlan(tuple(sends) if place < size - 1 else (), tuple(receives) if place else ())


@lru_cache(maxsize=256)
def reduce(rank: int, size: int, chunks: int, root: int = 0) -> RingPlan:
    """Pipelined reduction along the ring that ends at `root`; the rank to the right of the root receives nothing."""
    place = (rank - root) % size
    sends = [Send(0, chunk, staged=True, needs=chunk + 1 if place > 1 else 0) for chunk in range(chunks)]
    receives = [Receive(0, chunk, reduce=True, final=not place) for chunk in range(chunks)]
    return RingPlan(tuple(sends) if place else (), tuple(receives) if place != 1 else ())


@lru_cache(maxsize=256)
def fold(rank: int, size: int, chunks: int, odd: int) -> RingPlan:
    """What `odd` has is reduced into what its right neighbour has, and the result goes on around the ring to `odd`.

    The result of a chunk comes to `odd` after its own has left there, so both may be in one place.
    """
    place = (rank - odd) % size
    sends = [Send(0, chunk, staged=not place, needs=chunk + 1 if place else 0) for chunk in range(chunks)]
    receives = [Receive(0, chunk, reduce=place == 1, final=place == 1) for chunk in range(chunks)]
    return RingPlan(tuple(sends), tuple(receives))


@lru_cache(maxsize=256)
def barrier(rank: int, size: int, chunks: int = 1) -> RingPlan:
    """A token goes round twice from rank 0: the first lap shows that all are in, the second lets all go.

    `chunks` is 1, as of anything without bytes.
    """
    assert chunks == 1
    laps = (0, 1) if rank < size - 1 else (0,)
    sends = [Send(0, 0, staged=False, needs=lap + (rank > 0)) for lap in laps]
    receives = [Receive(0, 0, reduce=False, final=False) for _ in range(2 if rank else 1)]
    return RingPlan(tuple(sends), tuple(receives))


def shift(rank: int, size: int) -> list[tuple[int, int]]:
    """Linear shift for all-to-all: at step k the rank sends to rank + k and receives from rank - k.

    Every step is a permutation, so no receiver is shared, and all size x (size - 1) pairs occur.
    """
    return [((rank + step) % size, (rank - step) % size) for step in range(1, size)]
