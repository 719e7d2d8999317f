"""Folds what some ranks hold into what the others have reduced, and sends the sums to all.

Each of the others is home to a segment, of which it has their sum. The odd ones send each home its segment; a home adds
these, always in the same order, as soon as a chunk has come from all of them, and sends the sum to everybody. So an odd
rank sends its array once and receives it once, both at a time.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from c4bench.collective import schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.channel_transfer import ChannelTransfer
from c4bench.collective.endpoints import Arrival, Message, ReceiveEndpoint, SendEndpoint, Staging
from c4bench.collective.memory import Array
from c4bench.collective.schedule import Span
from c4bench.collective.transfer_plan import ChunkedShare, Place


class Sides(NamedTuple):
    """The ranks that hold a part of their own, and those that have reduced theirs, by whose segment it is."""

    odds: tuple[int, ...]
    evens: tuple[int, ...]


class Held(NamedTuple):
    """A flat array, and where a channel's NIC finds it."""

    array: Array
    place: Place

    def address(self, item: int) -> int:
        """Where an item of it is."""
        return self.place.address + item * self.array.itemsize


class FoldTransfer(ChannelTransfer):
    """A home's lane: a chunk may be sent once it has come from all `guests` and is folded, in their order."""

    def __init__(
        self,
        sends: list[tuple[SendEndpoint, Message]],
        arrivals: dict[ReceiveEndpoint, list[Arrival]],
        targets: dict[ReceiveEndpoint, tuple[int, int]],
        window: int,
        guests: Sequence[ReceiveEndpoint],
        folds: Sequence[tuple[Array, Sequence[Array]]],
        reducing: Reducing,
    ) -> None:
        super().__init__(sends, arrivals, Staging(1, 64), targets, window)
        self._come = dict.fromkeys(guests, 0)
        self._folds = folds
        self._reducing = reducing

    def arrive(self, inlet: ReceiveEndpoint, count: int) -> None:
        """See Lane. It is chunks that count."""
        if inlet not in self._come:
            return
        self._come[inlet] += count
        while self.arrived < min(self._come.values()):
            into, given = self._folds[self.arrived]
            for each in given[:-1]:
                self._reducing.step(into, each)
            self._reducing.last(into, given[-1])
            self.arrived += 1


def fold_transfer(
    rank: int,
    sides: Sides,
    homes: Sequence[Span],
    part: ChunkedShare,
    *,
    held: Held,
    spare: Held,
    ends: tuple[Mapping[int, SendEndpoint], Mapping[int, ReceiveEndpoint]],
    reducing: Reducing,
    window: int,
) -> ChannelTransfer:
    """One channel's share of the `homes`, each home's segment of the array that is `held`, as `part` cuts them.

    In `spare` there is room for the longest segment from each odd rank.
    """
    outlets, inlets = ends
    arrivals, targets = {}, {}
    for home, even in enumerate(sides.evens):
        if even != rank:
            arrivals[inlets[even]] = [Arrival(held.array[low:high], None) for low, high in _chunks(part, home)]
            targets[inlets[even]] = held.place.address, held.place.rkey
    if rank in sides.odds:
        return ChannelTransfer(_own(rank, sides, homes, part, held, outlets), arrivals, Staging(1, 64), targets, window)
    home = sides.evens.index(rank)
    room = spare.array.size // len(sides.odds)
    folds: list[tuple[Array, list[Array]]] = [(held.array[low:high], []) for low, high in _chunks(part, home)]
    for row, odd in enumerate(sides.odds):
        shift = row * room - homes[home][0]
        rows = [spare.array[low + shift : high + shift] for low, high in _chunks(part, home)]
        arrivals[inlets[odd]] = [Arrival(each, None) for each in rows]
        targets[inlets[odd]] = spare.address(row * room), spare.place.rkey
        for (_, given), each in zip(folds, rows, strict=True):
            given.append(each)
    guests = [inlets[odd] for odd in sides.odds]
    return FoldTransfer(_sums(rank, sides, part, held, outlets), arrivals, targets, window, guests, folds, reducing)


def _chunks(part: ChunkedShare, segment: int) -> list[Span]:
    return [part.span(segment, chunk) for chunk in range(part.chunks)]


def _message(held: Held, span: Span, shift: int, needs: int) -> Message:
    start, stop = span
    item = held.array.itemsize
    return Message(held.address(start), held.place.lkey, (stop - start) * item, (start - shift) * item, False, needs)


def _own(
    rank: int, sides: Sides, homes: Sequence[Span], part: ChunkedShare, held: Held, outlets: Mapping[int, SendEndpoint]
) -> list[tuple[SendEndpoint, Message]]:
    """What an odd rank has, to all homes in turn; not all odd ranks to the same one first."""
    count = len(homes)
    first = sides.odds.index(rank) * count // len(sides.odds)
    return [
        (outlets[sides.evens[home]], _message(held, part.span(home, chunk), homes[home][0], 0))
        for chunk in range(part.chunks)
        for home in ((first + turn) % count for turn in range(count))
    ]


def _sums(
    rank: int, sides: Sides, part: ChunkedShare, held: Held, outlets: Mapping[int, SendEndpoint]
) -> list[tuple[SendEndpoint, Message]]:
    """What a home has folded, to everybody in turn."""
    size, home = len(sides.odds) + len(sides.evens), sides.evens.index(rank)
    return [
        (outlets[peer], _message(held, part.span(home, chunk), 0, chunk + 1))
        for chunk in range(part.chunks)
        for peer, _ in schedule.shift(rank, size)
    ]
