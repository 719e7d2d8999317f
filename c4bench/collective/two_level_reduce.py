"""Fold the degraded ranks' arrays into what the healthy ranks have reduced, and send the sums to all.

Each healthy rank owns a segment, of which it has the healthy ranks' sum. The degraded ranks send every owner its
segment. As soon as an owner has a chunk from all of them, it adds these in a fixed order and sends the sum to all
ranks. So a degraded rank sends its array once and receives it once, at the same time.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from c4bench.collective import schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.channel_transfer import ChannelTransfer, ChunkedShare
from c4bench.collective.endpoints import Arrival, Message, ReceiveEndpoint, SendEndpoint, Staging
from c4bench.collective.memory import Array, NicBuffers
from c4bench.collective.schedule import Span


class Sides(NamedTuple):
    """The degraded ranks, and the healthy ones in the order of the segments they own."""

    degraded: tuple[int, ...]
    healthy: tuple[int, ...]


class RegisteredArray(NamedTuple):
    """A flat array, and how NICs address it."""

    array: Array
    buffer: NicBuffers


class FoldTransfer(ChannelTransfer):
    """An owner's transfer: a chunk may be sent once it has arrived from all `contributors` and is added, in order."""

    def __init__(
        self,
        sends: list[tuple[SendEndpoint, Message]],
        arrivals: dict[ReceiveEndpoint, list[Arrival]],
        targets: dict[ReceiveEndpoint, tuple[NicBuffers, int]],
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
        """See ChannelTransfer. Only folded chunks count as arrived."""
        if receiver not in self._arrived_from:
            return
        self._arrived_from[receiver] += count
        while self.arrived < min(self._arrived_from.values()):
            into, parts = self._folds[self.arrived]
            for part in parts[:-1]:
                self._reducing.step(into, part)
            self._reducing.last(into, parts[-1])
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
    """One channel's share, `part`, of the `segments` of the array `whole`.

    `scratch` must have room for the longest segment from each degraded rank.
    """
    senders, receivers = ends
    arrivals, targets = {}, {}
    for segment, peer in enumerate(sides.healthy):
        if peer != rank:
            arrivals[receivers[peer]] = [Arrival(whole.array[low:high], None) for low, high in _chunks(part, segment)]
            targets[receivers[peer]] = whole.buffer, 0
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
        targets[receivers[peer]] = scratch.buffer, row * room * scratch.array.itemsize
        for (_, parts), each in zip(folds, rows, strict=True):
            parts.append(each)
    contributors = [receivers[peer] for peer in sides.degraded]
    return FoldTransfer(
        _sums(rank, sides, part, whole, senders), arrivals, targets, window, contributors, folds, reducing
    )


def _chunks(part: ChunkedShare, segment: int) -> list[Span]:
    return [part.span(segment, chunk) for chunk in range(part.chunks)]


def _message(whole: RegisteredArray, span: Span, shift: int, needs: int) -> Message:
    start, stop = span
    item = whole.array.itemsize
    return Message(whole.buffer, start * item, (stop - start) * item, (start - shift) * item, False, needs)


def _own(
    rank: int,
    sides: Sides,
    segments: Sequence[Span],
    part: ChunkedShare,
    whole: RegisteredArray,
    senders: Mapping[int, SendEndpoint],
) -> list[tuple[SendEndpoint, Message]]:
    """A degraded rank's messages, to all owners in turn; each degraded rank starts with another owner."""
    count = len(segments)
    first = sides.degraded.index(rank) * count // len(sides.degraded)
    return [
        (senders[sides.healthy[segment]], _message(whole, part.span(segment, chunk), segments[segment][0], 0))
        for chunk in range(part.chunks)
        for segment in ((first + offset) % count for offset in range(count))
    ]


def _sums(
    rank: int, sides: Sides, part: ChunkedShare, whole: RegisteredArray, senders: Mapping[int, SendEndpoint]
) -> list[tuple[SendEndpoint, Message]]:
    """An owner's sums, to all ranks in turn."""
    size, segment = len(sides.degraded) + len(sides.healthy), sides.healthy.index(rank)
    return [
        (senders[peer], _message(whole, part.span(segment, chunk), 0, chunk + 1))
        for chunk in range(part.chunks)
        for peer, _ in schedule.shift(rank, size)
    ]
