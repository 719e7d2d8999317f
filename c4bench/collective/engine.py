"""Waits for completions and hands them to the running operation."""

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

from c4bench.collective.endpoints import ReceiveEndpoint, SendEndpoint
from c4bench.collective.multi_qp import MultiQpReceiveEndpoint, MultiQpSendEndpoint
from c4bench.collective.operation import Operation
from c4bench.collective.rendezvous import FailureSignal
from c4bench.collective.resilience_counters import ResilienceCounters
from c4bench.verbs.timer import Timer
from c4bench.verbs.transport import Completion, Port, PortEvent
from c4bench.verbs.waiting import waiter

_FATAL = "DEVICE_FATAL"


class Engine:
    """Waits on a communicator's ports and its alarm, as `completions` says: `events` blocks, `polling` spins.

    The clock is read once a wake-up, because that may cost more than the rest of the work.
    """

    def __init__(
        self,
        ports: Sequence[Port],
        alarm: FailureSignal,
        completions: str,
        clock_ns: Callable[[], int],
        timeout_s: float,
    ) -> None:
        self.port_events: list[PortEvent] = []
        self._alarm = alarm
        self._deadline = Timer()
        self._tempo = Timer()
        self._waiter = waiter(completions, ports)
        self._waiter.watch(alarm.fd)
        self._waiter.watch(self._deadline.fd)
        self._waiter.watch(self._tempo.fd)
        self._clock_ns = clock_ns
        self._timeout_s = timeout_s
        self._ends: dict[tuple[int, int], MultiQpSendEndpoint | MultiQpReceiveEndpoint] = {}
        self._outlets: dict[SendEndpoint, int] = {}

    def close(self) -> None:
        """Release its timers."""
        self._deadline.close()
        self._tempo.close()

    def attach(self, channel: int, end: SendEndpoint | ReceiveEndpoint) -> None:
        """Deliver an end's completions."""
        assert isinstance(end, MultiQpSendEndpoint | MultiQpReceiveEndpoint)
        for connection in end.connections:
            self._ends[channel, connection.qp_num] = end
        if isinstance(end, SendEndpoint):
            self._outlets[end] = channel

    @property
    def resilience(self) -> ResilienceCounters | None:
        """None: an operation ends with the first connection that fails."""
        return None

    @property
    def lost(self) -> frozenset[int]:
        """The channels of this rank whose NICs carry nothing any more."""
        return frozenset()

    def outlet(self, peer: int, channel: int) -> SendEndpoint | None:
        """The sending end towards `peer` on a channel."""
        return next((end for end, at in self._outlets.items() if at == channel and end.peer == peer), None)

    def run(self, operation: Operation, now_ns: int) -> None:
        """Drive an operation, entered now, to its end.

        Raises CollectiveError on a transport error, a mismatch, a failure of another rank, or the deadline.
        """
        self._deadline.set(self._timeout_s)
        operation.begin(self._outlets, now_ns)
        self._keep_tempo(operation, gone_off=False)
        while not operation.done:
            now_ns = self._step(operation)
        operation.finish(now_ns)

    def _step(self, operation: Operation) -> int:
        ready = self._waiter.wait(math.inf)
        now_ns = self._clock_ns()
        self.port_events += ready.events
        failed = [found for found in ready.completions if found[1].status]
        for channel, completion in ready.completions:
            if not completion.status:
                self._deliver(operation, channel, completion, now_ns)
        if not failed:
            operation.advance(now_ns)
            self._keep_tempo(operation, gone_off=self._tempo.fd in ready.readable)
            if operation.done:
                return now_ns
        if ready.events or ready.readable:
            # What others say comes first: their end is why work of ours fails.
            self._heed(operation, ready.readable)
        if failed:
            self._fail(operation, *failed[0])
        if self._deadline.fd in ready.readable:
            raise operation.timed_out(self._timeout_s)
        return now_ns

    def _keep_tempo(self, operation: Operation, *, gone_off: bool) -> None:
        """Wake up when the next message that was held back may go."""
        if operation.early_ns or gone_off:
            self._tempo.set(operation.early_ns / 1e9 or self._timeout_s)

    def _deliver(self, operation: Operation, channel: int, completion: Completion, now_ns: int) -> None:
        end = self._ends[channel, completion.qp]
        if isinstance(end, MultiQpSendEndpoint):
            if completion.received:
                operation.granted(end, end.read_grant(completion.immediate))
            else:
                operation.acknowledged(end, completion.qp, now_ns)
        elif completion.received:
            operation.arrived(end, completion.qp, completion.immediate, now_ns)

    def _heed(self, operation: Operation, readable: list[int]) -> None:
        """Stop where a device of ours is lost or another rank has failed."""
        lost = [event.device for event in self.port_events if event.kind == _FATAL]
        if lost:
            raise operation.error(f"{lost[0]} is lost; the device reports a fatal error", status=_FATAL)
        if self._alarm.fd in readable:
            self._listen(operation)

    def _listen(self, operation: Operation) -> None:
        failure = self._alarm.failure()
        if failure is None:
            # Without a control plane the data plane goes on; it only cannot hear of the others any more.
            self._waiter.unwatch(self._alarm.fd)
            return
        raise operation.aborted(failure)

    def _fail(self, operation: Operation, channel: int, completion: Completion) -> NoReturn:
        end = self._ends[channel, completion.qp]
        doing = "writing to" if isinstance(end, SendEndpoint) else "granting to"
        before = ", ".join(f"{event.kind} on {event.device}" for event in self.port_events)
        raise operation.error(
            f"{doing} rank {end.peer} on QP {completion.qp} failed with {completion.status}"
            f"{f'; seen before: {before}' if before else ''}",
            peer=end.peer,
            status=completion.status,
        )
