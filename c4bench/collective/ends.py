"""The two ends of a directed connection between ranks: the outlet writes, the inlet grants and receives.

The receiver drives: the outlet may write a message only when it has the data *and* a grant for it. A grant is a limit
on the message's index within the operation, as a TCP window is, and says where the bytes may go. Receives are posted
for every message that can be granted, so the transport's receiver-not-ready path is never taken. Messages spread over
several QPs may overtake each other; they are used in order.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from c4bench.collective.arrays import Reduction
from c4bench.collective.memory import Array, Buffer
from c4bench.collective.recorder import ArrivalWriter, ConnWriter
from c4bench.collective.wire import (
    GRANT_BYTES,
    MAILBOX_SLOTS,
    Grant,
    ReceivingEnd,
    SendingEnd,
    Signature,
    pack_grant,
    unpack_grant,
)
from c4bench.verbs.transport import Connection

MAX_SLOTS = 64
DIRECT_WINDOW = 64
INLET_RECEIVES = MAX_SLOTS + DIRECT_WINDOW
INLET_SENDS = 64
# An immediate holds the operation's number and the message's index in it, both modulo what fits.
_INDEX_BITS = 20
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_SEQ_MASK = 0xFFF
# One grant in so many asks for a completion: enough to recycle the send queue, and few wake-ups.
_GRANTS_PER_SIGNAL = 8


class Message(NamedTuple):
    """What an outlet is to write: local address and key, length, and the place in the receiver's array.

    It may go once `needs` messages of its lane have arrived.
    """

    address: int
    lkey: int
    length: int
    offset: int
    staged: bool
    needs: int


class Arrival(NamedTuple):
    """What an inlet is to receive. `apply(into, staged)` reduces; None means that the bytes are already in place."""

    into: Array
    apply: Reduction | None


class Staging(NamedTuple):
    """How an operation cuts the staging memory: both ends derive it from the operation's size."""

    slots: int
    slot_bytes: int


