"""An engine whose operations outlive NICs: it hands completions to rails, and rails' troubles to repair."""

from collections import Counter

import msgspec

from c4bench.collective.endpoints import ReceiveEndpoint, SendEndpoint
from c4bench.collective.engine import Engine
from c4bench.collective.memory import Buffer
from c4bench.collective.operation import Operation
from c4bench.collective.rendezvous import FailureSignal, RelayChannel
from c4bench.collective.resilience_counters import ResilienceCounters
from c4bench.collective.resilient.failure_attribution import FailureAttribution
from c4bench.collective.resilient.failure_broadcast import FailureBroadcast
from c4bench.collective.resilient.keys import Keyring
from c4bench.collective.resilient.mailbox import WORD_CHANNEL
from c4bench.collective.resilient.messages import (
    Accepted,
    Fence,
    Fenced,
    Offer,
    RailDeath,
    RailUp,
    SilenceQuery,
    Word,
    decode,
    encode,
)
from c4bench.collective.resilient.peer_rails import Edge, PeerRails, ReceivingPeer, SendingPeer
from c4bench.collective.resilient.rail import Rail, ReceivingRail, SendingRail, State
from c4bench.collective.resilient.rail_monitor import RailMonitor
from c4bench.collective.resilient.rail_recovery import RailRecovery
from c4bench.collective.resilient.repair import LEDGER_BYTES, Repair
from c4bench.collective.resilient.send_endpoint import CHANNEL_SHIFT
from c4bench.collective.resilient.unreachable_host import UnreachableHostCheck
from c4bench.collective.wiring import RankEndpointContext
from c4bench.verbs.timer import Timer
from c4bench.verbs.transport import Completion

_LEDGER_MASK = (1 << 8 * LEDGER_BYTES) - 1


