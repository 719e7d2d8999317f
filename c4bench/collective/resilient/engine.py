"""The engine of resilient communicators: it passes completions to rails, and failures to repair."""

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
from c4bench.collective.resilient.mailbox import CONTROL_CHANNEL
from c4bench.collective.resilient.messages import (
    Accepted,
    ControlMessage,
    Fence,
    Fenced,
    Offer,
    RailDeath,
    RailUp,
    SilenceQuery,
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
    """See Engine. Peers may read in `ledger` how many operations this rank has ended."""

    def __init__(
        self,
        site: RankEndpointContext,
        failure_signal: FailureSignal,
        relay: RelayChannel,
        ledger: Buffer,
        keys: Keyring,
    ) -> None:
        options = site.options
        timeouts = options.timeouts
        super().__init__(site.ports, failure_signal, options.completions, options.clock_ns, options.timeout_s)
        self.edges = PeerRails()
        self._timeouts = timeouts
        self._relay = relay
        self._ledger = ledger
        self._keys = keys
        self.attribution = FailureAttribution(self.edges, site.rank, site.members, self._send, relay.lost)
        self.repair = Repair(self.edges, timeouts, self._send, self.attribution)
        self.recovery = RailRecovery(self.edges, timeouts, self._send)
        broadcast = FailureBroadcast(site.rank, site.size, self._send)
        self.monitor = RailMonitor(
            self.edges, timeouts, self.repair, broadcast, site.ports, [nic.device for nic in site.nics]
        )
        self._unreachable_check = UnreachableHostCheck(self.edges, self.monitor, site.rank, site.members)
        self._tick = Timer()
        self._timeouts_run_ns = 0
        self._waiter.watch(self._tick.fd)
        self._waiter.watch(relay.fd)

    def close(self) -> None:
        """See Engine."""
        super().close()
        self._tick.close()

    def attach(self, channel: int, endpoint: SendEndpoint | ReceiveEndpoint) -> None:
        """See Engine. The rails are added when they are connected."""
        if isinstance(endpoint, SendEndpoint):
            self._senders[endpoint] = channel

    @property
    def resilience(self) -> ResilienceCounters:
        """The counters so far."""
        rails = [rail for _, rail in self.edges.rails()]
        receivers = [
            receiver for edge in self.edges.all if isinstance(edge, ReceivingPeer) for receiver in edge.receivers
        ]
        states = Counter(rail.state.value for rail in rails)
        return ResilienceCounters(
            states=dict(sorted(states.items())),
            died=self.repair.died,
            returned=self.recovery.returned,
            repeated=sum(receiver.repeated for receiver in receivers),
            findings=tuple(tuple(map(str, failed_completion)) for failed_completion in self.attribution.findings),
            reasons=tuple(sorted({rail.why for rail in rails if rail.why})),
        )

    @property
    def lost(self) -> frozenset[int]:
        """See Engine. A NIC that still reaches a peer is not lost."""
        left = {rail.nic for _, rail in self.edges.rails(State.UP)}
        return frozenset(rail.nic for _, rail in self.edges.rails()) - left

    def _send(self, rank: int, message: ControlMessage) -> None:
        """Send a message through the relay and by a rail; the receiver ignores duplicates."""
        body = encode(message)
        self._relay.send(rank, body)
        any(edge.peer == rank and edge.send(body) for edge in self.edges.all)

    def run(self, operation: Operation, now_ns: int) -> None:
        """See Engine. When a rail is lost, its messages are sent by others and the operation continues."""
        self._tick.set(self._timeouts.tick_s)
        self.monitor.begin(now_ns)
        if now_ns - self._timeouts_run_ns >= self._timeouts.tick_s * 1e9:
            # Operations may be shorter than a tick.
            self._run_timeouts(now_ns)
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
            self.monitor.on_port_event(event, now_ns)
        if self._relay.fd in ready.readable:
            self._poll_relay(now_ns)
        if self._tick.fd in ready.readable:
            self._tick.set(self._timeouts.tick_s)
            self._run_timeouts(now_ns)
            self._unreachable_check.check(operation, now_ns)
        self.repair.step(operation, now_ns)
        operation.advance(now_ns)
        if operation.done:
            return now_ns
        if self._failure_signal.fd in ready.readable:
            self._check_failure_signal(operation)
        if self._deadline.fd in ready.readable:
            raise operation.timed_out(self._timeout_s)
        return now_ns

    def _run_timeouts(self, now_ns: int) -> None:
        """Run everything that depends on time."""
        self._timeouts_run_ns = now_ns
        self.monitor.tick(now_ns)
        self.repair.tick(now_ns)
        self.recovery.tick(now_ns)
        self.attribution.tick(now_ns)

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
        self.monitor.failed(edge, rail, completion.status, now_ns)

    def _sent(
        self, operation: Operation, edge: SendingPeer, rail: SendingRail, completion: Completion, now_ns: int
    ) -> None:
        if completion.received:
            channel, slot = divmod(completion.immediate, 1 << 8)
            rail.received()
            if channel == CONTROL_CHANNEL:
                self._dispatch(edge.control.read(slot), now_ns)
                return
            sender = edge.senders[channel]
            operation.granted(sender, sender.read_grant(slot))
            return
        sent = rail.acknowledged(now_ns)
        if sent is not None:
            operation.acknowledged(sent.sender, completion.qp, now_ns)

    def _received(
        self, operation: Operation, edge: ReceivingPeer, rail: ReceivingRail, completion: Completion, now_ns: int
    ) -> None:
        if not completion.received:
            rail.completed()
            return
        channel = completion.immediate >> CHANNEL_SHIFT
        rail.received()
        if channel == CONTROL_CHANNEL:
            self._dispatch(edge.control.read(completion.immediate & 0xFF), now_ns)
            return
        receiver = edge.receivers[channel]
        rail.record.arrived(now_ns)
        edge.last_message_ns, edge.probe_after_s = now_ns, self._timeouts.quiet_s
        operation.arrived(receiver, completion.qp, completion.immediate, now_ns)

    def _probed(self, operation: Operation, edge: Edge, rail: Rail, completion: Completion, now_ns: int) -> None:
        rail.probing = False
        if isinstance(edge, SendingPeer) and edge.reading is rail:
            edge.reading = None
            if not completion.status:
                self.repair.ledger_read(operation, edge, now_ns)
        if rail.state is State.TRIAL and isinstance(rail, SendingRail):
            if completion.status:
                self.recovery.failed(rail, now_ns)
            else:
                self.recovery.answered(rail, now_ns)
        elif completion.status:
            self.monitor.failed(edge, rail, f"a probe ended with {completion.status}", now_ns)
        else:
            rail.last_alive_ns = now_ns

    def _poll_relay(self, now_ns: int) -> None:
        bodies = self._relay.poll()
        if bodies is None:
            self._waiter.unwatch(self._relay.fd)
            return
        for body in bodies:
            self._dispatch(body, now_ns)

    def _dispatch(self, body: bytes, now_ns: int) -> None:
        try:
            message = decode(body)
        except msgspec.DecodeError:
            return
        if isinstance(message, RailDeath):
            self.attribution.on_rail_death(message, now_ns)
        elif isinstance(message, SilenceQuery):
            self.monitor.on_silence_query(now_ns)
        elif message.rail in self.edges.by_name:
            self._dispatch_rail(message, now_ns)

    def _dispatch_rail(self, message: Fence | Fenced | Offer | Accepted | RailUp, now_ns: int) -> None:
        if isinstance(message, Fence):
            self.repair.on_fence(message, now_ns)
        elif isinstance(message, Fenced):
            self.repair.on_fenced(message, now_ns)
        elif isinstance(message, Offer):
            self.recovery.on_offer(message)
        elif isinstance(message, Accepted):
            self.recovery.on_accepted(message, now_ns)
        else:
            self.recovery.on_up(message, now_ns)
