"""A channel's share of an operation: which items it carries, in which messages, and when each may be sent.

This is the one place where a plan's indices become addresses.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from c4bench.collective import schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.endpoints import Arrival, GateCounts, ReceiveEndpoint, SendEndpoint, Staging, cut_staging
from c4bench.collective.memory import Array, NicBuffers
from c4bench.collective.pacer import Pacer
from c4bench.collective.rail import Message
from c4bench.collective.schedule import Plan, Receive, Span

# An array with fewer bytes than this for each channel goes over one channel: smaller messages cost more than they gain.
_MIN_SHARE_BYTES = 64 << 10
# The largest packet's payload: a shorter message costs as much.
_PACKET_BYTES = 4 << 10
# Shorter messages may have at most this many times the default window in flight; send queues are that deep.
MAX_WINDOW_FACTOR = 4
# The last quarter of a stream's messages has a window that is longer by an eighth where it goes over several paths.
_ENDING, _LONGER = 4, 8


class ChunkedShare(NamedTuple):
    """A channel's share of an array: its part of each segment, in items, cut into `chunks`.

    `whole` are the segments of which these are parts.
    """

    segments: list[Span]
    chunks: int
    whole: Sequence[Span]

    def span(self, segment: int, chunk: int) -> Span:
        """The items of a chunk."""
        start, stop = self.segments[segment]
        low, high = schedule.split(stop - start, self.chunks)[chunk]
        return start + low, start + high

    def longest(self) -> int:
        """Items of the longest chunk."""
        return -(-max(stop - start for start, stop in self.segments) // self.chunks)


def cut(
    segments: list[Span], itemsize: int, chunk_bytes: int, whole: Sequence[Span], carriers: int = 1
) -> ChunkedShare:
    """Cut parts of the segments `whole` into as many chunks as the longest one needs.

    They are a multiple of the `carriers`, unless too short.
    """
    longest = max(stop - start for start, stop in segments)
    chunks = schedule.chunk_count(longest, 1, itemsize, chunk_bytes)
    even = -(-chunks // carriers) * carriers
    return ChunkedShare(segments, even if longest * itemsize >= even * _MIN_SHARE_BYTES else chunks, whole)


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
    """How channels share an array: by `weights` (0: unused), in messages up to `chunk_bytes`, `window` in flight.

    If a channel loses its NIC, so many `carriers` have equal parts of its messages.
    """

    weights: tuple[int, ...]
    chunk_bytes: int
    window: int
    carriers: int = 1

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
        return self._in_messages_of(packets)

    def for_shared_nics(self, qps: int) -> "ChannelSplit":
        """The same split where so many QPs share a NIC: shorter messages, which are acknowledged more often.

        A QP may have a few packets unacknowledged, and an acknowledgement waits behind what all QPs of its NIC have
        queued. For that of a long message it waits so long that the NIC idles.
        """
        return self._in_messages_of(self.chunk_bytes // qps // _PACKET_BYTES)

    def _in_messages_of(self, packets: int) -> "ChannelSplit":
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
            (channel, cut(part, array.itemsize, self.chunk_bytes, segments, self.carriers))
            for channel, part in zip(used, shares, strict=True)
        ]


def longer(window: int) -> int:
    """The window of a connection over several paths towards the end of an operation."""
    return window + max(1, window // _LONGER)


class Stream:
    """Messages that leave strictly in order, at most `window` of them unacknowledged, to one or several receivers.

    A receiver that is not ready blocks the messages behind its own, so that each step of an all-to-all stays a
    permutation. A connection over several paths that is late finds their links free, once other jobs have ended there,
    and its NIC cannot use more than one of them. So it has some more messages in flight (`longer`) towards the end.
    """

    def __init__(self, sends: Sequence[tuple[SendEndpoint, Message]], window: int) -> None:
        self.sends = sends
        self._window = window
        self._ending = len(sends) - len(sends) // _ENDING
        several_paths = any(sender.paths > 1 for sender in {sender for sender, _ in sends})
        self._ending_window = longer(window) if several_paths else window
        self._next = 0
        self._outstanding = 0

    @property
    def sent(self) -> bool:
        """Whether everything has been written and acknowledged."""
        return self._next == len(self.sends) and not self._outstanding

    @property
    def head(self) -> tuple[SendEndpoint, Message] | None:
        """The next message and its endpoint, None when all are written."""
        return self.sends[self._next] if self._next < len(self.sends) else None

    def written(self) -> None:
        """The next message has been written."""
        self._next += 1
        self._outstanding += 1

    def acknowledged(self) -> None:
        """One message fewer is in flight."""
        self._outstanding -= 1

    def waits_for(self, passed: GateCounts) -> str:
        """What the next message waits for: "data", "credit", "transfer" (the window is full), "" (nothing).

        "idle" when there is no next message. `passed` are the arrivals that have been used.
        """
        if self.head is None:
            return "idle"
        sender, message = self.head
        if message.needs > passed[message.gate]:
            return "data"
        if not sender.has_credit:
            return "credit"
        window = self._window if self._next < self._ending else self._ending_window
        return "transfer" if self._outstanding >= window else ""


class ChannelTransfer:
    """Sends the messages of its `streams`, which take turns, and receives `arrivals`; `passed` counts those used.

    `pacer` limits the rate; `pace_wait_ns` is how long it delays the next message, 0 if not.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        arrivals: dict[ReceiveEndpoint, list[Arrival]],
        staging: Staging,
        targets: dict[ReceiveEndpoint, tuple[NicBuffers, int]],
    ) -> None:
        self.streams = streams
        self.arrivals = arrivals
        self.staging = staging
        self.targets = targets
        self.passed = GateCounts()
        self.pacer: Pacer | None = None
        self.pace_wait_ns = 0
        self._stream_of = {sender: stream for stream in streams for sender, _ in stream.sends}
        # Receivers with arrivals that wait for those of others.
        self._waiting = [
            receiver for receiver, expected in arrivals.items() if any(arrival.needs for arrival in expected)
        ]

    def places_for(self, receiver: ReceiveEndpoint) -> tuple[tuple[int, int], ...]:
        """Where messages to a receiver go that are not staged: the address and the key on each NIC that may be used."""
        buffers, start = self.targets[receiver]
        return tuple((buffers[nic].address + start, buffers[nic].rkey) for nic in receiver.nics)

    def totals(self) -> dict[SendEndpoint, int]:
        """How many messages go to each receiver, by sending endpoint."""
        totals: dict[SendEndpoint, int] = {}
        for stream in self.streams:
            for sender, _ in stream.sends:
                totals[sender] = totals.get(sender, 0) + 1
        return totals

    @property
    def sent(self) -> bool:
        """Whether everything has been written and acknowledged."""
        return all(stream.sent for stream in self.streams)

    def use_waiting(self) -> list[ReceiveEndpoint]:
        """Use what has arrived and waited for other arrivals; returns the receivers that have used something."""
        used: list[ReceiveEndpoint] = []
        while more := [receiver for receiver in self._waiting if receiver.use_arrived()]:
            used += more
        return used

    def acknowledged(self, sender: SendEndpoint, latency_ns: int | None) -> None:
        """One message fewer is in flight; see `Operation.acknowledged`."""
        self._stream_of[sender].acknowledged()
        if self.pacer and latency_ns is not None:
            self.pacer.acknowledged(latency_ns)

    def notified(self, now_ns: int) -> None:
        """Packets came marked at a receiver."""
        if self.pacer:
            self.pacer.notified(now_ns)

    def pump(self, seq: int, now_ns: int) -> list[SendEndpoint]:
        """Write every message that may be written; returns the endpoints written to."""
        touched: list[SendEndpoint] = []
        self.pace_wait_ns = 0
        moving = True
        while moving:
            moving = False
            for stream in self.streams:
                if stream.waits_for(self.passed) == "" and self._write_head(stream, seq, now_ns, touched):
                    moving = True
        return touched

    def _write_head(self, stream: Stream, seq: int, now_ns: int, touched: list[SendEndpoint]) -> bool:
        """Write the next message of a stream, if the pacer allows it."""
        assert stream.head is not None
        sender, message = stream.head
        if self.pacer:
            self.pace_wait_ns = self.pacer.wait_ns(now_ns)
            if self.pace_wait_ns:
                return False
            self.pacer.sent(message.length, now_ns)
        sender.write(message, seq, now_ns)
        stream.written()
        touched.append(sender)
        return True

    def heads(self) -> Iterator[SendEndpoint]:
        """The endpoints of the streams' next messages."""
        return (stream.head[0] for stream in self.streams if stream.head)

    def waits_for(self, sender: SendEndpoint) -> str:
        """What an endpoint waits for (see `Stream`); "idle" unless it has the next message of its stream."""
        stream = self._stream_of[sender]
        if stream.head is None or stream.head[0] is not sender:
            return "idle"
        return stream.waits_for(self.passed) or ("transfer" if self.pace_wait_ns else "")


