"""Schedules of collectives: pure functions with the same result on every rank.

A plan gives each rank ordered lists of messages to other ranks, and what comes from each of them. A message waits for
arrivals (`needs`), so chunks flow from rank to rank without global steps.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

# Overlapping a message shorter than this with another one costs more than it gains.
PIPELINED_BYTES = 128 << 10
# How many messages of an all-to-all a rank may send ahead of what it has received: enough to hide a message's latency.
_MAX_LEAD = 4

# A gate counts arrivals that have been used. In most plans all arrivals pass one.
Gate = tuple[int, ...]
ARRIVALS: Gate = ()


class Send(NamedTuple):
    """A message to rank `peer`: a chunk of a segment, sent once `needs` arrivals have passed `gate`.

    A `staged` message goes to the receiver's staging memory, to be reduced; others go straight to an array. One that is
    `relative` is placed by where it is within its segment, others by where it is within the array. A `relayed` one has
    come from other ranks, into the scratch memory, and its segment is one of those of relays.
    """

    peer: int
    segment: int
    chunk: int
    staged: bool
    needs: int
    gate: Gate = ARRIVALS
    relative: bool = False
    relayed: bool = False


class Receive(NamedTuple):
    """A message from rank `peer`: `reduce` it into the segment, unless it was written there; `final` is last.

    It is used once `needs` arrivals have passed the gate `after`, and passes `gate` itself. A `relative` one is of the
    only segment that comes from this peer; with a `row` it was written to this row of the scratch memory. A `relayed`
    one is of a segment of relays.
    """

    peer: int
    segment: int
    chunk: int
    reduce: bool
    final: bool
    gate: Gate = ARRIVALS
    after: Gate = ARRIVALS
    needs: int = 0
    relative: bool = False
    row: int | None = None
    relayed: bool = False


class Plan(NamedTuple):
    """A rank's part of a collective.

    The messages of a stream leave strictly in order; streams do not wait for each other. Messages from one rank arrive
    in the order of `receives`, which is the order in which that rank's stream has them.
    """

    streams: tuple[tuple[Send, ...], ...]
    receives: tuple[Receive, ...]


@lru_cache(maxsize=256)
def among(plan: Plan, order: tuple[int, ...], *, owned: bool) -> Plan:
    """The same plan where place p is taken by rank `order[p]`; with `owned` segment p is that rank's."""
    segments = order if owned else range(len(order))
    return Plan(
        tuple(
            tuple(send._replace(peer=order[send.peer], segment=segments[send.segment]) for send in sends)
            for sends in plan.streams
        ),
        tuple(
            receive._replace(peer=order[receive.peer], segment=segments[receive.segment]) for receive in plan.receives
        ),
    )


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
def reduce_scatter(rank: int, size: int, chunks: int) -> Plan:
    """Ring reduce-scatter: size - 1 steps, after which segment `rank` holds the reduction."""
    right, left, steps = (rank + 1) % size, (rank - 1) % size, range(size - 1)
    sends = [
        Send(right, (rank - 1 - step) % size, chunk, staged=True, needs=max(0, step * chunks + chunk + 1 - chunks))
        for step in steps
        for chunk in range(chunks)
    ]
    receives = [
        Receive(left, (rank - 2 - step) % size, chunk, reduce=True, final=step == size - 2)
        for step in steps
        for chunk in range(chunks)
    ]
    return _one_stream(sends, receives)


@lru_cache(maxsize=256)
def all_gather(rank: int, size: int, chunks: int, ready: int = 0) -> Plan:
    """Ring all-gather: size - 1 steps that copy every rank's own segment to all.

    `ready` arrivals precede this phase; chunk c of the own segment is complete after arrival ready - chunks + c + 1.
    """
    right, left, steps = (rank + 1) % size, (rank - 1) % size, range(size - 1)
    sends = [
        Send(right, (rank - step) % size, chunk, staged=False, needs=max(0, ready + step * chunks + chunk + 1 - chunks))
        for step in steps
        for chunk in range(chunks)
    ]
    receives = [
        Receive(left, (rank - 1 - step) % size, chunk, reduce=False, final=False)
        for step in steps
        for chunk in range(chunks)
    ]
    return _one_stream(sends, receives)


@lru_cache(maxsize=256)
def all_reduce(rank: int, size: int, chunks: int) -> Plan:
    """Ring all-reduce (Patarasuk and Yuan, 2009): reduce-scatter, then all-gather, pipelined."""
    first = reduce_scatter(rank, size, chunks)
    second = all_gather(rank, size, chunks, ready=len(first.receives))
    return _one_stream(first.streams[0] + second.streams[0], first.receives + second.receives)


@lru_cache(maxsize=256)
def broadcast(rank: int, size: int, chunks: int) -> Plan:
    """Pipelined broadcast along the ring from rank 0; the last rank before it sends nothing."""
    right, left = (rank + 1) % size, (rank - 1) % size
    sends = [Send(right, 0, chunk, staged=False, needs=chunk + 1 if rank else 0) for chunk in range(chunks)]
    receives = [Receive(left, 0, chunk, reduce=False, final=False) for chunk in range(chunks)]
    return _one_stream(sends if rank < size - 1 else (), receives if rank else ())


@lru_cache(maxsize=256)
def reduce(rank: int, size: int, chunks: int) -> Plan:
    """Pipelined reduction along the ring that ends at rank 0; the rank to the right of it receives nothing."""
    right, left = (rank + 1) % size, (rank - 1) % size
    sends = [Send(right, 0, chunk, staged=True, needs=chunk + 1 if rank > 1 else 0) for chunk in range(chunks)]
    receives = [Receive(left, 0, chunk, reduce=True, final=not rank) for chunk in range(chunks)]
    return _one_stream(sends if rank else (), receives if rank != 1 else ())


