"""Folds what some ranks hold into what the others have reduced, and sends the sums to all.

Each of the others is home to a segment, of which it has their sum. The odd ones send each home its segment; a home adds
these, always in the same order, as soon as a chunk has come from all of them, and sends the sum to everybody. So an odd
rank sends its array once and receives it once, both at a time.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from c4bench.collective import schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.channel_transfer import ChannelTransfer, ChunkedShare, NicBuffer
from c4bench.collective.endpoints import Arrival, Message, ReceiveEndpoint, SendEndpoint, Staging
from c4bench.collective.memory import Array
from c4bench.collective.schedule import Span


class Sides(NamedTuple):
    """The ranks that hold a part of their own, and those that have reduced theirs, by whose segment it is."""

    degraded: tuple[int, ...]
    healthy: tuple[int, ...]


class RegisteredArray(NamedTuple):
    """A flat array, and where a channel's NIC finds it."""

    array: Array
    buffer: NicBuffer

    def address(self, item: int) -> int:
        """Where an item of it is."""
        return self.buffer.address + item * self.array.itemsize


class FoldTransfer(ChannelTransfer):
    """A home's lane: a chunk may be sent once it has come from all `guests` and is folded, in their order."""

    def __init__(
        self,
        sends: list[tuple[SendEndpoint, Message]],
        arrivals: dict[ReceiveEndpoint, list[Arrival]],
        targets: dict[ReceiveEndpoint, tuple[int, int]],
        window: int,
        contributors: Sequence[ReceiveEndpoint],
        folds: Sequence[tuple[Array, Sequence[Array]]],
        reducing: Reducing,
    ) -> None:
        super().__init__(sends, arrivals, Staging(1, 64), targets, window)
        self._arrived_from = dict.fromkeys(contributors, 0)
        self._folds = folds
        self._reducing = reducing

    def arrive(self, receiver: ReceiveEndpoint, count: int) -> None:
        """See Lane. It is chunks that count."""
        if receiver not in self._arrived_from:
            return
        self._arrived_from[receiver] += count
        while self.arrived < min(self._arrived_from.values()):
            into, given = self._folds[self.arrived]
            for each in given[:-1]:
                self._reducing.step(into, each)
            self._reducing.last(into, given[-1])
            self.arrived += 1


def fold_transfer(
    rank: int,
    sides: Sides,
    segments: Sequence[Span],
    part: ChunkedShare,
    *,
    whole: RegisteredArray,
    scratch: RegisteredArray,
    ends: tuple[Mapping[int, SendEndpoint], Mapping[int, ReceiveEndpoint]],
    reducing: Reducing,
    window: int,
) -> ChannelTransfer:
    """One channel's share of the `homes`, each home's segment of the array that is `held`, as `part` cuts them.

    In `spare` there is room for the longest segment from each odd rank.
    """
    senders, receivers = ends
    arrivals, targets = {}, {}
    for segment, peer in enumerate(sides.healthy):
        if peer != rank:
            arrivals[receivers[peer]] = [Arrival(whole.array[low:high], None) for low, high in _chunks(part, segment)]
            targets[receivers[peer]] = whole.buffer.address, whole.buffer.rkey
    if rank in sides.degraded:
        return ChannelTransfer(
            _own(rank, sides, segments, part, whole, senders), arrivals, Staging(1, 64), targets, window
        )
    segment = sides.healthy.index(rank)
    room = scratch.array.size // len(sides.degraded)
    folds: list[tuple[Array, list[Array]]] = [(whole.array[low:high], []) for low, high in _chunks(part, segment)]
    for row, peer in enumerate(sides.degraded):
        shift = row * room - segments[segment][0]
        rows = [scratch.array[low + shift : high + shift] for low, high in _chunks(part, segment)]
        arrivals[receivers[peer]] = [Arrival(each, None) for each in rows]
        targets[receivers[peer]] = scratch.address(row * room), scratch.buffer.rkey
        for (_, given), each in zip(folds, rows, strict=True):
            given.append(each)
    contributors = [receivers[peer] for peer in sides.degraded]
    return FoldTransfer(
        _sums(rank, sides, part, whole, senders), arrivals, targets, window, contributors, folds, reducing
    )


def _chunks(part: ChunkedShare, segment: int) -> list[Span]:
    return [part.span(segment, chunk) for chunk in range(part.chunks)]


def _message(whole: RegisteredArray, span: Span, shift: int, needs: int) -> Message:
    start, stop = span
    item = whole.array.itemsize
    return Message(whole.address(start), whole.buffer.lkey, (stop - start) * item, (start - shift) * item, False, needs)


def _own(
    rank: int,
    sides: Sides,
    segments: Sequence[Span],
    part: ChunkedShare,
    whole: RegisteredArray,
    senders: Mapping[int, SendEndpoint],
) -> list[tuple[SendEndpoint, Message]]:
    """What an odd rank has, to all homes in turn; not all odd ranks to the same one first."""
    count = len(segments)
    first = sides.degraded.index(rank) * count // len(sides.degraded)
    return [
        (senders[sides.healthy[segment]], _message(whole, part.span(segment, chunk), segments[segment][0], 0))
        for chunk in range(part.chunks)
        for segment in ((first + turn) % count for turn in range(count))
    ]


def _sums(
    rank: int, sides: Sides, part: ChunkedShare, whole: RegisteredArray, senders: Mapping[int, SendEndpoint]
) -> list[tuple[SendEndpoint, Message]]:
    """What a home has folded, to everybody in turn."""
    size, segment = len(sides.degraded) + len(sides.healthy), sides.healthy.index(rank)
    return [
        (senders[peer], _message(whole, part.span(segment, chunk), 0, chunk + 1))
        for chunk in range(part.chunks)
        for peer, _ in schedule.shift(rank, size)
    ]
