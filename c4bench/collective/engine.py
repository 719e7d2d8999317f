"""Wait for completions and pass them to the running operation; a policy decides what a failure means."""

import math
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from c4bench.collective.edges import Edge, PeerRails, ReceivingPeer, SendingPeer
from c4bench.collective.handshake import CONGESTION_NOTICE, CONTROL_CHANNEL, OWN_QPS, SHARED_QPS
from c4bench.collective.inside import IncomingLink, OutgoingLink
from c4bench.collective.memory import Buffer
from c4bench.collective.operation import Operation
from c4bench.collective.options import Options
from c4bench.collective.rail import Rail, ReceivingRail, SendingRail
from c4bench.collective.rendezvous import FailureSignal
from c4bench.verbs.timer import Timer
from c4bench.verbs.transport import Completion, PortEvent
from c4bench.verbs.waiting import Ready, Waiter

_FATAL = "DEVICE_FATAL"
# How long after a rank of the same host has ended its failure may be notified.
_GRACE_S = 1.0


class ResilienceCounters(msgspec.Struct, frozen=True):
    """What happened to this rank's rails.

    `states` counts rails by state; `died` and `returned` count transitions; `repeated` counts duplicate messages, which
    are ignored. `reasons` are the distinct reasons why rails died. `findings` are the components at fault, each with
    its alternatives. `split` counts all-reduces that avoided degraded ranks, `reordered` those over a reordered ring
    (see `collective.degraded`).
    """

    states: dict[str, int]
    died: int
    returned: int
    repeated: int
    reasons: tuple[str, ...]
    findings: tuple[tuple[str, ...], ...]
    split: int = 0
    reordered: int = 0


class FailurePolicy:
    """What happens when a rail, a NIC or another rank fails."""

    # How many operations this rank has ended, where peers may read it.
    ledger: Buffer | None = None

    def __init__(self, waiter: Waiter, failure_signal: FailureSignal) -> None:
        self._waiter = waiter
        self._failure_signal = failure_signal
        waiter.watch(failure_signal.fd)

    @property
    def resilience(self) -> ResilienceCounters | None:
        """The counters so far; None without resilience."""
        return None

    @property
    def lost(self) -> frozenset[int]:
        """The channels whose NICs this rank has lost and lives on without."""
        return frozenset()

    def begin(self, now_ns: int) -> None:
        """An operation begins."""

    def end(self, operation: Operation) -> None:
        """An operation has ended."""

    def failed(self, edge: Edge, rail: Rail, completion: Completion, now_ns: int) -> None:
        """Work on a rail has failed."""
        raise NotImplementedError

    def recover(self, operation: Operation, ready: Ready, now_ns: int) -> bool:
        """After the completions of a wake-up: whether the operation may go on."""
        raise NotImplementedError

    def check(self, operation: Operation, ready: Ready) -> None:
        """Raise CollectiveError if the operation cannot end, as another rank has failed."""
        if self._failure_signal.fd not in ready.readable:
            return
        failure = self._failure_signal.failure()
        if failure is not None:
            raise operation.aborted(failure)
        # The data plane works without the control plane; only failure notifications are lost.
        self._waiter.unwatch(self._failure_signal.fd)

    def probed(self, operation: Operation, nic: int, completion: Completion, now_ns: int) -> None:
        """A probe has ended."""

    def control_message(self, body: bytes, now_ns: int) -> None:
        """A control message has come by a rail."""

    def unconnected(self, rail: Rail, why: str) -> None:
        """A rail could not be connected."""

    def connected(self) -> None:
        """All rails that can be connected are."""

    def close(self) -> None:
        """Release what it holds."""


class EndOnFailure(FailurePolicy):
    """The first failed connection, the loss of a device or another rank's failure ends the operation."""

    def __init__(self, waiter: Waiter, failure_signal: FailureSignal) -> None:
        super().__init__(waiter, failure_signal)
        self._failed: tuple[Rail, Completion] | None = None
        self._port_events: list[PortEvent] = []

    def failed(self, edge: Edge, rail: Rail, completion: Completion, now_ns: int) -> None:  # noqa: ARG002
        """See FailurePolicy. The first one counts."""
        self._failed = self._failed or (rail, completion)

    def recover(self, operation: Operation, ready: Ready, now_ns: int) -> bool:  # noqa: ARG002
        """See FailurePolicy."""
        self._port_events += ready.events
        return self._failed is None

    def check(self, operation: Operation, ready: Ready) -> None:
        """See FailurePolicy."""
        self._check_devices(operation)
        super().check(operation, ready)
        if self._failed:
            # Another rank's failure is usually why work fails here. It may have been reported since the waiter looked.
            late = self._waiter.wait(0.0)
            self._port_events += late.events
            self._check_devices(operation)
            super().check(operation, late)
            self._fail(operation, *self._failed)

    def _check_devices(self, operation: Operation) -> None:
        lost = [event.device for event in self._port_events if event.kind == _FATAL]
        if lost:
            raise operation.error(f"{lost[0]} is lost; the device reports a fatal error", status=_FATAL)

    def _fail(self, operation: Operation, rail: Rail, completion: Completion) -> NoReturn:
        doing = "writing to" if isinstance(rail, SendingRail) else "granting to"
        before = ", ".join(f"{event.kind} on {event.device}" for event in self._port_events)
        raise operation.error(
            f"{doing} rank {rail.peer} on QP {completion.qp} failed with {completion.status}"
            f"{f'; seen before: {before}' if before else ''}",
            peer=rail.peer,
            status=completion.status,
        )