@lru_cache(maxsize=256)
def fold(rank: int, size: int, chunks: int, degraded: int = 1) -> Plan:
    """Reduce the arrays of the first `degraded` ranks into that of the next one, and pass the result around to all.

    The result of a chunk reaches a degraded rank after that chunk was sent, so both can use one array.
    """
    right, left = (rank + 1) % size, (rank - 1) % size
    values = rank <= degraded and rank > 0
    before = chunks if values and rank < degraded else 0
    sends, receives = list[Send](), list[Receive]()
    if rank < degraded:
        sends += [Send(right, 0, chunk, staged=True, needs=chunk + 1 if rank else 0) for chunk in range(chunks)]
    if rank != degraded - 1:
        sends += [Send(right, 0, chunk, staged=False, needs=before + chunk + 1) for chunk in range(chunks)]
    if values:
        receives += [Receive(left, 0, chunk, reduce=True, final=rank == degraded) for chunk in range(chunks)]
    if rank != degraded:
        receives += [Receive(left, 0, chunk, reduce=False, final=False) for chunk in range(chunks)]
    return _one_stream(sends, receives)


@lru_cache(maxsize=256)
def barrier(rank: int, size: int, chunks: int = 1) -> Plan:
    """A token passes around the ring twice from rank 0: first all ranks enter, then all leave.

    `chunks` is 1, since there are no bytes.
    """
    assert chunks == 1
    right, left = (rank + 1) % size, (rank - 1) % size
    rounds = (0, 1) if rank < size - 1 else (0,)
    sends = [Send(right, 0, 0, staged=False, needs=round_index + (rank > 0)) for round_index in rounds]
    receives = [Receive(left, 0, 0, reduce=False, final=False) for _ in range(2 if rank else 1)]
    return _one_stream(sends, receives)


def shift(rank: int, size: int) -> list[tuple[int, int]]:
    """Linear shift: at step k the rank sends to rank + k and receives from rank - k.

    Every step is a permutation, so no receiver is shared, and all size x (size - 1) pairs occur.
    """
    return [((rank + step) % size, (rank - step) % size) for step in range(1, size)]


@lru_cache(maxsize=256)
def all_to_all(rank: int, size: int, chunks: int) -> Plan:
    """All-to-all by linear shift: segment r of the input goes to rank r, segment r of the output comes from it.

    No rank sends more than a few messages ahead of what it has received. Otherwise it would disturb a receiver in the
    step of another sender.
    """
    steps = shift(rank, size)
    order = [(to, chunk) for to, _ in steps for chunk in range(chunks)]
    sends = [
        Send(to, to, chunk, staged=False, needs=max(0, number - _MAX_LEAD), relative=True)
        for number, (to, chunk) in enumerate(order)
    ]
    receives = [
        Receive(back, back, chunk, reduce=False, final=False, relative=True)
        for _, back in steps
        for chunk in range(chunks)
    ]
    return _one_stream(sends, receives)


class Sides(NamedTuple):
    """The degraded ranks, and the healthy ones in the order of the segments they own."""

    degraded: tuple[int, ...]
    healthy: tuple[int, ...]


def fold_directly(rank: int, sides: Sides, chunks: int) -> Plan:
    """Add the degraded ranks' arrays to what each healthy rank has reduced of the segment that it owns.

    The degraded ranks send every owner its segment. As soon as an owner has a chunk from all of them, it has added
    these in a fixed order, and sends the sum to all ranks. So a degraded rank sends its array once and receives it
    once, at the same time.
    """
    sums = [
        Receive(peer, segment, chunk, reduce=False, final=False)
        for segment, peer in enumerate(sides.healthy)
        if peer != rank
        for chunk in range(chunks)
    ]
    if rank in sides.degraded:
        return _one_stream(_own_values(rank, sides, chunks), sums)
    size, segment = len(sides.degraded) + len(sides.healthy), sides.healthy.index(rank)
    last = (len(sides.degraded) - 1,)
    sends = [
        Send(peer, segment, chunk, staged=False, needs=chunk + 1, gate=last)
        for chunk in range(chunks)
        for peer, _ in shift(rank, size)
    ]
    return _one_stream(sends, [*sums, *_in_order(sides.degraded, segment, chunks, (), rows=True, final=True)])


def _own_values(rank: int, sides: Sides, chunks: int) -> list[Send]:
    """A degraded rank's messages, to all owners in turn; each degraded rank starts with another owner."""
    count = len(sides.healthy)
    first = sides.degraded.index(rank) * count // len(sides.degraded)
    return [
        Send(sides.healthy[segment], segment, chunk, staged=False, needs=0, relative=True)
        for chunk in range(chunks)
        for segment in ((first + offset) % count for offset in range(count))
    ]


def _in_order(peers: Sequence[int], segment: int, chunks: int, gate: Gate, *, rows: bool, final: bool) -> list[Receive]:
    """Values of several ranks, added to each chunk in a fixed order, so that a sum of floats has the same bits again.

    Arrivals from rank number k of `peers` pass the gate (`gate`, k). The last ones are `final`.
    """
    return [
        Receive(
            peer,
            segment,
            chunk,
            reduce=True,
            final=final and number == len(peers) - 1,
            gate=(*gate, number),
            after=(*gate, number - 1),
            needs=chunk + 1 if number else 0,
            relative=rows,
            row=number if rows else None,
        )
        for number, peer in enumerate(peers)
        for chunk in range(chunks)
    ]


def _one_stream(sends: Sequence[Send], receives: Sequence[Receive]) -> Plan:
    return Plan((tuple(sends),) if sends else (), tuple(receives))
