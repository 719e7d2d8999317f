"""A transport within one process: writes are memory copies, completions wake an eventfd. For ranks that are threads."""

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from c4bench.verbs.errors import VerbsError
from c4bench.verbs.loopback_connection import Fate, LoopbackConnection
from c4bench.verbs.loopback_time import Retransmission
from c4bench.verbs.transport import Completion, PortEvent, Remote, TransportProfile

_T = TypeVar("_T")
_FIRST_QP = 17


class Network:
    """All connections and registered memory that can reach each other. Writes to a QP in `dead` are never answered.

    `fate` says what becomes of packets from a port to another. What is not answered is sent again and fails after the
    profile's retries, whose timers run at `timer_scale`; packets that come late do so after `late_s`.
    """

    def __init__(self, timer_scale: float = 1.0, late_s: float = 0.02) -> None:
        self.dead: set[int] = set()
        self.fate: Callable[[LoopbackPort, LoopbackPort], Fate] = lambda _, __: ""
        self.timer_scale = timer_scale
        self.late_s = late_s
        self.retransmission = Retransmission()
        self.connections: dict[int, LoopbackConnection] = {}
        self.regions: dict[int, LoopbackRegion] = {}
        # Memory may be given up by whoever holds it, in the middle of a write.
        self.lock = threading.RLock()
        self._qps = itertools.count(_FIRST_QP)
        self._keys = itertools.count(1)

    def add(self, connection: "LoopbackConnection") -> int:
        """A QP number for a new connection."""
        with self.lock:
            number = next(self._qps)
            self.connections[number] = connection
            return number

    def register(self, region: "LoopbackRegion") -> int:
        """A key for new memory."""
        with self.lock:
            key = next(self._keys)
            self.regions[key] = region
            return key

    def remove(self, port: "LoopbackPort") -> None:
        """Whatever is still written to this port is no longer answered."""
        with self.lock:
            gone = [number for number, connection in self.connections.items() if connection.port is port]
            for number in gone:
                del self.connections[number]


class LoopbackRegion:
    """Memory of a port; its local and its remote key are the same."""

    def __init__(self, port: "LoopbackPort", address: int, length: int) -> None:
        self.port = port
        self._begin = address
        self._end = address + length
        self.lkey = self.rkey = port.network.register(self)

    def covers(self, port: "LoopbackPort", address: int, length: int) -> bool:
        """Whether these bytes belong to it, as registered with `port`."""
        return port is self.port and self._begin <= address and address + length <= self._end

    def close(self) -> None:
        """Deregister, once nothing is being copied there. May be called again."""
        with self.port.network.lock:
            self.port.network.regions.pop(self.lkey, None)


class LoopbackPort:
    """A NIC of the process. One thread may use it while others write to it.

    Nothing that is sent to an earlier `address` of it arrives; "" is none at all.
    """

    def __init__(self, network: Network, name: str = "rxe0") -> None:
        self.network = network
        self.name = name
        self.closed = False
        self.active = True
        self.address = "::1"
        self._completions: deque[Completion] = deque()
        self._events: deque[PortEvent] = deque()
        self.event_fds = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)

    @property
    def regions(self) -> int:
        """How many registrations are open."""
        return sum(region.port is self for region in list(self.network.regions.values()))

    def here(self) -> Remote:
        """See Port."""
        if not self.address:
            raise VerbsError(f"{self.name}: the port has no address", device=self.name)
        return Remote(self.address, 0)

    def register(self, address: int, length: int) -> LoopbackRegion:
        """Let connections read and write `length` bytes at `address`."""
        return LoopbackRegion(self, address, length)

    def register_dmabuf(self, fd: int, offset: int, length: int) -> LoopbackRegion:
        """Raises VerbsError."""
        raise VerbsError(
            f"{self.name}: cannot register {length} bytes at {offset} of DMA-BUF {fd}: only host memory can be copied",
            device=self.name,
        )

    def connection(self, profile: TransportProfile, sends: int, receives: int) -> "LoopbackConnection":  # noqa: ARG002  (a Port's signature)
        """A new connection; a write takes no time, so only the depth of the receive queue matters."""
        return LoopbackConnection(self, profile, receives)

    def complete(self, completion: Completion) -> None:
        """Queue a completion and wake whoever waits; the caller holds the network's lock."""
        if not self.closed:
            self._completions.append(completion)
            os.eventfd_write(self.event_fds[0], 1)

    def completions(self, *, arm: bool = True) -> list[Completion]:
        """Every completion there is."""
        if arm:
            _consume(self.event_fds[0])
        return _take(self._completions)

    def happen(self, kind: str) -> None:
        """Have an asynchronous event, such as `PORT_ERR`."""
        self._events.append(PortEvent(self.name, kind))
        os.eventfd_write(self.event_fds[1], 1)

    def events(self) -> list[PortEvent]:
        """Every event there is."""
        _consume(self.event_fds[1])
        return _take(self._events)

    def close(self) -> None:
        """Take its connections off the network and close the descriptors. May be called again."""
        with self.network.lock:
            if self.closed:
                return
            self.closed = True
            self.network.remove(self)
            for fd in self.event_fds:
                os.close(fd)


def _consume(fd: int) -> None:
    with suppress(BlockingIOError):
        os.eventfd_read(fd)


def _take(queue: deque[_T]) -> list[_T]:
    # One that is added meanwhile has a notification of its own.
    return [queue.popleft() for _ in range(len(queue))]