class RailEngine(Engine):
    """See Engine. `ledger` is the memory in which peers may read how many operations have ended here."""

    def __init__(
        self, site: RankEndpointContext, alarm: FailureSignal, line: RelayChannel, ledger: Buffer, keys: Keyring
    ) -> None:
        options = site.options
        patience = options.patience
        super().__init__(site.ports, alarm, options.completions, options.clock_ns, options.timeout_s)
        self.edges = PeerRails()
        self._patience = patience
        self._line = line
        self._ledger = ledger
        self._keys = keys
        self.inquiry = FailureAttribution(self.edges, site.rank, site.members, self._tell, line.lost)
        self.repair = Repair(self.edges, patience, self._tell, self.inquiry)
        self.trial = RailRecovery(self.edges, patience, self._tell)
        spread = FailureBroadcast(site.rank, site.size, self._tell)
        self.watch = RailMonitor(
            self.edges, patience, self.repair, spread, site.ports, [nic.device for nic in site.nics]
        )
        self._verdict = UnreachableHostCheck(self.edges, self.watch, site.rank, site.members)
        self._tick = Timer()
        self._looked_ns = 0
        self._waiter.watch(self._tick.fd)
        self._waiter.watch(line.fd)

    def close(self) -> None:
        """See Engine."""
        super().close()
        self._tick.close()

    def attach(self, channel: int, end: SendEndpoint | ReceiveEndpoint) -> None:
        """See Engine; the rails come with `connect`."""
        if isinstance(end, SendEndpoint):
            self._outlets[end] = channel

    @property
    def resilience(self) -> ResilienceCounters:
        """What has been done so far."""
        rails = [rail for _, rail in self.edges.rails()]
        inlets = [inlet for edge in self.edges.all if isinstance(edge, ReceivingPeer) for inlet in edge.inlets]
        states = Counter(rail.state.value for rail in rails)
        return ResilienceCounters(
            states=dict(sorted(states.items())),
            died=self.repair.died,
            returned=self.trial.returned,
            repeated=sum(inlet.repeated for inlet in inlets),
            findings=tuple(tuple(map(str, found)) for found in self.inquiry.findings),
            reasons=tuple(sorted({rail.why for rail in rails if rail.why})),
        )

    @property
    def lost(self) -> frozenset[int]:
        """See Engine. A NIC that still reaches one peer is not to blame for another's."""
        left = {rail.nic for _, rail in self.edges.rails(State.UP)}
        return frozenset(rail.nic for _, rail in self.edges.rails()) - left

    def _tell(self, rank: int, word: Word) -> None:
        """Out of band and by a rail: a word that comes twice is as good as one."""
        body = encode(word)
        self._line.tell(rank, body)
        any(edge.peer == rank and edge.tell(body) for edge in self.edges.all)

    def run(self, operation: Operation, now_ns: int) -> None:
        """See Engine. Where a rail is lost its messages go by others, and the operation goes on."""
        self._tick.set(self._patience.tick_s)
        self.watch.begin(now_ns)
        if now_ns - self._looked_ns >= self._patience.tick_s * 1e9:
            # Operations may be too short for any tick to come in one.
            self._look(now_ns)
        super().run(operation, now_ns)
        ended = operation.seq + 1 & _LEDGER_MASK
        self._ledger.view[:LEDGER_BYTES] = ended.to_bytes(LEDGER_BYTES, "little")
        self._keys.clear()

    def _step(self, operation: Operation) -> int:
        ready = self._waiter.wait(float("inf"))
        now_ns = self._clock_ns()
        for nic, completion in ready.completions:
            self._complete(operation, nic, completion, now_ns)
        for event in ready.events:
            self.watch.happened(event, now_ns)
        if self._line.fd in ready.readable:
            self._hear(now_ns)
        if self._tick.fd in ready.readable:
            self._tick.set(self._patience.tick_s)
            self._look(now_ns)
            self._verdict.check(operation, now_ns)
        self.repair.step(operation, now_ns)
        operation.advance(now_ns)
        if operation.done:
            return now_ns
        if self._alarm.fd in ready.readable:
            self._listen(operation)
        if self._deadline.fd in ready.readable:
            raise operation.timed_out(self._timeout_s)
        return now_ns

    def _look(self, now_ns: int) -> None:
        """See to what time brings."""
        self._looked_ns = now_ns
        self.watch.tick(now_ns)
        self.repair.tick(now_ns)
        self.trial.tick(now_ns)
        self.inquiry.tick(now_ns)

    def _complete(self, operation: Operation, nic: int, completion: Completion, now_ns: int) -> None:
        probed = self.edges.by_probe.get((nic, completion.qp))
        if probed is not None:
            self._probed(operation, *probed, completion, now_ns)
            return
        edge, rail = self.edges.by_qp[nic, completion.qp]
        if completion.status:
            self._lost(edge, rail, completion, now_ns)
        elif isinstance(rail, SendingRail):
            assert isinstance(edge, SendingPeer)
            self._sent(operation, edge, rail, completion, now_ns)
        elif isinstance(rail, ReceivingRail):
            assert isinstance(edge, ReceivingPeer)
            self._received(operation, edge, rail, completion, now_ns)

    def _lost(self, edge: Edge, rail: Rail, completion: Completion, now_ns: int) -> None:
        if completion.received:
            rail.receives -= 1
        elif isinstance(rail, SendingRail):
            rail.lose()
        elif isinstance(rail, ReceivingRail):
            rail.completed()
        self.watch.failed(edge, rail, completion.status, now_ns)

    def _sent(
        self, operation: Operation, edge: SendingPeer, rail: SendingRail, completion: Completion, now_ns: int
    ) -> None:
        if completion.received:
            channel, slot = divmod(completion.immediate, 1 << 8)
            rail.received()
            if channel == WORD_CHANNEL:
                self._heed_word(edge.post.read(slot), now_ns)
                return
            outlet = edge.outlets[channel]
            operation.granted(outlet, outlet.read_grant(slot))
            return
        sent = rail.acknowledged(now_ns)
        if sent is not None:
            operation.acknowledged(sent.outlet, completion.qp, now_ns)

    def _received(
        self, operation: Operation, edge: ReceivingPeer, rail: ReceivingRail, completion: Completion, now_ns: int
    ) -> None:
        if not completion.received:
            rail.completed()
            return
        channel = completion.immediate >> CHANNEL_SHIFT
        rail.received()
        if channel == WORD_CHANNEL:
            self._heed_word(edge.post.read(completion.immediate & 0xFF), now_ns)
            return
        inlet = edge.inlets[channel]
        rail.record.arrived(now_ns)
        edge.heard_ns, edge.patience_s = now_ns, self._patience.quiet_s
        operation.arrived(inlet, completion.qp, completion.immediate, now_ns)

    def _probed(self, operation: Operation, edge: Edge, rail: Rail, completion: Completion, now_ns: int) -> None:
        rail.probing = False
        if isinstance(edge, SendingPeer) and edge.reading is rail:
            edge.reading = None
            if not completion.status:
                self.repair.ledger_read(operation, edge, now_ns)
        if rail.state is State.TRIAL and isinstance(rail, SendingRail):
            if completion.status:
                self.trial.failed(rail, now_ns)
            else:
                self.trial.answered(rail, now_ns)
        elif completion.status:
            self.watch.failed(edge, rail, f"a probe ended with {completion.status}", now_ns)
        else:
            rail.heard_ns = now_ns

    def _hear(self, now_ns: int) -> None:
        bodies = self._line.take()
        if bodies is None:
            self._waiter.unwatch(self._line.fd)
            return
        for body in bodies:
            self._heed_word(body, now_ns)

    def _heed_word(self, body: bytes, now_ns: int) -> None:
        try:
            word = decode(body)
        except msgspec.DecodeError:
            return
        if isinstance(word, RailDeath):
            self.inquiry.heard(word, now_ns)
        elif isinstance(word, SilenceQuery):
            self.watch.heard(now_ns)
        elif word.rail in self.edges.by_name:
            self._heed_rail(word, now_ns)

    def _heed_rail(self, word: Fence | Fenced | Offer | Accepted | RailUp, now_ns: int) -> None:
        if isinstance(word, Fence):
            self.repair.heard_fence(word, now_ns)
        elif isinstance(word, Fenced):
            self.repair.heard_fenced(word, now_ns)
        elif isinstance(word, Offer):
            self.trial.heard_offer(word)
        elif isinstance(word, Accepted):
            self.trial.heard_accepted(word, now_ns)
        else:
            self.trial.heard_up(word, now_ns)
