"""The failure policy of resilient communicators: dead rails are noticed, and their messages move to other rails."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from c4bench.collective.edges import LEDGER_BYTES, Edge, PeerRails, ReceivingPeer, SendingPeer
from c4bench.collective.endpoint_context import RankEndpointContext
from c4bench.collective.engine import FailurePolicy, ResilienceCounters
from c4bench.collective.handshake import MAX_SHARED_CHANNELS
from c4bench.collective.memory import Buffer
from c4bench.collective.operation import Operation
from c4bench.collective.options import FailureTimeouts
from c4bench.collective.rail import Rail, RailName, RailState, ReceivingRail, SendingRail
from c4bench.collective.rail_protocols import (
    Accepted,
    ControlMessage,
    FailureAttribution,
    Fence,
    Fenced,
    RailDeath,
    RailOffer,
    RailRecovery,
    RailUp,
    Repair,
    SilenceQuery,
    decode,
    encode,
)
from c4bench.collective.rendezvous import FailureSignal
from c4bench.errors import UsageError
from c4bench.verbs.timer import Timer
from c4bench.verbs.transport import Completion, Port, PortEvent
from c4bench.verbs.waiting import Ready, Waiter

_MAX_PROBE_AFTER_S = 1.0
# A probe without an answer for longer fails. rxe's own time-outs end sooner, those of a ConnectX-6 much later.
ANSWER_S = 0.06
# A rank forwards at most one broadcast in this time.
_BROADCAST_EVERY_S = 1.0
# Time for the other end's messages to arrive; probes end by themselves.
_PROBES_S = 0.06
_DOWN, _UP = ("PORT_ERR", "DEVICE_FATAL"), "PORT_ACTIVE"


class FailureBroadcast:
    """Notifies the ranks at distances 1, 2, 4, ..., which forward it: n ranks are reached in log2(n) steps."""

    def __init__(self, rank: int, size: int, send: Callable[[int, ControlMessage], None]) -> None:
        self._targets = [(rank + (1 << power)) % size for power in range((size - 1).bit_length())]
        self._send = send
        self._passed_ns: int | None = None

    def announce(self, now_ns: int) -> bool:
        """Notify other ranks of silence here or elsewhere; False if this rank has done so recently."""
        if self._passed_ns is not None and now_ns - self._passed_ns < _BROADCAST_EVERY_S * 1e9:
            return False
        self._passed_ns = now_ns
        for rank in self._targets:
            self._send(rank, SilenceQuery())
        return True


class RailMonitor:
    """Detects dead rails: by an error of the NIC, or by silence that a probe confirms, never by silence alone.

    An idle peer sends nothing and a frozen one grants nothing, but their NICs answer probes. After each answer the next
    probe waits twice as long. A probe fails with an error of the NIC, or when it has no answer for long, since NICs may
    retry for much longer than they are asked to (`cost.ack_timeout`). `devices` are the names of the rank's NICs, in
    order.

    A failed leaf switch, for example, may silence rails of many ranks. Each rank would notice only when it waits for
    its own, one after another in the same operation. So the first rank to notice notifies all, and all probe at once.
    """

    def __init__(
        self,
        edges: PeerRails,
        timeouts: FailureTimeouts,
        repair: Repair,
        broadcast: FailureBroadcast,
        ports: Sequence[Port],
        devices: Sequence[str],
    ) -> None:
        self._edges = edges
        self._timeouts = timeouts
        self._repair = repair
        self._broadcast = broadcast
        self._ports = ports
        self._nics = {device: nic for nic, device in enumerate(devices)}
        self._down_ns: dict[int, int] = {}

    def begin(self, now_ns: int) -> None:
        """An operation begins: forget earlier silence."""
        for edge in self._edges.all:
            if isinstance(edge, ReceivingPeer):
                edge.begin_waiting(now_ns)

    def on_port_event(self, event: PortEvent, now_ns: int) -> None:
        """A NIC has reported a change of its port."""
        nic = self._nics.get(event.device)
        if nic is None:
            return
        if event.kind in _DOWN:
            self._down_ns.setdefault(nic, now_ns)
        elif event.kind == _UP:
            self._down_ns.pop(nic, None)

    def failed(self, edge: Edge, rail: Rail, why: str, now_ns: int) -> None:
        """A work request or a probe on a rail has failed."""
        if rail.state not in (RailState.UP, RailState.TRIAL):
            return
        self._repair.broken(edge, rail, why, now_ns)
        if not rail.port.active:
            self._lose(rail.nic, why, now_ns)
        else:
            self.suspect(rail.nic)

    def suspect(self, nic: int) -> None:
        """Probe every rail of a NIC, to tell a failed NIC from a failed path."""
        self._probe(rail for _, rail in self._edges.rails() if rail.nic == nic)

    def _lose(self, nic: int, why: str, now_ns: int) -> None:
        for edge, rail in list(self._edges.rails(RailState.UP)):
            if rail.nic == nic:
                self._repair.broken(edge, rail, why, now_ns)

    def tick(self, now_ns: int) -> None:
        """Fence the rails of ports that stay down, and probe rails that are silent for too long."""
        for nic, since_ns in list(self._down_ns.items()):
            if now_ns - since_ns >= self._timeouts.hold_s * 1e9:
                del self._down_ns[nic]
                if not self._ports[nic].active:
                    self._lose(nic, "its port is down", now_ns)
        self._give_up_probes(now_ns)
        for edge in self._edges.all:
            if isinstance(edge, ReceivingPeer) and self._probe_is_due(edge, now_ns):
                self._probe(edge.rails)
        quiet_ns = self._timeouts.quiet_s * 1e9
        silent = [rail for _, rail in self._edges.rails(RailState.UP) if rail.silent_ns(now_ns) > quiet_ns]
        if not all(rail.probing for rail in silent):
            # Other NICs may be affected too; probing only this one would find them one after another.
            self._probe_all()
            self._broadcast.announce(now_ns)

    def _give_up_probes(self, now_ns: int) -> None:
        """Fail rails whose probe has no answer. Ticks are counted, since a rank that was frozen has answers to read.

        A ledger that is being read is left to the NIC: its late answer must not come into a newer one's place.
        """
        for edge, rail in list(self._edges.rails(RailState.UP)):
            reading = isinstance(edge, SendingPeer) and edge.reading is rail
            rail.awaited = rail.awaited + 1 if rail.probing and not reading else 0
            if rail.awaited * self._timeouts.tick_s > ANSWER_S:
                self.failed(edge, rail, "a probe has no answer", now_ns)

    def on_silence_query(self, now_ns: int) -> None:
        """Another rank has noticed silence."""
        if self._broadcast.announce(now_ns):
            self._probe_all()

    def _probe_all(self) -> None:
        self._probe(rail for _, rail in self._edges.rails(RailState.UP))

    @staticmethod
    def _probe(rails: Iterable[Rail]) -> None:
        for rail in rails:
            if rail.usable:
                rail.probe()

    def _probe_is_due(self, edge: ReceivingPeer, now_ns: int) -> bool:
        if not edge.needed or now_ns - edge.last_message_ns < edge.probe_after_s * 1e9:
            return False
        edge.last_message_ns = now_ns
        edge.probe_after_s = min(_MAX_PROBE_AFTER_S, 2 * edge.probe_after_s)
        return True

    def cut_off(self) -> list[Edge]:
        """The edges that the running operation needs and that have no rail left."""
        return [
            edge
            for edge in self._edges.all
            if edge.needed and not any(rail.usable for rail in edge.rails) and not _draining(edge)
        ]


def _draining(edge: Edge) -> bool:
    return isinstance(edge, SendingPeer) and any(
        rail.state is RailState.FENCED and not rail.drained for rail in edge.rails
    )


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
        self._rank, self._members = site.rank, site.members
        self._cut_off_ns = 0
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            Fence: self._repair.on_fence,
            Fenced: self._repair.on_fenced,
            RailOffer: self._recovery.on_offer,
            Accepted: self._recovery.on_accepted,
            RailUp: self._recovery.on_up,
        }
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
            receiver
            for edge in self._edges.all
            if isinstance(edge, ReceivingPeer)
            for receiver in edge.receivers.values()
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
            self._check_reachable(operation, now_ns)
        self._repair.step(operation, now_ns)
        return True

    def _check_reachable(self, operation: Operation, now_ns: int) -> None:
        """Raise CollectiveError HOST_LOST for an operation that cannot continue, once the unreachable host is known.

        A host that reaches a third one is not unreachable. With only two hosts the other one is named, unless all ports
        of this one are down.
        """
        cut_off = self._monitor.cut_off()
        if not cut_off:
            self._cut_off_ns = 0
            return
        if not self._cut_off_ns:
            self._cut_off_ns = now_ns
            for _, rail in self._edges.rails(RailState.UP):
                rail.probe()
        probing = any(rail.probing for _, rail in self._edges.rails(RailState.UP))
        if probing or now_ns - self._cut_off_ns < _PROBES_S * 1e9:
            return
        alone = not any(self._edges.rails(RailState.UP))
        others = {self._members[edge.peer].host for edge in self._edges.all}
        ports_down = not any(rail.port.active for _, rail in self._edges.rails())
        lost = self._rank if ports_down or (alone and len(others) > 1) else cut_off[0].peer
        reasons = sorted({rail.why for _, rail in self._edges.rails() if rail.why})
        raise operation.error(
            f"host {self._members[lost].host} of rank {lost} has no NIC left that can be reached "
            f"({'; '.join(reasons)}); continue without it (shrink) or restart on another host",
            peer=lost,
            status="HOST_LOST",
        )

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
            self._handlers[type(message)](message, now_ns)
