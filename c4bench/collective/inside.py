"""Connections between ranks of one host, through memory that they share: what NVLink is to GPUs.

A sender copies a message into a slot and says in a queue when it arrives; a timer that both ends share wakes the
receiver then (`gpu_links` computes the time). The receiver uses the slot in place, and grants more, as on a NIC.
The bytes are safe once they are copied, so a message counts as acknowledged when it has arrived, without an answer.

Each end writes its own counters of the queues only, after what they count; a message is never seen before it is whole.
A socket between both ends wakes the sender when there are grants. It ends with either process, which the other notices.
"""

import ctypes
import mmap
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import numpy as np

from c4bench.collective.endpoints import Arrival, GateCounts, ReceiveEndpoint, SendEndpoint, Staging
from c4bench.collective.gpu_links import GPUS, GpuLinks, GpuPair
from c4bench.collective.handshake import OWN_QPS, SLOT_BYTES, Grant, pack_grant, unpack_grant
from c4bench.collective.memory import INSIDE, Array
from c4bench.collective.operation import Operation
from c4bench.collective.rail import InFlight
from c4bench.collective.recorder import ArrivalWriter, ConnWriter
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Inside
from c4bench.verbs.timer import Timer

# Slots of a channel, and how often the sender looks whether a link that is down is up again.
_SLOTS = 8
_LOOK_S = 0.001
_PAGE = 4096
_CREDENTIALS = struct.Struct("3i")  # process, user, group
# The counters at the start of the memory: messages appended and taken, grants appended and taken.
_SENT, _TAKEN, _GRANTED, _READ = range(4)
# A message: channel, immediate, bytes, arrival (ns of the monotonic clock). No more are under way than there are slots,
# and a link has no more channels than a host has GPUs.
_ENTRY_WORDS = 4
_ENTRIES = GPUS * _SLOTS
# A grant: its channel, then the bytes of `pack_grant`. A channel has few under way, as on a NIC.
_GRANTS = 256
_GRANT_BYTES = 8 + SLOT_BYTES
_QUEUE_AT = _PAGE
_GRANTS_AT = _QUEUE_AT + _ENTRIES * _ENTRY_WORDS * 8
_SLOTS_AT = -(-(_GRANTS_AT + _GRANTS * _GRANT_BYTES) // _PAGE) * _PAGE


class InsidePlace(NamedTuple):
    """Where the ranks of a job meet on their host: a folder, the file of the GPUs' links, and how these are."""

    folder: Path
    links: Path
    inside: Inside


class SharedQueue:
    """The memory of a link: messages and grants on their way, and the slots of its channels."""

    def __init__(self, descriptor: int, channels: Sequence[int], slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.descriptor = descriptor
        size_bytes = _SLOTS_AT + len(channels) * _SLOTS * slot_bytes
        os.ftruncate(descriptor, size_bytes)
        self._map = mmap.mmap(descriptor, size_bytes)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._view = memoryview(self._map)
        self._words = self._view[:_GRANTS_AT].cast("Q")
        self._position = {channel: position for position, channel in enumerate(channels)}
        self._taken = self._read = 0

    def slot(self, channel: int, number: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        """The slot of a channel's message."""
        at = _SLOTS_AT + (self._position[channel] * _SLOTS + number % _SLOTS) * self.slot_bytes
        return self._bytes[at : at + self.slot_bytes]

    def append(self, channel: int, immediate: int, size_bytes: int, arrives_ns: int) -> int:
        """Add a message whose slot is written; returns when the oldest one that is not taken arrives."""
        sent = self._words[_SENT]
        at = self._entry(sent)
        self._words[at], self._words[at + 1], self._words[at + 2] = channel, immediate, size_bytes
        self._words[at + 3] = arrives_ns
        self._words[_SENT] = sent + 1
        oldest = min(self._words[_TAKEN], sent)
        return self._words[self._entry(oldest) + 3]

    def pop_arrived(self, now_ns: int) -> Iterator[tuple[int, int]]:
        """Take the messages that have arrived, in order: the channel and the immediate of each."""
        while (next_ns := self.next_ns()) is not None and next_ns <= now_ns:
            at = self._entry(self._taken)
            channel, immediate = self._words[at], self._words[at + 1]
            self._taken += 1
            self._words[_TAKEN] = self._taken
            yield channel, immediate

    def next_ns(self) -> int | None:
        """When the next message arrives, None if there is none."""
        if self._taken == self._words[_SENT]:
            return None
        return self._words[self._entry(self._taken) + 3]

    @staticmethod
    def _entry(number: int) -> int:
        return _QUEUE_AT // 8 + number % _ENTRIES * _ENTRY_WORDS

    def grant(self, channel: int, grant: Grant) -> None:
        """Add a grant."""
        granted = self._words[_GRANTED]
        packed = channel.to_bytes(8, "little") + pack_grant(grant)
        at = _GRANTS_AT + granted % _GRANTS * _GRANT_BYTES
        self._view[at : at + len(packed)] = packed
        self._words[_GRANTED] = granted + 1

    def grants(self) -> Iterator[tuple[int, Grant]]:
        """Take the grants that have come, each with its channel."""
        while self._read < self._words[_GRANTED]:
            at = _GRANTS_AT + self._read % _GRANTS * _GRANT_BYTES
            packed = self._view[at : at + _GRANT_BYTES]
            self._read += 1
            self._words[_READ] = self._read
            yield int.from_bytes(packed[:8], "little"), unpack_grant(packed[8:], 1)

    def close(self) -> None:
        """Unmap the memory, which is freed once the other end has done so too."""
        os.close(self.descriptor)
        self._words.release()
        self._bytes = np.empty(0, np.uint8)
        self._view.release()
        with suppress(BufferError):  # an operation that has failed may still refer to a slot
            self._map.close()


class Sent(NamedTuple):
    """A message under way, when it was posted (on the caller's clock) and when it arrives (on the monotonic one)."""

    sender: "InsideSender"
    size_bytes: int
    posted_ns: int
    arrives_ns: int


class InsideSender(SendEndpoint):
    """The sending endpoint to a rank of the same host on one channel."""

    record: ConnWriter

    def __init__(self, peer: int, channel: int, link: "OutgoingLink") -> None:
        super().__init__(peer, channel, [], None, {})
        self.nics = (INSIDE,)
        self._link = link

    def _write(self, sent: InFlight) -> None:
        self.record.post(sent.posted_ns)
        self._link.send(self, sent)

    def record_state(self, waiting_for: str, now_ns: int) -> None:
        """See SendEndpoint."""
        state = "transfer" if self.outstanding else waiting_for
        self.record.set_state(state, self.outstanding, self._total - self._posted, now_ns)


class InsideReceiver(ReceiveEndpoint):
    """The receiving endpoint from a rank of the same host on one channel. All messages come by slots."""

    record: ArrivalWriter

    def __init__(self, peer: int, channel: int, link: "IncomingLink") -> None:
        super().__init__(peer, channel, [], None, None, {})
        self.nics = (INSIDE,)
        self._link = link

    def begin(self, template: Grant, arrivals: list[Arrival], staging: Staging, passed: GateCounts) -> None:  # noqa: ARG002
        """See ReceiveEndpoint."""
        super().begin(template, arrivals, Staging(_SLOTS, self._link.queue.slot_bytes), passed)

    def _needing_slots(self, arrivals: Sequence[Arrival]) -> int:
        return len(arrivals)

    def _slot(self, index: int, like: Array) -> Array:
        slot: Array = self._link.queue.slot(self.channel, index)[: like.nbytes].view(like.dtype)
        return slot

    def _landed(self, arrival: Arrival) -> Array:
        landed = self._slot(self._consumed, arrival.into)
        if arrival.apply is None:
            np.copyto(arrival.into if arrival.written is None else arrival.written, landed)
        return landed

    def _send_grant(self, grant: Grant) -> None:
        self._link.grant(self.channel, grant)

    def publish(self) -> None:
        """See ReceiveEndpoint."""
        if self.record.tally.count:
            self.record.store()


class _Link:
    """One end of a link: its socket, and the offset of the caller's clock to the monotonic one."""

    def __init__(self, peer: int, connection: socket.socket, queue: SharedQueue, timer: Timer, ahead_ns: int) -> None:
        self.peer, self.queue = peer, queue
        self.ended = False
        self._socket, self._timer, self._ahead_ns = connection, timer, ahead_ns

    @property
    def socket_fd(self) -> int:
        """Readable when there are grants, or the other end is gone."""
        return self._socket.fileno()

    def _drain(self) -> None:
        """Read what woke this end; an end of file says that the other one is gone."""
        with suppress(BlockingIOError):
            self.ended = self.ended or not self._socket.recv(_PAGE)

    def close(self) -> None:
        """Close it. The other end notices."""
        self._socket.close()
        self._timer.close()
        self.queue.close()


class OutgoingLink(_Link):
    """The sending end, with its endpoints by channel."""

    def __init__(
        self,
        peer: int,
        connection: socket.socket,
        queue: SharedQueue,
        timer: Timer,
        ahead_ns: int,
        links: GpuLinks,
        pair: GpuPair,
    ) -> None:
        super().__init__(peer, connection, queue, timer, ahead_ns)
        self.senders: dict[int, InsideSender] = {}
        self._links, self._pair = links, pair
        self._under_way: deque[Sent] = deque()
        # Messages that wait for the link to come up.
        self._held: deque[tuple[InsideSender, InFlight]] = deque()

    @property
    def fds(self) -> tuple[int, ...]:
        """What wakes this end."""
        return (self.socket_fd,)

    @property
    def needed(self) -> bool:
        """Whether the running operation depends on it."""
        return any(sender.needed for sender in self.senders.values())

    def send(self, sender: InsideSender, sent: InFlight) -> None:
        """Copy a message into its slot, to arrive when the link has carried it."""
        source = sent.message.source[INSIDE]
        slot = self.queue.slot(sender.channel, sent.number)
        ctypes.memmove(slot.ctypes.data, source.address + sent.message.start, sent.message.length)
        self._held.append((sender, sent))
        self._release(sent.posted_ns)

    def _release(self, now_ns: int) -> None:
        """Send what is held, as long as the link is up."""
        while self._held:
            sender, sent = self._held[0]
            length = sent.message.length
            arrives_ns = self._links.arrives_ns(self._pair, length, now_ns - self._ahead_ns)
            if arrives_ns is None:
                return
            self._held.popleft()
            self._under_way.append(Sent(sender, length, sent.posted_ns, arrives_ns))
            immediate = OWN_QPS.data(sender.channel, sent.seq, sent.number)
            # Set at each message: the receiver may have taken all others just now, and seen no reason to wait.
            self._timer.set_at(self.queue.append(sender.channel, immediate, length, arrives_ns))

    def arrived(self, now_ns: int) -> Iterator[tuple[InsideSender, int]]:
        """Messages that have arrived by now, each with how long that took; tries again what is held."""
        self._release(now_ns)
        while self._under_way and self._under_way[0].arrives_ns + self._ahead_ns <= now_ns:
            sent = self._under_way.popleft()
            arrived_ns = sent.arrives_ns + self._ahead_ns
            sent.sender.record.acknowledge(sent.size_bytes, arrived_ns)
            yield sent.sender, arrived_ns - sent.posted_ns

    def wait_ns(self, now_ns: int) -> int | None:
        """How long until all that is under way has arrived, or to look whether the link is up; None if nothing is."""
        if self._held:
            return round(_LOOK_S * 1e9)
        return max(1, self._under_way[-1].arrives_ns + self._ahead_ns - now_ns) if self._under_way else None

    def grants(self) -> Iterator[tuple[InsideSender, Grant]]:
        """The grants that have come."""
        self._drain()
        for channel, grant in self.queue.grants():
            yield self.senders[channel], grant


class IncomingLink(_Link):
    """The receiving end, with its endpoints by channel."""

    def __init__(self, peer: int, connection: socket.socket, queue: SharedQueue, timer: Timer, ahead_ns: int) -> None:
        super().__init__(peer, connection, queue, timer, ahead_ns)
        self.receivers: dict[int, InsideReceiver] = {}

    @property
    def timer_fd(self) -> int:
        """Readable when messages have arrived."""
        return self._timer.fd

    @property
    def fds(self) -> tuple[int, ...]:
        """What wakes this end."""
        return self.timer_fd, self.socket_fd

    @property
    def needed(self) -> bool:
        """Whether the running operation depends on it."""
        return any(not receiver.complete for receiver in self.receivers.values())

    def arrivals(self, now_ns: int) -> Iterator[tuple[InsideReceiver, int]]:
        """Messages that have arrived by now: the endpoint, and the immediate."""
        self._timer.clear()
        for channel, immediate in self.queue.pop_arrived(now_ns - self._ahead_ns):
            yield self.receivers[channel], immediate
        next_ns = self.queue.next_ns()
        if next_ns is not None:
            self._timer.set_at(next_ns)

    def grant(self, channel: int, grant: Grant) -> None:
        """Write a grant, and wake the sender."""
        self.queue.grant(channel, grant)
        with suppress(OSError):  # it has been woken already, or is gone
            self._socket.send(b"\0", socket.MSG_DONTWAIT)

    def look(self) -> None:
        """The socket is readable, as the sender is gone: it sends nothing."""
        self._drain()


class _Greeting(msgspec.Struct, frozen=True):
    """What a sender tells a receiver with the descriptors of the memory and of the timer."""

    rank: int
    channels: tuple[int, ...]
    slot_bytes: int


class InsideMeeting:
    """Connects the links of one rank: receivers listen in the folder of their job, and senders call.

    Only processes of the same user may connect. Raises UnhealthyError where a rank does not come.
    """

    def __init__(self, place: InsidePlace, name: str, timeout_s: float, clock_ns: Callable[[], int]) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._ahead_ns = clock_ns() - time.monotonic_ns()
        self._links = GpuLinks(place.links, place.inside)
        # The path of a socket has at most 107 characters; this one has few, wherever the folder is.
        self._folder = os.open(place.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._listening = _socket(timeout_s)

    def listen(self, senders: int) -> None:
        """Listen for so many senders."""
        self._remove()
        self._listening.bind(self._path(self.name))
        self._listening.listen(senders)

    def call(
        self, name: str, rank: int, peer: int, pair: GpuPair, channels: Sequence[int], slot_bytes: int
    ) -> OutgoingLink:
        """Connect to the receiver that listens under this name."""
        connection = _socket(self._timeout_s)
        try:
            connection.connect(self._path(name))
        except OSError as error:
            connection.close()
            raise UnhealthyError(f"rank {peer} of this host cannot be reached: {error.strerror}") from None
        queue = SharedQueue(os.memfd_create(name), channels, slot_bytes)
        timer = Timer()
        greeting = msgspec.msgpack.encode(_Greeting(rank, tuple(channels), slot_bytes))
        socket.send_fds(connection, [greeting], [queue.descriptor, timer.fd])
        connection.setblocking(False)
        return OutgoingLink(peer, connection, queue, timer, self._ahead_ns, self._links, pair)

    def accept(self, senders: Iterable[int]) -> list[IncomingLink]:
        """The links from these ranks, which have called."""
        links: list[IncomingLink] = []
        missing = set(senders)
        while missing:
            try:
                connection, _ = self._listening.accept()
                if not _of_this_user(connection):
                    connection.close()
                    continue
                connection.settimeout(self._timeout_s)
                said, descriptors, *_ = socket.recv_fds(connection, _PAGE, 2)
            except OSError:
                raise UnhealthyError(f"rank {min(missing)} of this host has not connected") from None
            greeting = msgspec.msgpack.decode(said, type=_Greeting)
            missing.remove(greeting.rank)
            memory, timer = descriptors
            queue = SharedQueue(memory, greeting.channels, greeting.slot_bytes)
            connection.setblocking(False)
            links.append(IncomingLink(greeting.rank, connection, queue, Timer(timer), self._ahead_ns))
        return links

    def _path(self, name: str) -> str:
        return f"/proc/self/fd/{self._folder}/{name}"

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()
        self._listening.close()
        os.close(self._folder)


def _socket(timeout_s: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(timeout_s)
    return made


def _of_this_user(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return bool(user == os.getuid())


class InsideEdges:
    """All links of a rank. The timer expires when what it has sent has arrived."""

    def __init__(self) -> None:
        self.outgoing: list[OutgoingLink] = []
        self.incoming: list[IncomingLink] = []
        self.timer: Timer | None = None
        self._waiting = False

    def __bool__(self) -> bool:
        return bool(self.outgoing or self.incoming)

    def add(self, outgoing: Sequence[OutgoingLink], incoming: Sequence[IncomingLink]) -> list[int]:
        """Add links; returns the descriptors that wake this rank because of them."""
        fds = [fd for link in outgoing for fd in link.fds] + [fd for link in incoming for fd in link.fds]
        if self.timer is None:
            self.timer = Timer()
            fds.append(self.timer.fd)
        self.outgoing += outgoing
        self.incoming += incoming
        return fds

    def progress(self, operation: Operation, readable: Collection[int], now_ns: int) -> None:
        """Pass on to the operation what has come by the links, and what they have carried."""
        for incoming in self.incoming:
            if incoming.timer_fd in readable:
                for receiver, immediate in incoming.arrivals(now_ns):
                    receiver.record.arrived(now_ns)
                    operation.arrived(receiver, immediate, now_ns)
            if incoming.socket_fd in readable:
                incoming.look()
        for outgoing in self.outgoing:
            if outgoing.socket_fd in readable:
                for sender, grant in outgoing.grants():
                    operation.granted(sender, grant)
            for sender, latency_ns in outgoing.arrived(now_ns):
                operation.acknowledged(sender, latency_ns)
        if self.timer and self.timer.fd in readable:
            self.timer.clear()
            self._waiting = False

    def wake_when_carried(self, now_ns: int) -> None:
        """Have the timer expire once all that is under way has arrived, unless it is set."""
        waits_ns = [wait_ns for link in self.outgoing if (wait_ns := link.wait_ns(now_ns)) is not None]
        if self.timer and waits_ns and not self._waiting:
            self.timer.set(max(waits_ns) / 1e9)
            self._waiting = True

    def ended(self) -> list[OutgoingLink | IncomingLink]:
        """The links whose other end is gone."""
        links: list[OutgoingLink | IncomingLink] = [*self.outgoing, *self.incoming]
        return [link for link in links if link.ended]

    def close(self) -> None:
        """Close all links."""
        for link in (*self.outgoing, *self.incoming):
            link.close()
        if self.timer:
            self.timer.close()
