"""Moves what was in flight on a dead rail to others, exactly once (R2CCL, arXiv 2512.25059: live migration, rollback).

The sender fences its QP, so that nothing more leaves, and says so. The receiver fences its own, so that nothing that is
still under way can be written any more, and answers what has arrived. Only then is the rest sent again, by other rails.
Either end may begin; a word that is lost is said again, and one about an earlier life of the rail is ignored. A sender
whose receiver has ended the operation, and is not there to answer, reads in its ledger that all has arrived.
"""

from collections.abc import Callable

from c4bench.collective.operation import Operation
from c4bench.collective.resilient.failure_attribution import FailureAttribution
from c4bench.collective.resilient.messages import Fence, Fenced, Word
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
        patience: FailureTimeouts,
        tell: Callable[[int, Word], None],
        inquiry: FailureAttribution,
    ) -> None:
        self._edges = edges
        self._patience = patience
        self._tell = tell
        self._inquiry = inquiry
        self.died = 0

    def broken(self, edge: Edge, rail: Rail, why: str, now_ns: int) -> None:
        """A rail carries nothing any more: fence this end and tell the other. Nothing where that is known."""
        if rail.state in (State.FENCED, State.DOWN):
            return
        rail.fence(why, now_ns)
        self.died += 1
        self._inquiry.open(rail.nic, now_ns)
        if isinstance(rail, SendingRail):
            rail.answer = None
            self._tell(rail.peer, Fence(rail.name, rail.life))
        elif isinstance(edge, ReceivingPeer):
            assert isinstance(rail, ReceivingRail)
            rail.heeded = False
            for inlet in edge.inlets:
                inlet.tell_again()

    def heard_fence(self, word: Fence, now_ns: int) -> None:
        """The sender has fenced a rail: do so too, or say again what came by it."""
        edge, rail = self._edges.by_name[word.rail]
        if word.life != rail.life or not isinstance(rail, ReceivingRail):
            return
        self.broken(edge, rail, "the sender found it dead", now_ns)
        rail.heeded = True
        if rail.state is State.DOWN:
            self._report(edge, rail, now_ns)

    def heard_fenced(self, word: Fenced, now_ns: int) -> None:
        """The receiver has fenced a rail, and says what it has."""
        edge, rail = self._edges.by_name[word.rail]
        if word.life != rail.life or not isinstance(rail, SendingRail) or rail.state is State.DOWN:
            return
        self.broken(edge, rail, "the receiver found it dead", now_ns)
        rail.answer = word

    def step(self, operation: Operation, now_ns: int) -> None:
        """Settle what can be settled."""
        for edge, rail in self._edges.rails(State.FENCED):
            if isinstance(rail, SendingRail):
                self._settle(operation, rail, now_ns)
            elif rail.drained:
                assert isinstance(rail, ReceivingRail)
                rail.state = State.DOWN
                self._report(edge, rail, now_ns)

    def _settle(self, operation: Operation, rail: SendingRail, now_ns: int) -> None:
        """Send again what the answer says has not come."""
        if rail.answer is None or not rail.drained:
            return
        while rail.lost:
            sent = rail.lost[0]
            if rail.answer.held[sent.outlet.channel].has(sent.seq, sent.number):
                operation.acknowledged(sent.outlet, 0, now_ns)
            elif not sent.outlet.resend(sent, now_ns):
                return
            rail.lost.pop(0)
        rail.state = State.DOWN
        self._put_off(rail, now_ns)

    def _put_off(self, rail: SendingRail, now_ns: int) -> None:
        """When the rail may be tried again: later each time that it did not last."""
        patience = self._patience
        early = rail.penalty_s and now_ns - rail.up_ns < patience.longest_s * 1e9
        rail.penalty_s = min(patience.longest_s, 2 * rail.penalty_s) if early else patience.retry_s
        rail.retry_ns = now_ns + int(rail.penalty_s * 1e9)

    def _report(self, edge: Edge, rail: ReceivingRail, now_ns: int) -> None:
        assert isinstance(edge, ReceivingPeer)
        rail.told_ns = now_ns
        rail.tells += 1
        self._tell(rail.peer, Fenced(rail.name, rail.life, tuple(inlet.held() for inlet in edge.inlets)))

    def tick(self, now_ns: int) -> None:
        """Say again what has had no answer, and look into the ledgers of those who may not be there to answer."""
        for edge, rail in self._edges.rails(State.FENCED):
            if isinstance(rail, SendingRail) and rail.answer is None:
                if self._due(rail, now_ns):
                    rail.told_ns = now_ns
                    rail.tells += 1
                    self._tell(rail.peer, Fence(rail.name, rail.life))
                if rail.lost:
                    self._read_ledger(edge)
        for edge, rail in self._edges.rails(State.DOWN):
            if isinstance(rail, ReceivingRail) and not rail.heeded and self._due(rail, now_ns):
                self._report(edge, rail, now_ns)

    def _due(self, rail: Rail, now_ns: int) -> bool:
        wait_s = self._patience.resend_s * (1 << min(rail.tells, _MOST_DOUBLINGS))
        return now_ns - rail.told_ns >= wait_s * 1e9

    def _read_ledger(self, edge: Edge) -> None:
        assert isinstance(edge, SendingPeer)
        way = next((rail for rail in edge.rails if rail.usable and not rail.probing), None)
        if edge.reading is not None or way is None:
            return
        edge.reading, way.probing = way, True
        glance = edge.glance
        way.ends.probe.read(
            (glance.address, glance.regions[way.nic].lkey),
            (edge.far.ledger, edge.far.ledger_rkeys[way.nic]),
            LEDGER_BYTES,
        )

    def ledger_read(self, operation: Operation, edge: SendingPeer, now_ns: int) -> None:
        """What the peer's ledger says has just been read: all messages of operations that it has ended have come."""
        ended = int.from_bytes(edge.glance.view[:LEDGER_BYTES], "little")
        for rail in edge.rails:
            if rail.state is State.FENCED and rail.answer is None and rail.drained:
                while rail.lost and rail.lost[0].seq < ended:
                    operation.acknowledged(rail.lost.pop(0).outlet, 0, now_ns)
