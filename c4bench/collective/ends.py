"""The two ends of a directed connection between ranks: the outlet writes, the inlet grants and receives.

The receiver drives: the outlet may write a message only when it has the data *and* a grant for it. A grant is a limit
on the message's index within the operation, as a TCP window is, and says where the bytes may go. Receives are posted
for every message that can be granted, so the transport's receiver-not-ready path is never taken.
"""

from collections import deque
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


class Outlet:
    """The sending end towards `peer` on one channel."""

    def __init__(
        self, peer: int, connection: Connection, mailbox: Buffer, far: ReceivingEnd, record: ConnWriter
    ) -> None:
        self.peer = peer
        self.connection = connection
        self.record = record
        self._mailbox = mailbox
        self._far = far
        self._early: list[Grant] = []
        self._lengths: deque[int] = deque()
        self._staging = Staging(1, 0)
        self._grant: Grant | None = None
        self._posted = 0
        self._total = 0

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
        """The grant that has just arrived in mailbox `slot`."""
        self.connection.post_receive()
        return unpack_grant(self._mailbox.view, slot)

    def keep(self, grant: Grant) -> None:
        """Keep a grant for an operation this rank has not entered yet."""
        self._early.append(grant)

    def accept(self, grant: Grant) -> None:
        """Take a grant for the running operation."""
        self._grant = grant

    @property
    def has_credit(self) -> bool:
        """Whether the next message may be written."""
        return self._grant is not None and self._posted < self._grant.limit

    @property
    def outstanding(self) -> int:
        """Messages written and not acknowledged."""
        return len(self._lengths)

    def write(self, message: Message, seq: int, now_ns: int) -> None:
        """Write the next message; the caller has checked `has_credit`."""
        assert self._grant is not None
        if message.staged:
            at = self._far.staging + self._posted % self._staging.slots * self._staging.slot_bytes
            remote = (at, self._far.staging_rkey)
        else:
            remote = (self._grant.address + message.offset, self._grant.rkey)
        immediate = (seq & 0xFFF) << 20 | self._posted & 0xFFFFF
        local = (message.address, message.lkey)
        self.connection.write(local, remote, message.length, immediate=immediate, signaled=True)
        self._posted += 1
        self._lengths.append(message.length)
        self.record.posted += 1
        self.record.posted_sum_ns += now_ns

    def move(self, source_port: int, now_ns: int) -> None:
        """Take another path; nothing may be outstanding."""
        self.connection.move(source_port)
        self.record.source_port = self.connection.source_port
        self.settle("idle", now_ns)

    def acknowledged(self, now_ns: int) -> None:
        """The oldest message has reached the peer's memory."""
        self.record.messages += 1
        self.record.size_bytes += self._lengths.popleft()
        self.record.last_progress_ns = now_ns

    def settle(self, waiting_for: str, now_ns: int) -> None:
        """Record the state after a wake-up: `waiting_for` holds back the next message if nothing is in flight."""
        state = "transfer" if self._lengths else waiting_for
        record = self.record
        if state != record.state:
            record.enter(state, now_ns)
        record.outstanding = len(self._lengths)
        record.owed = self._total - self._posted
        record.store()


class Inlet:
    """The receiving end from `peer` on one channel."""

    def __init__(
        self,
        peer: int,
        connection: Connection,
        outbox: Buffer,
        staging: Buffer | None,
        far: SendingEnd,
        record: ArrivalWriter,
    ) -> None:
        self.peer = peer
        self.record = record
        self.connection = connection
        self._outbox = outbox
        self._buffer = staging
        self._far = far
        self._grants = 0
        self._granted = 0
        self._consumed = 0
        self._total = 0
        # Taken from the front, so that a finished operation leaves no reference to the user's array.
        self._arrivals: deque[Arrival] = deque()
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

    def arrived(self, immediate: int, now_ns: int) -> bool:
        """Take the next message; False when its immediate shows that it is not the one expected."""
        expected = (self._template.seq & 0xFFF) << 20 | self._consumed & 0xFFFFF
        if immediate != expected or self.complete:
            return False
        self.connection.post_receive()
        into, apply = self._arrivals.popleft()
        if apply is not None:
            apply(into, self._slot(self._consumed, into))
        self._consumed += 1
        self.record.arrived(now_ns)
        self._grant()
        return True

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
        self.connection.write(
            (self._outbox.address + at, self._outbox.region.lkey),
            (self._far.mailbox + at, self._far.mailbox_rkey),
            len(packed),
            immediate=slot,
            signaled=self._grants % _GRANTS_PER_SIGNAL == 0,
        )
