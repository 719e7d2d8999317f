"""Waiting for what NICs have to say: asleep on their descriptors, or spinning over their completion queues."""

import math
import select
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from c4bench.errors import UsageError
from c4bench.verbs.transport import Completion, Port, PortEvent

# Looking at a descriptor is a system call, a thousand times the price of a look at an empty completion queue.
_SPINS_PER_LOOK = 1000


class Ready(NamedTuple):
    """What there is: completions with the index of their port, asynchronous events, other readable descriptors."""

    completions: list[tuple[int, Completion]]
    events: list[PortEvent]
    readable: list[int]


class Waiter(Protocol):
    """Waits on several ports and on other descriptors at once."""

    def watch(self, fd: int) -> None:
        """Report `fd` when it is readable."""

    def unwatch(self, fd: int) -> None:
        """Stop doing so. LookupError where it was not watched."""

    def wait(self, timeout_s: float) -> Ready:
        """Whatever is ready, as soon as anything is; nothing at all after `timeout_s` (may be infinite)."""


class _Descriptors:
    """The asynchronous events of ports, and other descriptors."""

    def __init__(self, ports: Sequence[Port]) -> None:
        self._ports = ports
        self._poller = select.poll()
        self._happening = {port.event_fds[1]: port for port in ports}
        for fd in self._happening:
            self.watch(fd)

    def watch(self, fd: int) -> None:
        """See Waiter."""
        self._poller.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """See Waiter."""
        self._poller.unregister(fd)

    def _look(self, timeout_ms: int) -> tuple[list[PortEvent], list[int]]:
        """The events there are, and the other descriptors that are readable or at their end."""
        events: list[PortEvent] = []
        readable: list[int] = []
        for fd, _ in self._poller.poll(timeout_ms):
            if fd in self._happening:
                events.extend(self._happening[fd].events())
            else:
                readable.append(fd)
        return events, readable


class EventDriven(_Descriptors):
    """Sleeps until a NIC notifies. Never spins, which virtual time requires.

    The time-out is rounded up to whole milliseconds, as poll(2) does; without end, the kernel need not read its clock.
    """

    def __init__(self, ports: Sequence[Port]) -> None:
        super().__init__(ports)
        self._completing = {port.event_fds[0]: index for index, port in enumerate(ports)}
        for fd in self._completing:
            self.watch(fd)

    def wait(self, timeout_s: float) -> Ready:
        """See Waiter."""
        events, readable = self._look(-1 if math.isinf(timeout_s) else math.ceil(max(0.0, timeout_s) * 1000))
        completions: list[tuple[int, Completion]] = []
        others: list[int] = []
        for fd in readable:
            index = self._completing.get(fd)
            if index is None:
                others.append(fd)
            else:
                completions.extend((index, completion) for completion in self._ports[index].completions())
        return Ready(completions, events, others)


class BusyPolled(_Descriptors):
    """Spins over the completion queues: the lowest latency on a real NIC, for a whole processor.

    Other descriptors and asynchronous events are seen every thousandth look, and before a time-out is reported.
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
        # The clock is read at every spin: it is what makes virtual time pass.
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
        # Counted over all waits, so that a port which is always busy does not hide the descriptors for ever.
        if not look and self._spins % self._spins_per_look:
            return Ready(completions, [], [])
        return Ready(completions, *self._look(0))


MODES: dict[str, Callable[[Sequence[Port]], Waiter]] = {"events": EventDriven, "polling": BusyPolled}


def waiter(mode: str, ports: Sequence[Port]) -> Waiter:
    """The waiter for `mode`: `events` or `polling`. UsageError for another name."""
    if mode not in MODES:
        raise UsageError(f"no way of waiting is called {mode!r}; there are: {', '.join(MODES)}")
    return MODES[mode](ports)
