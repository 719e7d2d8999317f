"""Waits for completions and hands them to the running operation."""

import math
import select
from collections.abc import Callable, Sequence

from c4bench.collective.ends import Inlet, Outlet
from c4bench.collective.operation import Operation
from c4bench.verbs.transport import Completion, Port, PortEvent


class Engine:
    """Blocks on the completion channels of a communicator's ports; never spins.

    The clock is read once a wake-up, because that may cost more than the rest of the work.
    """

    def __init__(self, ports: Sequence[Port], clock_ns: Callable[[], int], timeout_s: float) -> None:
        self.port_events: list[PortEvent] = []
        self._ports = ports
        self._clock_ns = clock_ns
        self._timeout_s = timeout_s
        self._ends: dict[tuple[int, int], Outlet | Inlet] = {}
        self._outlets: list[Outlet] = []
        self._poller = select.poll()
        self._completions: dict[int, int] = {}
        self._events: dict[int, int] = {}
        for index, port in enumerate(ports):
            completions, events = port.event_fds
            self._completions[completions] = index
            self._events[events] = index
            for fd in (completions, events):
                self._poller.register(fd, select.POLLIN)

    def attach(self, channel: int, end: Outlet | Inlet) -> None:
        """Deliver an end's completions."""
        self._ends[channel, end.connection.qp_num] = end
        if isinstance(end, Outlet):
            self._outlets.append(end)

    def outlets(self, channel: int) -> list[Outlet]:
        """The sending ends on a channel."""
        return [end for (at, _), end in self._ends.items() if at == channel and isinstance(end, Outlet)]

    def run(self, operation: Operation) -> None:
        """Drive an operation to its end. Raises CollectiveError on a transport error, a mismatch, or the deadline."""
        now_ns = operation.record.entered_ns
        deadline_ns = now_ns + round(self._timeout_s * 1e9)
        operation.begin(self._outlets)
        while not operation.done:
            now_ns = self._wait(operation, deadline_ns, deadline_ns - now_ns)
        operation.finish(now_ns)

    def _wait(self, operation: Operation, deadline_ns: int, left_ns: int) -> int:
        ready = self._poller.poll(max(0, math.ceil(left_ns / 1e6)))
        now_ns = self._clock_ns()
        if not ready and now_ns >= deadline_ns:
            raise operation.timed_out(self._timeout_s)
        for fd, _ in ready:
            if fd in self._completions:
                channel = self._completions[fd]
                for completion in self._ports[channel].completions():
                    self._deliver(operation, channel, completion, now_ns)
            else:
                self.port_events.extend(self._ports[self._events[fd]].events())
        operation.advance(now_ns)
        return now_ns

    def _deliver(self, operation: Operation, channel: int, completion: Completion, now_ns: int) -> None:
        end = self._ends[channel, completion.qp]
        if completion.status:
            self._fail(operation, end, completion)
        if isinstance(end, Outlet):
            if completion.received:
                operation.granted(end, end.read_grant(completion.immediate))
            else:
                operation.acknowledged(end, now_ns)
        elif completion.received:
            operation.arrived(end, completion.immediate, now_ns)

    def _fail(self, operation: Operation, end: Outlet | Inlet, completion: Completion) -> None:
        doing = "writing to" if isinstance(end, Outlet) else "granting to"
        seen = (
            f"; seen before: {', '.join(f'{e.kind} on {e.device}' for e in self.port_events)}"
            if self.port_events
            else ""
        )
        raise operation.error(
            f"{doing} rank {end.peer} on QP {completion.qp} failed with {completion.status}{seen}",
            peer=end.peer,
            status=completion.status,
        )
