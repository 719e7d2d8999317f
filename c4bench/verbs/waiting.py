"""Wait for completions and events of NICs: sleep on their descriptors, or spin on their completion queues."""

import math
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from c4bench.errors import UsageError
from c4bench.verbs.transport import Completion, Port, PortEvent

# Polling a descriptor is a system call, and costs a thousand times as much as polling an empty completion queue.
_SPINS_PER_LOOK = 1000


class Ready(NamedTuple):
    """What is ready: completions with the index of their port, asynchronous events, other readable descriptors."""

    completions: list[tuple[int, Completion]]
    events: list[PortEvent]
    readable: list[int]


class Waiter(ABC):
    """Waits on several ports and on other descriptors at once."""

    def __init__(self, ports: Sequence[Port]) -> None:
        self._ports = ports
        self._poller = select.poll()
        self._event_ports = {port.event_fds[1]: port for port in ports}
        for fd in self._event_ports:
            self.watch(fd)

    def watch(self, fd: int) -> None:
        """Report `fd` when it is readable."""
        self._poller.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`. Raises LookupError if it was not watched."""
        self._poller.unregister(fd)

    @abstractmethod
    def wait(self, timeout_s: float) -> Ready:
        """Wait until something is ready; nothing is after `timeout_s` (may be infinite)."""

    def _look(self, timeout_ms: int) -> tuple[list[PortEvent], list[int]]:
        """The pending events, and the other descriptors that are readable or closed."""
        events: list[PortEvent] = []
        readable: list[int] = []
        for fd, _ in self._poller.poll(timeout_ms):
            if fd in self._event_ports:
                events.extend(self._event_ports[fd].events())
            else:
                readable.append(fd)
        return events, readable


class EventDriven(Waiter):
    """Sleeps until a NIC notifies. It never spins, as virtual time requires.

    The timeout is rounded up to milliseconds for poll(2). With an infinite one the kernel does not read its clock.
    """

    def __init__(self, ports: Sequence[Port]) -> None:
        super().__init__(ports)
        self._completion_ports = {port.event_fds[0]: index for index, port in enumerate(ports)}
        for fd in self._completion_ports:
            self.watch(fd)

    def wait(self, timeout_s: float) -> Ready:
        """See Waiter."""
        events, readable = self._look(-1 if math.isinf(timeout_s) else math.ceil(max(0.0, timeout_s) * 1000))
        completions: list[tuple[int, Completion]] = []
        others: list[int] = []
        for fd in readable:
            index = self._completion_ports.get(fd)
            if index is None:
                others.append(fd)
            else:
                completions.extend((index, completion) for completion in self._ports[index].completions())
        return Ready(completions, events, others)


class BusyPolled(Waiter):
    """Spins on the completion queues: the lowest latency on a real NIC, at the cost of a whole CPU.

    Other descriptors and asynchronous events are polled every thousandth time, and before a timeout is reported.
    """

    def __init__(
        self,
        ports: Sequence[Port],
        clock_s: Callable[[], float] = time.monotonic,
        spins_per_look: int = _SPINS_PER_LOOK,
    ) -> None:
        super().__init__(ports)
        self._clock_s = clock_s
        self._spins_per_look = spins_per_look
        self._spins = 0

    def wait(self, timeout_s: float) -> Ready:
        """See Waiter."""
        # Reading the clock at every spin is what advances virtual time.
        deadline_s = self._clock_s() + timeout_s
        while True:
            over = self._clock_s() >= deadline_s
            ready = self._spin(look=over)
            if over or any(ready):
                return ready

    def _spin(self, *, look: bool) -> Ready:
        self._spins += 1
        completions = [
            (index, completion) for index, port in enumerate(self._ports) for completion in port.completions(arm=False)
        ]
        # Counted over all waits, so that a busy port does not starve the descriptors.
        if not look and self._spins % self._spins_per_look:
            return Ready(completions, [], [])
        return Ready(completions, *self._look(0))


MODES: dict[str, Callable[[Sequence[Port]], Waiter]] = {"events": EventDriven, "polling": BusyPolled}


def waiter(mode: str, ports: Sequence[Port]) -> Waiter:
    """The waiter for `mode`: `events` or `polling`. Raises UsageError for another name."""
    if mode not in MODES:
        raise UsageError(f"completion mode {mode!r} is unknown; use {' or '.join(MODES)}")
    return MODES[mode](ports)
