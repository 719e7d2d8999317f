"""Endpoints on one NIC: a connection is one QP, or several that share the load by weight."""

from collections import deque
from collections.abc import Sequence

from c4bench.collective.endpoints import Message, ReceiveEndpoint, SendEndpoint, check_weights
from c4bench.collective.handshake import (
    GRANT_BYTES,
    MAILBOX_SLOTS,
    Grant,
    ReceivingEnd,
    SendingEnd,
    pack_grant,
    unpack_grant,
)
from c4bench.collective.memory import Buffer
from c4bench.collective.recorder import ArrivalWriter, ConnWriter
from c4bench.verbs.marks import MarkedPackets
from c4bench.verbs.transport import Connection

GRANT_DEPTH = 64
# The immediate of a notice that packets came marked, as a CNP of RoCE v2 says it; no slot of a mailbox has this number.
CONGESTION_NOTICE = MAILBOX_SLOTS
# A receiver sends a notice at most this often (DCQCN's N; Zhu et al., SIGCOMM 2015, 3.1, "NP Algorithm").
_NOTICE_EVERY_NS = 50_000
# An immediate holds the operation's number and the message's index in the operation, each modulo its field's size.
_INDEX_BITS = 20
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_SEQ_MASK = 0xFFF
# One in this many grants is signaled: enough to recycle the send queue, with few wake-ups.
_GRANTS_PER_SIGNAL = 8


class WeightedQp:
    """One QP of a connection to a peer: its share of the load, and its messages in flight."""

    def __init__(self, connection: Connection, record: ConnWriter) -> None:
        self.connection = connection
        self.record = record
        self.weight = 1.0
        self.carried_bytes = 0.0
        self._in_flight: deque[tuple[int, int]] = deque()  # length and when posted, ns

    def write(self, local: tuple[int, int], remote: tuple[int, int], length: int, immediate: int, now_ns: int) -> None:
        """Post a message."""
        self.connection.write(local, remote, length, immediate=immediate, signaled=True)
        self.carried_bytes += length
        self._in_flight.append((length, now_ns))
        self.record.post(now_ns)

    def acknowledged(self, now_ns: int) -> int:
        """The oldest message is acknowledged; returns the ns since it was posted."""
        length, posted_ns = self._in_flight.popleft()
        self.record.acknowledge(length, now_ns)
        return now_ns - posted_ns

    @property
    def outstanding(self) -> int:
        """Messages written and not acknowledged."""
        return len(self._in_flight)


class MultiQpSendEndpoint(SendEndpoint):
    """The sending endpoint on one channel's NIC."""

    def __init__(self, peer: int, qps: list[WeightedQp], mailbox: Buffer, far: ReceivingEnd) -> None:
        super().__init__(peer)
        self.qps = qps
        self._by_qp = {qp.connection.qp_num: qp for qp in qps}
        self._mailbox = mailbox
        self._far = far

    @property
    def connections(self) -> list[Connection]:
        """The QPs."""
        return [qp.connection for qp in self.qps]

    def read_grant(self, slot: int) -> Grant:
        """The grant that has just arrived in mailbox `slot`; grants use the first QP."""
        self.post_receive()
        return unpack_grant(self._mailbox.view, slot)

    def post_receive(self) -> None:
        """Receive one more grant or notice."""
        self.qps[0].connection.post_receive()

    @property
    def outstanding(self) -> int:
        """See SendEndpoint."""
        return sum(qp.outstanding for qp in self.qps)

    def _send(self, message: Message, index: int, seq: int, now_ns: int) -> None:
        assert self._grant is not None
        if message.staged:
            at = self._far.staging + index % self._staging.slots * self._staging.slot_bytes
            remote = (at, self._far.staging_rkey)
        else:
            remote = (self._grant.address + message.offset, self._grant.rkey)
        immediate = (seq & _SEQ_MASK) << _INDEX_BITS | index & _INDEX_MASK
        qp = self.qps[0] if len(self.qps) == 1 else self._lightest(message.length)
        qp.write((message.address, message.lkey), remote, message.length, immediate, now_ns)

    def _lightest(self, length: int) -> WeightedQp:
        """The QP that is furthest behind its share."""
        usable = [qp for qp in self.qps if qp.weight]
        return min(usable, key=lambda qp: (qp.carried_bytes + length) / qp.weight)

    def weigh(self, weights: Sequence[float]) -> None:
        """See SendEndpoint."""
        check_weights(weights, len(self.qps))
        for qp, weight in zip(self.qps, weights, strict=True):
            qp.weight, qp.carried_bytes = weight, 0.0

    def move(self, qp_index: int, source_port: int) -> None:
        """See SendEndpoint."""
        qp = self.qps[qp_index]
        qp.connection.move(source_port)
        qp.record.move(qp.connection.source_port)

    def acknowledged(self, qp: int, now_ns: int) -> int:
        """See SendEndpoint."""
        return self._by_qp[qp].acknowledged(now_ns)

    def record_state(self, waiting_for: str, now_ns: int) -> None:
        """See SendEndpoint."""
        owed = self._total - self._posted
        for qp in self.qps:
            outstanding = qp.outstanding
            qp.record.set_state("transfer" if outstanding else waiting_for, outstanding, owed, now_ns)


