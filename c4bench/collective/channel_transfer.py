"""A channel's share of an operation: which items it carries, in which messages, and when each may be sent.

This is the one place where a schedule's indices become addresses: of a ring, of an all-to-all, and of a fold of
degraded ranks' arrays into what the healthy ranks have reduced.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from c4bench.collective import schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.endpoints import Arrival, ReceiveEndpoint, SendEndpoint, Staging, cut_staging
from c4bench.collective.memory import Array, NicBuffers
from c4bench.collective.pacer import Pacer
from c4bench.collective.rail import Message
from c4bench.collective.schedule import Span

# How many messages of an all-to-all a rank may send ahead of what it has received: enough to hide a message's latency.
_MAX_LEAD = 4
# An array with fewer bytes than this for each channel goes over one channel: smaller messages cost more than they gain.
_MIN_SHARE_BYTES = 64 << 10
# The largest packet's payload: a shorter message costs as much.
_PACKET_BYTES = 4 << 10
# Shorter messages may have at most this many times the default window in flight; send queues are that deep.
MAX_WINDOW_FACTOR = 4


class ChunkedShare(NamedTuple):
    """A channel's share of an array: its segments, in items, each cut into `chunks`."""

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
    """Cut segments into as many chunks as the longest one needs."""
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


class ChannelSplit(NamedTuple):
    """How channels share an array: by `weights` (0: unused), in messages up to `chunk_bytes`, `window` in flight."""

    weights: tuple[int, ...]
    chunk_bytes: int
    window: int

    def by(self, channels: frozenset[int]) -> "ChannelSplit":
        """The same split over these channels only."""
        return self._replace(weights=tuple(w if c in channels else 0 for c, w in enumerate(self.weights)))

    def without(self, channels: frozenset[int]) -> "ChannelSplit":
        """The same split over all other channels."""
        return self.by(frozenset(range(len(self.weights))) - channels)

    def finer(self, share_bytes: int, chunks: int) -> "ChannelSplit":
        """The same split with a share cut into `chunks`, so that the first chunk's latency matters little.

        The window grows, so that no fewer bytes are in flight: an acknowledgement waits behind all that its sender has
        queued.
        """
        packets = share_bytes // (sum(map(bool, self.weights)) * chunks * _PACKET_BYTES)
        chunk_bytes = min(self.chunk_bytes, max(1, packets) * _PACKET_BYTES)
        factor = min(MAX_WINDOW_FACTOR, -(-self.chunk_bytes // chunk_bytes))
        return self._replace(chunk_bytes=chunk_bytes, window=factor * self.window)

    def cuts(self, segments: Sequence[Span], array: Array) -> list[tuple[int, ChunkedShare]]:
        """Each used channel and its share of every segment. A small array uses one channel."""
        used = [channel for channel, weight in enumerate(self.weights) if weight]
        if array.nbytes < len(self.weights) * _MIN_SHARE_BYTES:
            used = used[:1]
        shares = share(segments, [self.weights[channel] for channel in used])
        return [
            (channel, cut(part, array.itemsize, self.chunk_bytes)) for channel, part in zip(used, shares, strict=True)
        ]


class ChannelTransfer:
    """Sends its messages strictly in order, at most `window` of them unacknowledged, to one or several receivers.

    The order is the schedule's. A receiver that is not ready blocks the messages behind its own, so that each step
    stays a permutation. `pacer` limits the rate; `pace_wait_ns` is how long it delays the next message, 0 if not.
    """

    def __init__(
        self,
        sends: list[tuple[SendEndpoint, Message]],
        arrivals: dict[ReceiveEndpoint, list[Arrival]],
        staging: Staging,
        targets: dict[ReceiveEndpoint, tuple[NicBuffers, int]],
        window: int,
    ) -> None:
        self.sends = sends
        self.arrivals = arrivals
        self.staging = staging
        self.targets = targets
        self.arrived = 0
        self.pacer: Pacer | None = None
        self.pace_wait_ns = 0
        self._window = window
        self._next = 0
        self._outstanding = 0

    def places_for(self, receiver: ReceiveEndpoint) -> tuple[tuple[int, int], ...]:
        """Where messages to a receiver go that are not staged: the address and the key on each NIC that may be used."""
        buffers, start = self.targets[receiver]
        return tuple((buffer.address + start, buffer.rkey) for buffer in buffers.values())

    def totals(self) -> dict[SendEndpoint, int]:
        """How many messages go to each receiver, by sending endpoint."""
        totals: dict[SendEndpoint, int] = {}
        for sender, _ in self.sends:
            totals[sender] = totals.get(sender, 0) + 1
        return totals

    @property
    def sent(self) -> bool:
        """Whether everything has been written and acknowledged."""
        return self._next == len(self.sends) and not self._outstanding

    def arrive(self, receiver: ReceiveEndpoint, count: int) -> None:  # noqa: ARG002  (messages of all receivers count)
        """Count messages that have arrived and been used."""
        self.arrived += count

    def acknowledged(self, latency_ns: int | None) -> None:
        """One message fewer is in flight; see `Operation.acknowledged`."""
        self._outstanding -= 1
        if self.pacer and latency_ns is not None:
            self.pacer.acknowledged(latency_ns)

    def notified(self, now_ns: int) -> None:
        """Packets came marked at a receiver."""
        if self.pacer:
            self.pacer.notified(now_ns)

    def pump(self, seq: int, now_ns: int) -> list[SendEndpoint]:
        """Write every message that may be written; returns the endpoints written to."""
        touched = []
        self.pace_wait_ns = 0
        while self.head_waits_for() == "":
            sender, message = self.sends[self._next]
            if self.pacer:
                self.pace_wait_ns = self.pacer.wait_ns(now_ns)
                if self.pace_wait_ns:
                    break
                self.pacer.sent(message.length, now_ns)
            sender.write(message, seq, now_ns)
            self._next += 1
            self._outstanding += 1
            touched.append(sender)
        return touched

    @property
    def head(self) -> SendEndpoint | None:
        """The endpoint of the next message, None when all are written."""
        return self.sends[self._next][0] if self._next < len(self.sends) else None

    def head_waits_for(self) -> str:
        """What the next message waits for: "data", "credit", "transfer" (the window is full), "" (nothing).

        "idle" when there is no next message.
        """
        if self._next == len(self.sends):
            return "idle"
        sender, message = self.sends[self._next]
        if message.needs > self.arrived:
            return "data"
        if not sender.has_credit:
            return "credit"
        return "transfer" if self._outstanding >= self._window or self.pace_wait_ns else ""


def ring_transfer(
    plan: schedule.RingPlan,
    array: Array,
    part: ChunkedShare,
    *,
    buffer: NicBuffers,
    ends: tuple[SendEndpoint | None, ReceiveEndpoint | None],
    reducing: Reducing | None,
    staging_bytes: int,
    window: int,
) -> ChannelTransfer:
    """A ring schedule over one channel's share of a flat array."""
    itemsize = array.itemsize
    sender, receiver = ends
    sends: list[tuple[SendEndpoint, Message]] = []
    for send in plan.sends:
        assert sender is not None
        start, stop = part.span(send.segment, send.chunk)
        offset = start * itemsize
        length = (stop - start) * itemsize
        message = Message(buffer, offset, length, offset, send.staged, send.needs)
        sends.append((sender, message))
    arrivals = []
    for receive in plan.receives:
        start, stop = part.span(receive.segment, receive.chunk)
        apply = (reducing.last if receive.final else reducing.step) if reducing and receive.reduce else None
        arrivals.append(Arrival(array[start:stop], apply))
    staging = cut_staging(staging_bytes, part.longest() * itemsize)
    incoming, targets = ({receiver: arrivals}, {receiver: (buffer, 0)}) if receiver else ({}, {})
    return ChannelTransfer(sends, incoming, staging, targets, window)


def shift_transfer(
    rank: int,
    source: Array,
    target: Array,
    part: ChunkedShare,
    *,
    buffers: tuple[NicBuffers, NicBuffers],
    ends: tuple[dict[int, SendEndpoint], dict[int, ReceiveEndpoint]],
    window: int,
) -> ChannelTransfer:
    """All-to-all over one channel's share: segment r of `source` goes to rank r, segment r of `target` comes from it.

    No rank sends more than a few messages ahead of what it has received. Otherwise it would disturb a receiver in the
    step of another sender.
    """
    itemsize = source.itemsize
    senders, receivers = ends
    source_buffer, target_buffer = buffers
    sends: list[tuple[SendEndpoint, Message]] = []
    arrivals: dict[ReceiveEndpoint, list[Arrival]] = {}
    targets: dict[ReceiveEndpoint, tuple[NicBuffers, int]] = {}
    for to, back in schedule.shift(rank, len(part.segments)):
        own = part.segments[rank][0]
        for chunk in range(part.chunks):
            start, stop = part.span(to, chunk)
            # The receiver's array has this rank's segment where any array has it.
            offset = (part.span(rank, chunk)[0] - own) * itemsize
            length, needs = (stop - start) * itemsize, max(0, len(sends) - _MAX_LEAD)
            sends.append((senders[to], Message(source_buffer, start * itemsize, length, offset, False, needs)))
        receiver = receivers[back]
        arrivals[receiver] = [Arrival(target[slice(*part.span(back, chunk))], None) for chunk in range(part.chunks)]
        targets[receiver] = (target_buffer, part.segments[back][0] * itemsize)
    return ChannelTransfer(sends, arrivals, Staging(1, 64), targets, window)


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

    Each healthy rank owns a segment, of which it has the healthy ranks' sum. The degraded ranks send every owner its
    segment. As soon as an owner has a chunk from all of them, it adds these in a fixed order and sends the sum to all
    ranks. So a degraded rank sends its array once and receives it once, at the same time.

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
