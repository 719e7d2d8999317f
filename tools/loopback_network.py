"""The network of the loopback transport: its ports, their memory, and the receiving side of their QPs."""

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, Protocol, TypeVar

from c4bench.errors import C4Error
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import Completion, PortEvent, Remote

FLUSHED = "WR_FLUSH_ERR"
_FIRST_QP = 17
_RETRY_STEP_S = 0.0005

# What happens to packets from one port to another: "" they arrive; they are lost; the data arrives and the
# acknowledgement is lost; they are lost for the sender and arrive much later.
Delivery = Literal["", "lost", "unacknowledged", "late"]
_T = TypeVar("_T")


class Unanswered(Protocol):
    """A connection with unacknowledged writes."""

    def retry(self, now_s: float) -> bool:
        """Retransmit what is due; False when nothing is left to retransmit."""


class Retransmission:
    """One thread that retries the unacknowledged writes of all connections, while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Unanswered] = []
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._running = False

    def add(self, connection: Unanswered) -> None:
        """Retry this connection's writes from now on."""
        with self._lock:
            if connection not in self._waiting:
                self._waiting.append(connection)
            self._start()

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Call a function after a delay."""
        with self._lock:
            self._later.append((time.monotonic() + delay_s, do))
            self._start()

    def _start(self) -> None:
        if not self._running:
            self._running = True
            threading.Thread(target=self._run, daemon=True, name="loopback-retransmission").start()

    def _run(self) -> None:
        while True:
            time.sleep(_RETRY_STEP_S)
            now_s = time.monotonic()
            with self._lock:
                waiting = list(self._waiting)
                due = [entry for entry in self._later if entry[0] <= now_s]
                self._later = [entry for entry in self._later if entry[0] > now_s]
            for _, do in due:
                do()
            done = [connection for connection in waiting if not connection.retry(now_s)]
            with self._lock:
                self._waiting = [connection for connection in self._waiting if connection not in done]
                if not self._waiting and not self._later:
                    self._running = False
                    return


class Network:
    """All connections and registered memory that can reach each other. Writes to a QP in `dead` are never answered.

    `delivery` decides what happens to packets from one port to another. Unacknowledged writes are retransmitted and
    fail after the profile's retries, whose timers run at `timer_scale`; late packets arrive after `late_s`.
    """

    def __init__(self, timer_scale: float = 1.0, late_s: float = 0.02) -> None:
        self.dead: set[int] = set()
        self.delivery: Callable[[LoopbackNic, LoopbackNic], Delivery] = lambda _, __: ""
        self.timer_scale = timer_scale
        self.late_s = late_s
        self.retransmission = Retransmission()
        self.connections: dict[int, ReceivingQp] = {}
        self.regions: dict[int, LoopbackRegion] = {}
        # Reentrant: the owner may free memory in the middle of a write.
        self.lock = threading.RLock()
        self._qps = itertools.count(_FIRST_QP)
        self._keys = itertools.count(1)

    def add(self, connection: "ReceivingQp") -> int:
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

    def registered(self, port: "LoopbackNic", location: tuple[int, int], length: int) -> bool:
        """Whether `length` bytes at `location` (address, key) are registered with `port`."""
        region = self.regions.get(location[1])
        return region is not None and region.covers(port, location[0], length)

    def remove(self, port: "LoopbackNic") -> None:
        """Stop answering writes to this port."""
        with self.lock:
            gone = [number for number, connection in self.connections.items() if connection.port is port]
            for number in gone:
                del self.connections[number]


class LoopbackRegion:
    """Registered memory of a port; the local and the remote key are the same."""

    def __init__(self, port: "LoopbackNic", address: int, length: int) -> None:
        self.port = port
        self._begin = address
        self._end = address + length
        self.lkey = self.rkey = port.network.register(self)

    def covers(self, port: "LoopbackNic", address: int, length: int) -> bool:
        """Whether it has these bytes, registered with `port`."""
        return port is self.port and self._begin <= address and address + length <= self._end

    def close(self) -> None:
        """Deregister, after any copy in progress. May be called again."""
        with self.port.network.lock:
            self.port.network.regions.pop(self.lkey, None)


class LoopbackNic:
    """A NIC of the process. One thread may use it while others write to it.

    Packets sent to an earlier `address` of it do not arrive; "" is no address.
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
        """The number of open registrations."""
        return sum(region.port is self for region in list(self.network.regions.values()))

    def here(self) -> Remote:
        """See Port."""
        if not self.address:
            raise VerbsError(f"{self.name}: the port has no address", device=self.name)
        return Remote(self.address, 0)

    def register(self, address: int, length: int) -> LoopbackRegion:
        """Register `length` bytes at `address`."""
        return LoopbackRegion(self, address, length)

    def complete(self, completion: Completion) -> None:
        """Queue a completion and wake up the reader. The caller must hold the network's lock."""
        if not self.closed:
            self._completions.append(completion)
            os.eventfd_write(self.event_fds[0], 1)

    def completions(self, *, arm: bool = True) -> list[Completion]:
        """All queued completions."""
        if arm:
            _consume(self.event_fds[0])
        return _drain(self._completions)

    def raise_event(self, kind: str) -> None:
        """Queue an asynchronous event, such as `PORT_ERR`."""
        self._events.append(PortEvent(self.name, kind))
        os.eventfd_write(self.event_fds[1], 1)

    def events(self) -> list[PortEvent]:
        """All queued events."""
        _consume(self.event_fds[1])
        return _drain(self._events)

    def close(self) -> None:
        """Remove its connections from the network and close the descriptors. May be called again."""
        with self.network.lock:
            if self.closed:
                return
            self.closed = True
            self.network.remove(self)
            for fd in self.event_fds:
                os.close(fd)


class ReceivingQp:
    """The receiving side of a QP on `port`. It has a new `life` each time it is connected, to address `peer`."""

    def __init__(self, port: LoopbackNic, depth: int) -> None:
        self.port = port
        self.broken = False
        self.life = 0
        self.peer = ""
        self._depth = depth
        self._receives = 0
        self.qp_num = port.network.add(self)

    @property
    def receives(self) -> int:
        """The number of posted receives."""
        return self._receives

    def post_receive(self) -> None:
        """Post one receive. Raises VerbsError if the queue is full."""
        with self.port.network.lock:
            if self.broken:
                self.port.complete(Completion(self.qp_num, 0, FLUSHED, received=True, immediate=0))
                return
            self._receives += 1
            full = self._receives > self._depth
        if full:
            raise VerbsError(
                f"QP {self.qp_num} on {self.port.name}: more than {self._depth} receives posted",
                device=self.port.name,
                qp=self.qp_num,
            )

    def receive(self, immediate: int) -> None:
        """Complete a posted receive. The caller must hold the network's lock. Raises C4Error if there is none."""
        if not self._receives:
            raise C4Error(f"QP {self.qp_num} on {self.port.name}: a message arrived and no receive was posted")
        self._receives -= 1
        self.port.complete(Completion(self.qp_num, 0, "", received=True, immediate=immediate))


def _consume(fd: int) -> None:
    with suppress(BlockingIOError):
        os.eventfd_read(fd)


def _drain(queue: deque[_T]) -> list[_T]:
    # An item that is added meanwhile has its own notification.
    return [queue.popleft() for _ in range(len(queue))]