class MultiQpReceiveEndpoint(ReceiveEndpoint):
    """The receiving endpoint on one channel's NIC; with `marks` it tells the sender when packets came marked."""

    def __init__(
        self,
        peer: int,
        connections: list[Connection],
        outbox: Buffer,
        staging: Buffer | None,
        far: SendingEnd,
        records: list[ArrivalWriter],
        marks: MarkedPackets | None = None,
    ) -> None:
        super().__init__(peer, staging.bytes if staging else None)
        self.connections = connections
        self._by_qp = {
            connection.qp_num: (connection, record) for connection, record in zip(connections, records, strict=True)
        }
        # A buffer stays registered as long as something refers to it.
        self._outbox, self._staging_buffer = outbox, staging
        self._far = far
        self._grants = self._writes = 0
        self._marks = marks
        self._marked = marks.count() if marks else None
        self._noticed_ns = 0

    def arrived(self, qp: int, immediate: int, now_ns: int) -> int | None:
        """See ReceiveEndpoint."""
        index = self._consumed + ((immediate - self._consumed) & _INDEX_MASK)
        expected = (self._template.seq & _SEQ_MASK) == immediate >> _INDEX_BITS
        if not expected or index >= self._granted or index in self._ahead:
            return None
        connection, record = self._by_qp[qp]
        connection.post_receive()
        record.arrived(now_ns)
        if self._marks:
            self._notify(self._marks, now_ns)
        return self._consume(index)

    def _notify(self, marks: MarkedPackets, now_ns: int) -> None:
        """Tell the sender if packets have come marked since it was told last; whoever sent them to this host."""
        marked = marks.count()
        if marked == self._marked or now_ns - self._noticed_ns < _NOTICE_EVERY_NS:
            return
        self._marked, self._noticed_ns = marked, now_ns
        self._write(0, 0, CONGESTION_NOTICE)

    def publish(self) -> None:
        """See ReceiveEndpoint."""
        for _, record in self._by_qp.values():
            record.store()

    def _send_grant(self, grant: Grant) -> None:
        slot = self._grants % MAILBOX_SLOTS
        self._grants += 1
        at = slot * GRANT_BYTES
        packed = pack_grant(grant)
        self._outbox.view[at : at + len(packed)] = packed
        self._write(at, len(packed), slot)

    def _write(self, at: int, length: int, immediate: int) -> None:
        """Write a part of the outbox to the same place of the sender's mailbox."""
        self._writes += 1
        self.connections[0].write(
            (self._outbox.address + at, self._outbox.region.lkey),
            (self._far.mailbox + at, self._far.mailbox_rkey),
            length,
            immediate=immediate,
            signaled=self._writes % _GRANTS_PER_SIGNAL == 0,
        )
