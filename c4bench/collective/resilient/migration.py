"""The failure policy of resilient communicators: a lost rail's messages move to other rails."""

from collections import Counter

import msgspec

from c4bench.collective.edges import LEDGER_BYTES, Edge, PeerRails, ReceivingPeer, SendingPeer
from c4bench.collective.endpoint_context import RankEndpointContext
from c4bench.collective.engine import FailurePolicy, ResilienceCounters
from c4bench.collective.handshake import MAX_SHARED_CHANNELS
from c4bench.collective.memory import Buffer
from c4bench.collective.operation import Operation
from c4bench.collective.rail import Rail, RailName, RailState, ReceivingRail, SendingRail
from c4bench.collective.rendezvous import FailureSignal
from c4bench.collective.resilient.failure_attribution import FailureAttribution
from c4bench.collective.resilient.messages import (
    Accepted,
    ControlMessage,
    Fence,
    Fenced,
    RailDeath,
    RailOffer,
    RailUp,
    SilenceQuery,
    decode,
    encode,
)
from c4bench.collective.resilient.rail_monitor import FailureBroadcast, RailMonitor, UnreachableHostCheck
from c4bench.collective.resilient.rail_recovery import RailRecovery
from c4bench.collective.resilient.repair import Repair
from c4bench.errors import UsageError
from c4bench.verbs.timer import Timer
from c4bench.verbs.transport import Completion
from c4bench.verbs.waiting import Ready, Waiter

_LEDGER_MASK = (1 << 8 * LEDGER_BYTES) - 1


