"""Move the messages in flight on a dead rail to other rails, exactly once (R2CCL, arXiv 2512.25059: live migration).

The sender fences its QP, so that nothing more leaves, and notifies the receiver. The receiver fences its own QP, so
that no late packet can be written, and reports what has arrived. Then the sender sends the rest again by other rails.
Either end may begin. Messages are repeated until they are answered; messages about an earlier life of the rail are
ignored. If the receiver has ended the operation and does not answer, the sender reads in its ledger that all arrived.
"""

from collections.abc import Callable

from c4bench.collective.edges import LEDGER_BYTES, Edge, PeerRails, ReceivingPeer, SendingPeer
from c4bench.collective.operation import Operation
from c4bench.collective.options import FailureTimeouts
from c4bench.collective.rail import Rail, RailState, ReceivingRail, SendingRail
from c4bench.collective.resilient.failure_attribution import FailureAttribution
from c4bench.collective.resilient.messages import ControlMessage, Fence, Fenced

_MOST_DOUBLINGS = 5


class Repair:
    """The repair protocol, driven by completions, messages and time. `send(rank, message)` may lose messages."""

    def __init__(
        self,
        edges: PeerRails,
        timeouts: FailureTimeouts,
        send: Callable[[int, ControlMessage], None],
        attribution: FailureAttribution,
    ) -> None:
        self._edges = edges
        self._timeouts = timeouts
        self._send = send
        self._attribution = attribution
        self.died = 0

    def broken(self, edge: Edge, rail: Rail, why: str, now_ns: int) -> None:
        """A rail has failed: fence this end and notify the other. Does nothing if it is fenced already."""
        if rail.state in (RailState.FENCED, RailState.DOWN):
            return
        rail.fence(why, now_ns)
        self.died += 1
        self._attribution.open(rail.nic, now_ns)
        if isinstance(rail, SendingRail):
            rail.answer = None
            self._send(rail.peer, Fence(rail.name, rail.life))
        elif isinstance(edge, ReceivingPeer):
            assert isinstance(rail, ReceivingRail)
            rail.fence_acknowledged = False
            for receiver in edge.receivers:
                receiver.resend_grant()

    def on_fence(self, message: Fence, now_ns: int) -> None:
        """The sender has fenced a rail: fence this end too, or repeat the report."""
        edge, rail = self._edges.by_name[message.rail]
        if message.life != rail.life or not isinstance(rail, ReceivingRail):
            return
        self.broken(edge, rail, "the sender found it dead", now_ns)
        rail.fence_acknowledged = True
        if rail.state is RailState.DOWN:
            self._report(edge, rail, now_ns)

    def on_fenced(self, message: Fenced, now_ns: int) -> None:
        """The receiver has fenced a rail, and reports what it has received."""
        edge, rail = self._edges.by_name[message.rail]
        if message.life != rail.life or not isinstance(rail, SendingRail) or rail.state is RailState.DOWN:
            return
        self.broken(edge, rail, "the receiver found it dead", now_ns)
        rail.answer = message.held

    def step(self, operation: Operation, now_ns: int) -> None:
        """Recover fenced rails as far as possible."""
        for edge, rail in self._edges.rails(RailState.FENCED):
            if isinstance(rail, SendingRail):
                self._resend_lost(operation, edge, rail, now_ns)
            elif rail.drained:
                assert isinstance(rail, ReceivingRail)
                rail.state = RailState.DOWN
                self._report(edge, rail, now_ns)

    def _resend_lost(self, operation: Operation, edge: Edge, rail: SendingRail, now_ns: int) -> None:
        """Send again the messages that the receiver has not received."""
        assert isinstance(edge, SendingPeer)
        if rail.answer is None or not rail.drained:
            return
        while rail.lost:
            sent = rail.lost[0]
            sender = edge.senders[sent.channel]
            if rail.answer[sent.channel].has(sent.seq, sent.number):
                operation.acknowledged(sender, None)
            elif not sender.resend(sent, now_ns):
                return
            rail.lost.pop(0)
        rail.state = RailState.DOWN
        self._set_retry_time(rail, now_ns)

    def _set_retry_time(self, rail: SendingRail, now_ns: int) -> None:
        """Set when to reconnect the rail: the delay doubles if it failed soon after the last recovery."""
        timeouts = self._timeouts
        early = rail.penalty_s and now_ns - rail.up_ns < timeouts.longest_s * 1e9
        rail.penalty_s = min(timeouts.longest_s, 2 * rail.penalty_s) if early else timeouts.retry_s
        rail.retry_ns = now_ns + int(rail.penalty_s * 1e9)

    def _report(self, edge: Edge, rail: ReceivingRail, now_ns: int) -> None:
        assert isinstance(edge, ReceivingPeer)
        rail.last_sent_ns = now_ns
        rail.send_count += 1
        self._send(rail.peer, Fenced(rail.name, rail.life, tuple(receiver.progress() for receiver in edge.receivers)))

    def tick(self, now_ns: int) -> None:
        """Repeat unanswered messages, and read the ledgers of receivers that may not answer."""
        for edge, rail in self._edges.rails(RailState.FENCED):
            if isinstance(rail, SendingRail) and rail.answer is None:
                if self._resend_is_due(rail, now_ns):
                    rail.last_sent_ns = now_ns
                    rail.send_count += 1
                    self._send(rail.peer, Fence(rail.name, rail.life))
                if rail.lost:
                    self._read_ledger(edge)
        for edge, rail in self._edges.rails(RailState.DOWN):
            if isinstance(rail, ReceivingRail) and not rail.fence_acknowledged and self._resend_is_due(rail, now_ns):
                self._report(edge, rail, now_ns)

    def _resend_is_due(self, rail: Rail, now_ns: int) -> bool:
        wait_s = self._timeouts.resend_s * (1 << min(rail.send_count, _MOST_DOUBLINGS))
        return now_ns - rail.last_sent_ns >= wait_s * 1e9

    def _read_ledger(self, edge: Edge) -> None:
        assert isinstance(edge, SendingPeer)
        rail = next((rail for rail in edge.rails if rail.usable and not rail.probing), None)
        if edge.reading is not None or rail is None:
            return
        copy, ledger = edge.ledger_copy, edge.far[rail.nic].backup
        assert copy
        assert ledger
        assert rail.ends.probe
        edge.reading, rail.probing = rail, True
        local = (copy.address, copy.regions[rail.nic].lkey)
        rail.ends.probe.read(local, (ledger.ledger, ledger.ledger_rkey), LEDGER_BYTES)

    def ledger_read(self, operation: Operation, edge: SendingPeer) -> None:
        """The peer's ledger has been read: all messages of the operations that it has ended have arrived."""
        assert edge.ledger_copy
        ended = int.from_bytes(edge.ledger_copy.view[:LEDGER_BYTES], "little")
        for rail in edge.rails:
            if rail.state is RailState.FENCED and rail.answer is None and rail.drained:
                while rail.lost and rail.lost[0].seq < ended:
                    operation.acknowledged(edge.senders[rail.lost.pop(0).channel], None)