class Engine:
    """Waits on a communicator's ports and failure signal, and runs operations over its `edges`.

    The clock is read once a wake-up, because reading it may cost more than the rest of the work.
    """

    def __init__(self, options: Options, edges: PeerRails, waiter: Waiter, failures: FailurePolicy) -> None:
        self.edges, self.failures = edges, failures
        self._deadline = Timer()
        self._pace_timer = Timer()
        self._waiter = waiter
        self._waiter.watch(self._deadline.fd)
        self._waiter.watch(self._pace_timer.fd)
        self._clock_ns = options.clock_ns
        self._timeout_s = options.timeout_s
        self._immediates = SHARED_QPS if options.resilient else OWN_QPS
        # Runs since another rank of this host has ended.
        self._grace: Timer | None = None

    def join_inside(self, outgoing: Sequence[OutgoingLink], incoming: Sequence[IncomingLink]) -> None:
        """Add links to and from other ranks of this host."""
        for fd in self.edges.inside.add(outgoing, incoming):
            self._waiter.watch(fd)

    def close(self) -> None:
        """Close its timers."""
        self._deadline.close()
        self._pace_timer.close()
        if self._grace:
            self._grace.close()
        self.edges.inside.close()
        self.failures.close()

    def run(self, operation: Operation, now_ns: int) -> None:
        """Run an operation to its end.

        Raises CollectiveError on a failure that the policy does not survive, a mismatch between ranks, or a timeout.
        """
        self.failures.begin(now_ns)
        self._deadline.set(self._timeout_s)
        operation.begin(self.edges.senders(), now_ns)
        self._set_pace_timer(operation, expired=False)
        self.edges.inside.wake_when_carried(now_ns)
        while not operation.done:
            now_ns = self._step(operation)
        operation.finish(now_ns)
        self.failures.end(operation)

    def _step(self, operation: Operation) -> int:
        ready = self._waiter.wait(math.inf)
        now_ns = self._clock_ns()
        for nic, completion in ready.completions:
            self._complete(operation, nic, completion, now_ns)
        if self.edges.inside:
            self.edges.inside.progress(operation, ready.readable, now_ns)
        if self.failures.recover(operation, ready, now_ns):
            operation.advance(now_ns)
            self.edges.inside.wake_when_carried(now_ns)
            self._set_pace_timer(operation, expired=self._pace_timer.fd in ready.readable)
            if operation.done:
                return now_ns
        self.failures.check(operation, ready)
        self._check_inside(operation, ready)
        if self._deadline.fd in ready.readable:
            raise operation.timed_out(self._timeout_s)
        return now_ns

    def _check_inside(self, operation: Operation, ready: Ready) -> None:
        """Raise CollectiveError if a rank of this host that the operation needs has ended.

        Usually another rank's failure says why, so that is waited for.
        """
        ended = self.edges.inside.ended()
        for link in ended:
            if link.socket_fd in ready.readable:
                self._waiter.unwatch(link.socket_fd)
        needed = [link for link in ended if link.needed]
        if needed and not self._grace:
            self._grace = Timer()
            self._waiter.watch(self._grace.fd)
            self._grace.set(_GRACE_S)
        if not self._grace or self._grace.fd not in ready.readable:
            return
        if needed:
            peer = needed[0].peer
            raise operation.error(f"rank {peer} of this host has ended", peer=peer, status="ENDED")
        # The operation has gone on without it; an expired timer would wake this rank again and again.
        self._waiter.unwatch(self._grace.fd)
        self._grace.close()
        self._grace = None

    def _set_pace_timer(self, operation: Operation, *, expired: bool) -> None:
        """Wake up when the pacer allows the next message."""
        if operation.pace_wait_ns or expired:
            self._pace_timer.set(operation.pace_wait_ns / 1e9 or self._timeout_s)

    def _complete(self, operation: Operation, nic: int, completion: Completion, now_ns: int) -> None:
        known = self.edges.by_qp.get((nic, completion.qp))
        if known is None:
            self.failures.probed(operation, nic, completion, now_ns)
            return
        edge, rail = known
        if completion.status:
            self.failures.failed(edge, rail, completion, now_ns)
        elif isinstance(rail, SendingRail):
            assert isinstance(edge, SendingPeer)
            self._sent(operation, edge, rail, completion, now_ns)
        elif isinstance(rail, ReceivingRail):
            assert isinstance(edge, ReceivingPeer)
            self._received(operation, edge, rail, completion, now_ns)

    def _sent(
        self, operation: Operation, edge: SendingPeer, rail: SendingRail, completion: Completion, now_ns: int
    ) -> None:
        if not completion.received:
            sent = rail.acknowledged(now_ns)
            if sent is not None:
                operation.acknowledged(edge.senders[sent.channel], now_ns - sent.posted_ns)
            return
        channel, slot = self._immediates.channel_and_slot(completion.immediate, rail.nic)
        rail.received()
        if channel == CONTROL_CHANNEL and edge.control:
            self.failures.control_message(edge.control.read(slot), now_ns)
        elif slot == CONGESTION_NOTICE:
            operation.notified(edge.senders[channel], now_ns)
        else:
            sender = edge.senders[channel]
            operation.granted(sender, sender.read_grant(slot))

    def _received(
        self, operation: Operation, edge: ReceivingPeer, rail: ReceivingRail, completion: Completion, now_ns: int
    ) -> None:
        if not completion.received:
            rail.completed()
            return
        channel = self._immediates.channel(completion.immediate, rail.nic)
        rail.received()
        if channel == CONTROL_CHANNEL and edge.control:
            self.failures.control_message(edge.control.read(completion.immediate & 0xFF), now_ns)
            return
        rail.record.arrived(now_ns)
        edge.begin_waiting(now_ns)
        operation.arrived(edge.receivers[channel], completion.immediate, now_ns)