class MigrateOnFailure(FailurePolicy):
    """See FailurePolicy. An operation continues while each pair of neighbours has a rail left."""

    def __init__(
        self, site: RankEndpointContext, edges: PeerRails, waiter: Waiter, failure_signal: FailureSignal
    ) -> None:
        super().__init__(waiter, failure_signal)
        ports, timeouts = site.ports, site.options.timeouts
        if len(ports) > MAX_SHARED_CHANNELS:
            most = MAX_SHARED_CHANNELS
            raise UsageError(f"{len(ports)} NICs; a resilient communicator uses at most {most}: give channels")
        self._edges = edges
        self._timeouts = timeouts
        self._clock_ns = site.options.clock_ns
        self.ledger: Buffer = site.buffers.make(dict(enumerate(ports)), LEDGER_BYTES)
        self._relay = site.process.rendezvous.relay(site.comm, site.rank)
        self._attribution = FailureAttribution(edges, site.rank, site.members, self._send, self._relay.lost)
        self._repair = Repair(edges, timeouts, self._send, self._attribution)
        self._recovery = RailRecovery(edges, timeouts, self._send)
        broadcast = FailureBroadcast(site.rank, site.size, self._send)
        devices = [nic.device for nic in site.nics]
        self._monitor = RailMonitor(edges, timeouts, self._repair, broadcast, ports, devices)
        self._unreachable_check = UnreachableHostCheck(edges, self._monitor, site.rank, site.members)
        self._unconnected: list[tuple[RailName, str]] = []
        self._tick = Timer()
        self._timeouts_run_ns = 0
        waiter.watch(self._tick.fd)
        waiter.watch(self._relay.fd)

    def close(self) -> None:
        """See FailurePolicy."""
        self._tick.close()
        self._relay.close()

    @property
    def resilience(self) -> ResilienceCounters:
        """See FailurePolicy."""
        rails = [rail for _, rail in self._edges.rails()]
        receivers = [
            receiver for edge in self._edges.all if isinstance(edge, ReceivingPeer) for receiver in edge.receivers
        ]
        states = Counter(rail.state.value for rail in rails)
        return ResilienceCounters(
            states=dict(sorted(states.items())),
            died=self._repair.died,
            returned=self._recovery.returned,
            repeated=sum(receiver.repeated for receiver in receivers),
            findings=tuple(tuple(map(str, components)) for components in self._attribution.findings),
            reasons=tuple(sorted({rail.why for rail in rails if rail.why})),
        )

    @property
    def lost(self) -> frozenset[int]:
        """See FailurePolicy. A NIC that still reaches a peer is not lost."""
        left = {rail.nic for _, rail in self._edges.rails(RailState.UP)}
        return frozenset(rail.nic for _, rail in self._edges.rails()) - left

    def _send(self, rank: int, message: ControlMessage) -> None:
        """Send a message through the relay and by a rail; the receiver ignores duplicates."""
        body = encode(message)
        self._relay.send(rank, body)
        edges = (edge for edge in self._edges.all if edge.peer == rank and edge.control)
        any(edge.control.send(edge.rails, body) for edge in edges if edge.control)

    def begin(self, now_ns: int) -> None:
        """See FailurePolicy."""
        self._tick.set(self._timeouts.tick_s)
        self._monitor.begin(now_ns)
        if now_ns - self._timeouts_run_ns >= self._timeouts.tick_s * 1e9:
            # Operations may be shorter than a tick.
            self._run_timeouts(now_ns)

    def end(self, operation: Operation) -> None:
        """See FailurePolicy. What has ended is written to the ledger."""
        ended = operation.seq + 1 & _LEDGER_MASK
        self.ledger.view[:LEDGER_BYTES] = ended.to_bytes(LEDGER_BYTES, "little")

    def recover(self, operation: Operation, ready: Ready, now_ns: int) -> bool:
        """See FailurePolicy."""
        for event in ready.events:
            self._monitor.on_port_event(event, now_ns)
        if self._relay.fd in ready.readable:
            self._poll_relay(now_ns)
        if self._tick.fd in ready.readable:
            self._tick.set(self._timeouts.tick_s)
            self._run_timeouts(now_ns)
            self._unreachable_check.check(operation, now_ns)
        self._repair.step(operation, now_ns)
        return True

    def _run_timeouts(self, now_ns: int) -> None:
        """Run everything that depends on time."""
        self._timeouts_run_ns = now_ns
        self._monitor.tick(now_ns)
        self._repair.tick(now_ns)
        self._recovery.tick(now_ns)
        self._attribution.tick(now_ns)

    def failed(self, edge: Edge, rail: Rail, completion: Completion, now_ns: int) -> None:
        """See FailurePolicy."""
        if completion.received:
            rail.receives -= 1
        elif isinstance(rail, SendingRail):
            rail.lose()
        elif isinstance(rail, ReceivingRail):
            rail.completed()
        self._monitor.failed(edge, rail, completion.status, now_ns)

    def probed(self, operation: Operation, nic: int, completion: Completion, now_ns: int) -> None:
        """See FailurePolicy."""
        edge, rail = self._edges.by_probe[nic, completion.qp]
        rail.probing = False
        if isinstance(edge, SendingPeer) and edge.reading is rail:
            edge.reading = None
            if not completion.status:
                self._repair.ledger_read(operation, edge)
        if rail.state is RailState.TRIAL and isinstance(rail, SendingRail):
            if completion.status:
                self._recovery.failed(rail, now_ns)
            else:
                self._recovery.answered(rail, now_ns)
        elif completion.status:
            self._monitor.failed(edge, rail, f"a probe ended with {completion.status}", now_ns)
        else:
            rail.last_alive_ns = now_ns

    def unconnected(self, rail: Rail, why: str) -> None:
        """See FailurePolicy. No control message may use this rail."""
        rail.state = RailState.TRIAL
        self._unconnected.append((rail.name, why))

    def connected(self) -> None:
        """See FailurePolicy. The other rails can carry control messages now."""
        now_ns = self._clock_ns()
        for name, why in self._unconnected:
            self._repair.broken(*self._edges.by_name[name], why, now_ns)
        self._unconnected.clear()

    def _poll_relay(self, now_ns: int) -> None:
        bodies = self._relay.poll()
        if bodies is None:
            self._waiter.unwatch(self._relay.fd)
            return
        for body in bodies:
            self.control_message(body, now_ns)

    def control_message(self, body: bytes, now_ns: int) -> None:
        """See FailurePolicy. Those that come by the relay end here as well."""
        try:
            message = decode(body)
        except msgspec.DecodeError:
            return
        if isinstance(message, RailDeath):
            self._attribution.on_rail_death(message, now_ns)
        elif isinstance(message, SilenceQuery):
            self._monitor.on_silence_query(now_ns)
        elif message.rail in self._edges.by_name:
            self._dispatch_rail(message, now_ns)

    def _dispatch_rail(self, message: Fence | Fenced | RailOffer | Accepted | RailUp, now_ns: int) -> None:
        if isinstance(message, Fence):
            self._repair.on_fence(message, now_ns)
        elif isinstance(message, Fenced):
            self._repair.on_fenced(message, now_ns)
        elif isinstance(message, RailOffer):
            self._recovery.on_offer(message)
        elif isinstance(message, Accepted):
            self._recovery.on_accepted(message, now_ns)
        else:
            self._recovery.on_up(message, now_ns)
