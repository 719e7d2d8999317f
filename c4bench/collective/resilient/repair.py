"""Moves what was in flight on a dead rail to others, exactly once (R2CCL, arXiv 2512.25059: live migration, rollback).

The sender fences its QP, so that nothing more leaves, and says so. The receiver fences its own, so that nothing that is
still under way can be written any more, and answers what has arrived. Only then is the rest sent again, by other rails.
Either end may begin; a word that is lost is said again, and one about an earlier life of the rail is ignored. A sender
whose receiver has ended the operation, and is not there to answer, reads in its ledger that all has arrived.
"""

from collections.abc import Callable

from c4bench.collective.operation import Operation
from c4bench.collective.resilient.failure_attribution import FailureAttribution
from c4bench.collective.resilient.messages import ControlMessage, Fence, Fenced
from c4bench.collective.resilient.peer_rails import Edge, PeerRails, ReceivingPeer, SendingPeer
from c4bench.collective.resilient.rail import Rail, ReceivingRail, SendingRail, State
from c4bench.collective.resilient.timeouts import FailureTimeouts

LEDGER_BYTES = 8
_MOST_DOUBLINGS = 5


class Repair:
    """The protocol, driven by completions, words and time. `tell(rank, word)` may lose what it is told."""

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
        """A rail carries nothing any more: fence this end and tell the other. Nothing where that is known."""
        if rail.state in (State.FENCED, State.DOWN):
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
        """The sender has fenced a rail: do so too, or say again what came by it."""
        edge, rail = self._edges.by_name[message.rail]
        if message.life != rail.life or not isinstance(rail, ReceivingRail):
            return
        self.broken(edge, rail, "the sender found it dead", now_ns)
        rail.fence_acknowledged = True
        if rail.state is State.DOWN:
            self._report(edge, rail, now_ns)

    def on_fenced(self, message: Fenced, now_ns: int) -> None:
        """The receiver has fenced a rail, and says what it has."""
        edge, rail = self._edges.by_name[message.rail]
        if message.life != rail.life or not isinstance(rail, SendingRail) or rail.state is State.DOWN:
            return
        self.broken(edge, rail, "the receiver found it dead", now_ns)
        rail.answer = message

    def step(self, operation: Operation, now_ns: int) -> None:
        """Settle what can be settled."""
        for edge, rail in self._edges.rails(State.FENCED):
            if isinstance(rail, SendingRail):
                self._resend_lost(operation, rail, now_ns)
            elif rail.drained:
                assert isinstance(rail, ReceivingRail)
                rail.state = State.DOWN
                self._report(edge, rail, now_ns)

    def _resend_lost(self, operation: Operation, rail: SendingRail, now_ns: int) -> None:
        """Send again what the answer says has not come."""
        if rail.answer is None or not rail.drained:
            return
        while rail.lost:
            sent = rail.lost[0]
            if rail.answer.held[sent.sender.channel].has(sent.seq, sent.number):
                operation.acknowledged(sent.sender, 0, now_ns)
            elif not sent.sender.resend(sent, now_ns):
                return
            rail.lost.pop(0)
        rail.state = State.DOWN
        self._set_retry_time(rail, now_ns)

    def _set_retry_time(self, rail: SendingRail, now_ns: int) -> None:
        """When the rail may be tried again: later each time that it did not last."""
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
        """Say again what has had no answer, and look into the ledgers of those who may not be there to answer."""
        for edge, rail in self._edges.rails(State.FENCED):
            if isinstance(rail, SendingRail) and rail.answer is None:
                if self._resend_is_due(rail, now_ns):
                    rail.last_sent_ns = now_ns
                    rail.send_count += 1
                    self._send(rail.peer, Fence(rail.name, rail.life))
                if rail.lost:
                    self._read_ledger(edge)
        for edge, rail in self._edges.rails(State.DOWN):
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
        edge.reading, rail.probing = rail, True
        ledger_copy = edge.ledger_copy
        rail.ends.probe.read(
            (ledger_copy.address, ledger_copy.regions[rail.nic].lkey),
            (edge.far.ledger, edge.far.ledger_rkeys[rail.nic]),
            LEDGER_BYTES,
        )

    def ledger_read(self, operation: Operation, edge: SendingPeer, now_ns: int) -> None:
        """What the peer's ledger says has just been read: all messages of operations that it has ended have come."""
        ended = int.from_bytes(edge.ledger_copy.view[:LEDGER_BYTES], "little")
        for rail in edge.rails:
            if rail.state is State.FENCED and rail.answer is None and rail.drained:
                while rail.lost and rail.lost[0].seq < ended:
                    operation.acknowledged(rail.lost.pop(0).sender, 0, now_ns)
