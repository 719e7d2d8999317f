"""Wait for completions and pass them to the running operation."""

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

from c4bench.collective.endpoints import ReceiveEndpoint, SendEndpoint
from c4bench.collective.multi_qp import CONGESTION_NOTICE, MultiQpReceiveEndpoint, MultiQpSendEndpoint
from c4bench.collective.operation import Operation
from c4bench.collective.rendezvous import FailureSignal
from c4bench.collective.resilience_counters import ResilienceCounters
from c4bench.verbs.timer import Timer
from c4bench.verbs.transport import Completion, Port, PortEvent
from c4bench.verbs.waiting import waiter

_FATAL = "DEVICE_FATAL"


class Engine:
    """Waits on a communicator's ports and failure signal. `completions`: "events" blocks, "polling" spins.

    The clock is read once a wake-up, because reading it may cost more than the rest of the work.
    """

    def __init__(
        self,
        ports: Sequence[Port],
        failure_signal: FailureSignal,
        completions: str,
        clock_ns: Callable[[], int],
        timeout_s: float,
    ) -> None:
        self.port_events: list[PortEvent] = []
        self._failure_signal = failure_signal
        self._deadline = Timer()
        self._pace_timer = Timer()
        self._waiter = waiter(completions, ports)
        self._waiter.watch(failure_signal.fd)
        self._waiter.watch(self._deadline.fd)
        self._waiter.watch(self._pace_timer.fd)
        self._clock_ns = clock_ns
        self._timeout_s = timeout_s
        self._endpoints: dict[tuple[int, int], MultiQpSendEndpoint | MultiQpReceiveEndpoint] = {}
        self._senders: dict[SendEndpoint, int] = {}

    def close(self) -> None:
        """Close its timers."""
        self._deadline.close()
        self._pace_timer.close()

    def attach(self, channel: int, endpoint: SendEndpoint | ReceiveEndpoint) -> None:
        """Deliver completions to an endpoint."""
        assert isinstance(endpoint, MultiQpSendEndpoint | MultiQpReceiveEndpoint)
        for connection in endpoint.connections:
            self._endpoints[channel, connection.qp_num] = endpoint
        if isinstance(endpoint, SendEndpoint):
            self._senders[endpoint] = channel

    @property
    def resilience(self) -> ResilienceCounters | None:
        """None: without resilience the first failed connection ends the operation."""
        return None

    @property
    def lost(self) -> frozenset[int]:
        """The channels whose NICs this rank has lost: none, since a lost NIC ends the operation."""
        return frozenset()

    def sender(self, peer: int, channel: int) -> SendEndpoint | None:
        """The sending endpoint to `peer` on a channel, if there is one."""
        return next(
            (endpoint for endpoint, at in self._senders.items() if at == channel and endpoint.peer == peer), None
        )

    def run(self, operation: Operation, now_ns: int) -> None:
        """Run an operation to its end.

        Raises CollectiveError on a transport error, a mismatch between ranks, a failure of another rank, or a timeout.
        """
        self._deadline.set(self._timeout_s)
        operation.begin(self._senders, now_ns)
        self._set_pace_timer(operation, expired=False)
        while not operation.done:
            now_ns = self._step(operation)
        operation.finish(now_ns)

    def _step(self, operation: Operation) -> int:
        ready = self._waiter.wait(math.inf)
        now_ns = self._clock_ns()
        self.port_events += ready.events
        failed = [failed_completion for failed_completion in ready.completions if failed_completion[1].status]
        for channel, completion in ready.completions:
            if not completion.status:
                self._deliver(operation, channel, completion, now_ns)
        if not failed:
            operation.advance(now_ns)
            self._set_pace_timer(operation, expired=self._pace_timer.fd in ready.readable)
            if operation.done:
                return now_ns
        if ready.events or ready.readable:
            self._check_failures(operation, ready.readable)
        if failed:
            # Another rank's failure is usually why work fails here. It may have been reported since the waiter looked.
            late = self._waiter.wait(0.0)
            self.port_events += late.events
            self._check_failures(operation, late.readable)
            self._fail(operation, *failed[0])
        if self._deadline.fd in ready.readable:
            raise operation.timed_out(self._timeout_s)
        return now_ns

    def _set_pace_timer(self, operation: Operation, *, expired: bool) -> None:
        """Wake up when the pacer allows the next message."""
        if operation.pace_wait_ns or expired:
            self._pace_timer.set(operation.pace_wait_ns / 1e9 or self._timeout_s)

    def _deliver(self, operation: Operation, channel: int, completion: Completion, now_ns: int) -> None:
        endpoint = self._endpoints[channel, completion.qp]
        if isinstance(endpoint, MultiQpSendEndpoint):
            if completion.received and completion.immediate == CONGESTION_NOTICE:
                endpoint.post_receive()
                operation.notified(endpoint, now_ns)
            elif completion.received:
                operation.granted(endpoint, endpoint.read_grant(completion.immediate))
            else:
                operation.acknowledged(endpoint, completion.qp, now_ns)
        elif completion.received:
            operation.arrived(endpoint, completion.qp, completion.immediate, now_ns)

    def _check_failures(self, operation: Operation, readable: list[int]) -> None:
        """Raise CollectiveError if a device of this rank is lost or another rank has failed."""
        lost = [event.device for event in self.port_events if event.kind == _FATAL]
        if lost:
            raise operation.error(f"{lost[0]} is lost; the device reports a fatal error", status=_FATAL)
        if self._failure_signal.fd in readable:
            self._check_failure_signal(operation)

    def _check_failure_signal(self, operation: Operation) -> None:
        failure = self._failure_signal.failure()
        if failure is None:
            # The data plane works without the control plane; only failure notifications are lost.
            self._waiter.unwatch(self._failure_signal.fd)
            return
        raise operation.aborted(failure)

    def _fail(self, operation: Operation, channel: int, completion: Completion) -> NoReturn:
        endpoint = self._endpoints[channel, completion.qp]
        doing = "writing to" if isinstance(endpoint, SendEndpoint) else "granting to"
        before = ", ".join(f"{event.kind} on {event.device}" for event in self.port_events)
        raise operation.error(
            f"{doing} rank {endpoint.peer} on QP {completion.qp} failed with {completion.status}"
            f"{f'; seen before: {before}' if before else ''}",
            peer=endpoint.peer,
            status=completion.status,
        )
