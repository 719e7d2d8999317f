"""A transport within one process: writes are memory copies, completions wake an eventfd. For ranks that are threads."""

import ctypes
import itertools
import os
import threading
from collections import deque
from contextlib import suppress
from typing import TypeVar

from c4bench.errors import C4Error
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import Completion, PortEvent, Remote, TransportProfile

_T = TypeVar("_T")
_FIRST_QP = 17
_ECMP_PORT = 0xC001


class Network:
    """All connections and registered memory that can reach each other. Writes to a QP in `dead` are never answered."""

    def __init__(self) -> None:
        self.dead: set[int] = set()
        self.connections: dict[int, LoopbackConnection] = {}
        self.regions: dict[int, LoopbackRegion] = {}
        self.lock = threading.Lock()
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
        """Deregister. May be called again."""
        self.port.network.regions.pop(self.lkey, None)


class LoopbackPort:
    """A NIC of the process. One thread may use it while others write to it."""

    def __init__(self, network: Network, name: str = "rxe0") -> None:
        self.network = network
        self.name = name
        self.closed = False
        self._completions: deque[Completion] = deque()
        self._events: deque[PortEvent] = deque()
        self.event_fds = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)

    @property
    def regions(self) -> int:
        """How many registrations are open."""
        return sum(region.port is self for region in list(self.network.regions.values()))

    def here(self) -> Remote:
        """The loopback address."""
        return Remote("::1", 0)

    def register(self, address: int, length: int) -> LoopbackRegion:
        """Let connections read and write `length` bytes at `address`."""
        return LoopbackRegion(self, address, length)

    def register_dmabuf(self, fd: int, offset: int, length: int) -> LoopbackRegion:
        """Raises VerbsError."""
        raise VerbsError(
            f"{self.name}: cannot register {length} bytes at {offset} of DMA-BUF {fd}: only host memory can be copied",
            device=self.name,
        )

    def connection(self, profile: TransportProfile, sends: int, receives: int) -> "LoopbackConnection":  # noqa: ARG002
        """A new connection; a write takes no time, so only the depth of the receive queue matters."""
        return LoopbackConnection(self, receives)

    def complete(self, completion: Completion) -> None:
        """Queue a completion and wake whoever waits."""
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


class LoopbackConnection:
    """One end of a connection: what it writes has arrived when `write` returns."""

    def __init__(self, port: LoopbackPort, receives: int) -> None:
        self.port = port
        self.source_port = 0
        self._remote = 0
        self._depth = receives
        self._receives = 0
        self.qp_num = port.network.add(self)

    @property
    def receives(self) -> int:
        """How many receives are posted."""
        return self._receives

    def connect(self, remote: Remote, source_port: int = 0, receives: int = 0) -> None:
        """Connect to `remote.qp` with `receives` receives posted."""
        self._remote = remote.qp
        self.source_port = source_port or _ECMP_PORT
        with self.port.network.lock:
            self._receives = 0
        for _ in range(receives):
            self.post_receive()

    def post_receive(self) -> None:
        """Post one receive. VerbsError where the queue is full."""
        with self.port.network.lock:
            self._receives += 1
            full = self._receives > self._depth
        if full:
            raise VerbsError(
                f"QP {self.qp_num} on {self.port.name}: more than {self._depth} receives posted",
                device=self.port.name,
                qp=self.qp_num,
            )

    def write(
        self, local: tuple[int, int], remote: tuple[int, int], length: int, *, immediate: int | None, signaled: bool
    ) -> None:
        """Copy `length` bytes from `local` (address, lkey) to `remote` (address, rkey).

        C4Error where the far end has no receive posted for `immediate`: on a fabric it would be a receiver that is not
        ready, which the collectives' credits rule out.
        """
        network = self.port.network
        with network.lock:
            far = network.connections.get(self._remote)
            status = self._copy(far, local, remote, length)
            if far is not None and not status and immediate is not None:
                far.receive(immediate)
        if signaled or status:
            self.port.complete(Completion(self.qp_num, 0, status, received=False, immediate=0))

    def _copy(
        self, far: "LoopbackConnection | None", local: tuple[int, int], remote: tuple[int, int], length: int
    ) -> str:
        """Copy unless a real NIC would refuse; returns the completion status it would give."""
        network = self.port.network
        if far is None or far.qp_num in network.dead:
            return "RETRY_EXC_ERR"
        if not length:
            return ""
        if not _registered(network, self.port, local, length):
            return "LOC_PROT_ERR"
        if not _registered(network, far.port, remote, length):
            return "REM_ACCESS_ERR"
        ctypes.memmove(remote[0], local[0], length)
        return ""

    def receive(self, immediate: int) -> None:
        """Spend a posted receive on a message; the caller holds the network's lock."""
        if not self._receives:
            raise C4Error(f"QP {self.qp_num} on {self.port.name}: a message came where no receive was posted")
        self._receives -= 1
        self.port.complete(Completion(self.qp_num, 0, "", received=True, immediate=immediate))

    def move(self, source_port: int) -> None:
        """Take another path, in name."""
        self.source_port = source_port or _ECMP_PORT

    def close(self) -> None:
        """Be gone: writes to it are no longer answered."""
        self.port.network.connections.pop(self.qp_num, None)


def _registered(network: Network, port: LoopbackPort, place: tuple[int, int], length: int) -> bool:
    region = network.regions.get(place[1])
    return region is not None and region.covers(port, place[0], length)