class RegisteredArray(NamedTuple):
    """A flat array, and how NICs address it."""

    array: Array
    buffer: NicBuffers


class Memory(NamedTuple):
    """The arrays of an operation: what is sent, where results go, and `scratch` in rows of `row_items`.

    `relays` are the segments of what other ranks have sent to be passed on, in the scratch memory and in the target.
    """

    source: RegisteredArray
    target: RegisteredArray
    scratch: RegisteredArray
    row_items: int
    relays: ChunkedShare | None = None

    def share(self, own: ChunkedShare, *, relayed: bool) -> ChunkedShare:
        """The segments that a message is about."""
        return self.relays if relayed and self.relays else own


class Ends(NamedTuple):
    """A rank's ends of a channel's edges, by peer."""

    senders: Mapping[int, SendEndpoint]
    receivers: Mapping[int, ReceiveEndpoint]

    def of(self, plan: Plan) -> tuple[list[SendEndpoint], list[ReceiveEndpoint]]:
        """The ends that a plan uses."""
        to = dict.fromkeys(send.peer for sends in plan.streams for send in sends)
        back = dict.fromkeys(receive.peer for receive in plan.receives)
        return [self.senders[peer] for peer in to], [self.receivers[peer] for peer in back]


def transfer(
    plan: Plan,
    part: ChunkedShare,
    memory: Memory,
    ends: Ends,
    *,
    reducing: Reducing | None,
    staging_bytes: int,
    window: int,
) -> ChannelTransfer:
    """A plan over one channel's share of flat arrays."""
    itemsize = memory.source.array.itemsize
    streams = []
    for sends in plan.streams:
        messages = []
        for send in sends:
            share = memory.share(part, relayed=send.relayed)
            start, stop = share.span(send.segment, send.chunk)
            place = start - share.whole[send.segment][0] if send.relative else start
            message = Message(
                (memory.scratch if send.relayed else memory.source).buffer,
                start * itemsize,
                (stop - start) * itemsize,
                place * itemsize,
                send.staged,
                send.needs,
                send.gate,
            )
            messages.append((ends.senders[send.peer], message))
        streams.append(Stream(messages, window))
    arrivals: dict[ReceiveEndpoint, list[Arrival]] = {}
    targets: dict[ReceiveEndpoint, tuple[NicBuffers, int]] = {}
    for receive in plan.receives:
        receiver = ends.receivers[receive.peer]
        arrivals.setdefault(receiver, []).append(_arrival(receive, part, memory, reducing))
        if receive.row is not None:
            targets[receiver] = memory.scratch.buffer, receive.row * memory.row_items * itemsize
        else:
            share = memory.share(part, relayed=receive.relayed)
            origin = share.whole[receive.segment][0] if receive.relative else 0
            targets[receiver] = memory.target.buffer, origin * itemsize
    return ChannelTransfer(streams, arrivals, cut_staging(staging_bytes, part.longest() * itemsize), targets)


def _arrival(receive: Receive, part: ChunkedShare, memory: Memory, reducing: Reducing | None) -> Arrival:
    start, stop = memory.share(part, relayed=receive.relayed).span(receive.segment, receive.chunk)
    apply = (reducing.last if receive.final else reducing.step) if reducing and receive.reduce else None
    written = None
    if receive.row is not None:
        shift = receive.row * memory.row_items - part.whole[receive.segment][0]
        written = memory.scratch.array[start + shift : stop + shift]
    into = memory.target.array[start:stop]
    return Arrival(into, apply, written, receive.gate, receive.after, receive.needs)
