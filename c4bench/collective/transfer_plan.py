"""Turns schedules and arrays into lanes: the one place where indices become addresses."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from c4bench.collective import schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.channel_transfer import ChannelTransfer
from c4bench.collective.endpoints import Arrival, Message, ReceiveEndpoint, SendEndpoint, Staging, cut_staging
from c4bench.collective.memory import Array
from c4bench.collective.schedule import Span

# How many messages of an all-to-all a rank may be ahead of what has arrived: enough to hide a message's latency.
_LEAD = 4


class Place(NamedTuple):
    """Where a NIC finds an array: address, local and remote key; all 0 for one without bytes."""

    address: int
    lkey: int
    rkey: int


class ChunkedShare(NamedTuple):
    """A lane's share of an array: its segments, in items, each cut into `chunks`."""

    segments: list[Span]
    chunks: int

    def span(self, segment: int, chunk: int) -> Span:
        """The items of a chunk."""
        start, stop = self.segments[segment]
        low, high = schedule.split(stop - start, self.chunks)[chunk]
        return start + low, start + high

    def longest(self) -> int:
        """Items of the longest chunk."""
        return -(-max(stop - start for start, stop in self.segments) // self.chunks)


def cut(segments: list[Span], itemsize: int, chunk_bytes: int) -> ChunkedShare:
    """Cut segments into as many chunks as the longest needs."""
    longest = max(stop - start for start, stop in segments)
    return ChunkedShare(segments, schedule.chunk_count(longest, 1, itemsize, chunk_bytes))


def share(segments: Sequence[Span], weights: Sequence[int]) -> list[list[Span]]:
    """Each channel's share of every segment, in proportion to the channels' weights."""
    edges = list(accumulate(weights, initial=0))
    return [
        [
            (start + (stop - start) * low // edges[-1], start + (stop - start) * high // edges[-1])
            for start, stop in segments
        ]
        for low, high in pairwise(edges)
    ]


def ring_transfer(
    plan: schedule.RingPlan,
    array: Array,
    part: ChunkedShare,
    *,
    place: Place,
    ends: tuple[SendEndpoint | None, ReceiveEndpoint | None],
    reducing: Reducing | None,
    staging_bytes: int,
    window: int,
) -> ChannelTransfer:
    """A ring plan over one channel's share of a flat array."""
    item = array.itemsize
    outlet, inlet = ends
    sends: list[tuple[SendEndpoint, Message]] = []
    for send in plan.sends:
        assert outlet is not None
        start, stop = part.span(send.segment, send.chunk)
        offset = start * item
        message = Message(place.address + offset, place.lkey, (stop - start) * item, offset, send.staged, send.needs)
        sends.append((outlet, message))
    arrivals = []
    for receive in plan.receives:
        start, stop = part.span(receive.segment, receive.chunk)
        apply = (reducing.last if receive.final else reducing.step) if reducing and receive.reduce else None
        arrivals.append(Arrival(array[start:stop], apply))
    staging = cut_staging(staging_bytes, part.longest() * item)
    incoming, targets = ({inlet: arrivals}, {inlet: (place.address, place.rkey)}) if inlet else ({}, {})
    return ChannelTransfer(sends, incoming, staging, targets, window)


def shift_transfer(
    rank: int,
    source: Array,
    target: Array,
    part: ChunkedShare,
    *,
    places: tuple[Place, Place],
    ends: tuple[dict[int, SendEndpoint], dict[int, ReceiveEndpoint]],
    window: int,
) -> ChannelTransfer:
    """All-to-all over one channel's share; segment `r` of `source` is for rank r, of `target` from rank r.

    Ranks stay in step: none sends more than a few messages ahead of what it has received, or it would disturb a
    receiver whose turn is another sender's.
    """
    item = source.itemsize
    outlets, inlets = ends
    given, wanted = places
    sends: list[tuple[SendEndpoint, Message]] = []
    arrivals: dict[ReceiveEndpoint, list[Arrival]] = {}
    targets: dict[ReceiveEndpoint, tuple[int, int]] = {}
    for to, back in schedule.shift(rank, len(part.segments)):
        own = part.segments[rank][0]
        for chunk in range(part.chunks):
            start, stop = part.span(to, chunk)
            # Where the bytes belong in the receiver's array is where this rank's segment lies in any array.
            offset = part.span(rank, chunk)[0] - own
            address = given.address + start * item
            needs = max(0, len(sends) - _LEAD)
            sends.append(
                (outlets[to], Message(address, given.lkey, (stop - start) * item, offset * item, False, needs))
            )
        inlet = inlets[back]
        arrivals[inlet] = [Arrival(target[slice(*part.span(back, chunk))], None) for chunk in range(part.chunks)]
        targets[inlet] = (wanted.address + part.segments[back][0] * item, wanted.rkey)
    return ChannelTransfer(sends, arrivals, Staging(1, 64), targets, window)