def cut_staging(staging_bytes: int, message_bytes: int) -> Staging:
    """As many slots of the longest message as fit, on 64-byte boundaries."""
    slot_bytes = max(64, -(-message_bytes // 64) * 64)
    return Staging(min(MAX_SLOTS, staging_bytes // slot_bytes), slot_bytes)


class Way:
    """One QP of a connection to a peer: its share of the load, and what is in flight on it."""

    def __init__(self, connection: Connection, record: ConnWriter) -> None:
        self.connection = connection
        self.record = record
        self.weight = 1.0
        self.carried_bytes = 0.0
        self._lengths: deque[int] = deque()

    def write(self, local: tuple[int, int], remote: tuple[int, int], length: int, immediate: int, now_ns: int) -> None:
        """Post a message."""
        self.connection.write(local, remote, length, immediate=immediate, signaled=True)
        self.carried_bytes += length
        self._lengths.append(length)
        self.record.post(now_ns)

    def acknowledged(self, now_ns: int) -> None:
        """The oldest message has reached the peer's memory."""
        self.record.acknowledge(self._lengths.popleft(), now_ns)

    @property
    def outstanding(self) -> int:
        """Messages written and not acknowledged."""
        return len(self._lengths)


class Outlet:
    """The sending end towards `peer` on one channel: one or several QPs, which share the load by weight."""

    def __init__(self, peer: int, ways: list[Way], mailbox: Buffer, far: ReceivingEnd) -> None:
        self.peer = peer
        self.ways = ways
        self._by_qp = {way.connection.qp_num: way for way in ways}
        self._mailbox = mailbox
        self._far = far
        self._early: list[Grant] = []
        self._staging = Staging(1, 0)
        self._grant: Grant | None = None
        self._posted = 0
        self._total = 0

    @property
    def connections(self) -> list[Connection]:
        """Its QPs."""
        return [way.connection for way in self.ways]

    def begin(self, seq: int, total: int, staging: Staging) -> list[Grant]:
        """Start operation `seq` with `total` messages; returns the grants that came before it."""
        early = [grant for grant in self._early if grant.seq == seq]
        self._early = [grant for grant in self._early if grant.seq != seq]
        self._staging = staging
        self._grant = None
        self._posted = 0
        self._total = total
        return early

    def read_grant(self, slot: int) -> Grant:
        """The grant that has just arrived in mailbox `slot`; grants come on the first QP."""
        self.ways[0].connection.post_receive()
        return unpack_grant(self._mailbox.view, slot)

    def keep(self, grant: Grant) -> None:
        """Keep a grant for an operation this rank has not entered yet."""
        self._early.append(grant)

    def accept(self, grant: Grant) -> None:
        """Take a grant for the running operation."""
        self._grant = grant

    @property
    def granted(self) -> bool:
        """Whether the peer has granted anything in this operation."""
        return self._grant is not None

    @property
    def has_credit(self) -> bool:
        """Whether the next message may be written."""
        return self._grant is not None and self._posted < self._grant.limit

    @property
    def outstanding(self) -> int:
        """Messages written and not acknowledged."""
        return sum(way.outstanding for way in self.ways)

    def write(self, message: Message, seq: int, now_ns: int) -> None:
        """Write the next message; the caller has checked `has_credit`."""
        assert self._grant is not None
        if message.staged:
            at = self._far.staging + self._posted % self._staging.slots * self._staging.slot_bytes
            remote = (at, self._far.staging_rkey)
        else:
            remote = (self._grant.address + message.offset, self._grant.rkey)
        immediate = (seq & _SEQ_MASK) << _INDEX_BITS | self._posted & _INDEX_MASK
        way = self.ways[0] if len(self.ways) == 1 else self._lightest(message.length)
        way.write((message.address, message.lkey), remote, message.length, immediate, now_ns)
        self._posted += 1

    def _lightest(self, length: int) -> Way:
        """The QP that is furthest behind its share."""
        usable = [way for way in self.ways if way.weight]
        return min(usable, key=lambda way: (way.carried_bytes + length) / way.weight)

    def weigh(self, weights: Sequence[float]) -> None:
        """Share the load from now on as `weights` say, one for each QP; 0 spares one. ValueError when all are 0."""
        if len(weights) != len(self.ways) or min(weights) < 0 or not any(weights):
            raise ValueError(f"{list(weights)} are not {len(self.ways)} weights of 0 or more, one of them positive")
        for way, weight in zip(self.ways, weights, strict=True):
            way.weight, way.carried_bytes = weight, 0.0

    def move(self, qp_index: int, source_port: int) -> None:
        """Have one QP take another path; nothing may be outstanding."""
        way = self.ways[qp_index]
        way.connection.move(source_port)
        way.record.move(way.connection.source_port)

    def acknowledged(self, qp: int, now_ns: int) -> None:
        """The oldest message on a QP has reached the peer's memory."""
        self._by_qp[qp].acknowledged(now_ns)

    def settle(self, waiting_for: str, now_ns: int) -> None:
        """Record the state after a wake-up: `waiting_for` holds back the next message where nothing is in flight."""
        owed = self._total - self._posted
        for way in self.ways:
            outstanding = way.outstanding
            way.record.settle("transfer" if outstanding else waiting_for, outstanding, owed, now_ns)


class Inlet:
    """The receiving end from `peer` on one channel."""

    def __init__(
        self,
        peer: int,
        connections: list[Connection],
        outbox: Buffer,
        staging: Buffer | None,
        far: SendingEnd,
        records: list[ArrivalWriter],
    ) -> None:
        self.peer = peer
        self.connections = connections
        self._by_qp = {
            connection.qp_num: (connection, record) for connection, record in zip(connections, records, strict=True)
        }
        self._outbox = outbox
        self._buffer = staging
        self._far = far
        self._grants = 0
        self._granted = 0
        self._consumed = 0
        self._total = 0
        # Taken from the front, so that a finished operation leaves no reference to the user's array.
        self._arrivals: deque[Arrival] = deque()
        # Indices that have overtaken an earlier message, which came on another QP.
        self._ahead: set[int] = set()
        self._staged = 0
        self._staging = Staging(1, 0)
        self._template = Grant(0, 0, 0, 0, Signature("barrier", "", "", 0, 0))

    def begin(self, template: Grant, arrivals: list[Arrival], staging: Staging) -> None:
        """Start an operation with these arrivals and grant its first messages as `template` says."""
        self._template = template
        self._arrivals = deque(arrivals)
        self._total = len(arrivals)
        self._staging = staging
        self._staged = sum(arrival.apply is not None for arrival in arrivals)
        self._granted = 0
        self._consumed = 0
        self._grant()

    @property
    def complete(self) -> bool:
        """Whether everything has arrived."""
        return self._consumed == self._total

    def arrived(self, qp: int, immediate: int, now_ns: int) -> int | None:
        """A message has come on a QP: how many can be used now, in order; None when this one was never granted."""
        index = self._consumed + ((immediate - self._consumed) & _INDEX_MASK)
        expected = (self._template.seq & _SEQ_MASK) == immediate >> _INDEX_BITS
        if not expected or index >= self._granted or index in self._ahead:
            return None
        connection, record = self._by_qp[qp]
        connection.post_receive()
        record.arrived(now_ns)
        self._ahead.add(index)
        used = 0
        while self._consumed in self._ahead:
            self._ahead.remove(self._consumed)
            self._use()
            used += 1
        if used:
            self._grant()
        return used

    def publish(self) -> None:
        """Store what has been counted."""
        for _, record in self._by_qp.values():
            record.store()

    def _use(self) -> None:
        into, apply = self._arrivals.popleft()
        if apply is not None:
            apply(into, self._slot(self._consumed, into))
        self._consumed += 1

    def _slot(self, index: int, like: Array) -> Array:
        assert self._buffer is not None
        start = index % self._staging.slots * self._staging.slot_bytes
        found: Array = self._buffer.bytes[start : start + like.nbytes].view(like.dtype)
        return found

    def _allowed(self) -> int:
        if self._consumed + self._staging.slots < self._staged:
            return self._consumed + self._staging.slots
        return min(self._total, max(self._staged, self._consumed + DIRECT_WINDOW))

    def _grant(self) -> None:
        """Grant what has become free, in batches of half the slots: fewer messages, and the sender never runs dry."""
        allowed = self._allowed()
        batch = max(1, self._staging.slots // 2) if self._consumed < self._staged else DIRECT_WINDOW // 2
        if allowed <= self._granted or (allowed - self._granted < batch and allowed < self._total):
            return
        self._granted = allowed
        slot = self._grants % MAILBOX_SLOTS
        self._grants += 1
        at = slot * GRANT_BYTES
        packed = pack_grant(self._template._replace(limit=allowed))
        self._outbox.view[at : at + len(packed)] = packed
        self.connections[0].write(
            (self._outbox.address + at, self._outbox.region.lkey),
            (self._far.mailbox + at, self._far.mailbox_rkey),
            len(packed),
            immediate=slot,
            signaled=self._grants % _GRANTS_PER_SIGNAL == 0,
        )
