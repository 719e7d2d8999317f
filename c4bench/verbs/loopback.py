"""A transport within one process: writes are memory copies, completions wake an eventfd. For ranks that are threads."""

import ctypes
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from c4bench.errors import C4Error
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.loopback_time import Retransmission
from c4bench.verbs.transport import Completion, PortEvent, Remote, TransportProfile

_T = TypeVar("_T")
_FIRST_QP = 17
_ECMP_PORT = 0xC001
_FLUSHED = "WR_FLUSH_ERR"
_TIMER_UNIT_S = 4.096e-6

# What the fabric does to packets from one port to another: carries them; loses them; carries the data and loses its
# acknowledgement; loses them for the sender and carries them much later.
Fate = Literal["", "lost", "unacknowledged", "late"]


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
        self.active = True
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

    def connection(self, profile: TransportProfile, sends: int, receives: int) -> "LoopbackConnection":  # noqa: ARG002  (a Port's signature)
        """A new connection; a write takes no time, so only the depth of the receive queue matters."""
        return LoopbackConnection(self, profile, receives)

    def complete(self, completion: Completion) -> None:
        """Queue a completion and wake whoever waits."""
        self._completions.append(completion)
        with suppress(OSError):  # closed meanwhile
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


@dataclass(slots=True)
class _Write:
    """A posted write or read. It leaves its mark at the far end once, whatever becomes of its acknowledgement."""

    local: tuple[int, int]
    remote: tuple[int, int]
    length: int
    immediate: int | None
    signaled: bool
    reading: bool = False
    delivered: bool = False


class LoopbackConnection:
    """One end of a connection: what it writes has arrived when `write` returns, unless the fabric's fate is another."""

    def __init__(self, port: LoopbackPort, profile: TransportProfile, receives: int) -> None:
        self.port = port
        self.source_port = 0
        self.broken = False
        self.life = 0
        self._remote = 0
        self._depth = receives
        self._receives = 0
        self._unanswered: deque[_Write] = deque()
        self._tries = profile.retries + 1
        self._tried = 0
        self._timer_s = _TIMER_UNIT_S * 2**profile.timeout * port.network.timer_scale
        self._due_s = 0.0
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
            self._unanswered.clear()
            self.broken = False
            self.life += 1
        for _ in range(receives):
            self.post_receive()

    def post_receive(self) -> None:
        """Post one receive. VerbsError where the queue is full."""
        with self.port.network.lock:
            if self.broken:
                self.port.complete(Completion(self.qp_num, 0, _FLUSHED, received=True, immediate=0))
                return
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
        self._post(_Write(local, remote, length, immediate, signaled))

    def read(self, local: tuple[int, int], remote: tuple[int, int], length: int) -> None:
        """Copy the other way."""
        self._post(_Write(local, remote, length, None, signaled=True, reading=True))

    def _post(self, write: _Write) -> None:
        with self.port.network.lock:
            if self.broken:
                self._end(write, _FLUSHED)
            elif self._unanswered:
                self._unanswered.append(write)
            else:
                self._send(write)

    def _send(self, write: _Write) -> None:
        network = self.port.network
        far = network.connections.get(self._remote)
        fate = network.fate(self.port, far.port) if far is not None else ""
        if far is None or far.qp_num in network.dead:
            self._end(write, "RETRY_EXC_ERR")
        elif not fate and not far.broken:
            self._end(write, self._deliver(far, write))
        else:
            self._unanswered.append(write)
            if fate == "unacknowledged" and not far.broken:
                self._deliver(far, write)
            self._tried = 0
            self._due_s = time.monotonic() + self._timer_s
            network.retransmission.add(self)

    def retry(self, now_s: float) -> bool:
        """See Unanswered."""
        with self.port.network.lock:
            if not self._unanswered or self.broken:
                return False
            if now_s >= self._due_s:
                self._again(now_s)
            return bool(self._unanswered)

    def _again(self, now_s: float) -> None:
        network = self.port.network
        far = network.connections.get(self._remote)
        fate: Fate = network.fate(self.port, far.port) if far is not None else "lost"
        if far is not None and not far.broken and fate in {"", "unacknowledged"}:
            for write in self._unanswered:
                self._deliver(far, write)
            if not fate:
                while self._unanswered:
                    self._end(self._unanswered.popleft(), "")
                return
        self._tried += 1
        self._due_s = now_s + self._timer_s
        if self._tried >= self._tries:
            self._break(self._unanswered.popleft(), "RETRY_EXC_ERR")

    def _deliver(self, far: "LoopbackConnection", write: _Write) -> str:
        """Do at the far end what the write says, once; returns the completion status that a real NIC would give."""
        if write.delivered:
            return ""
        status = self._copy(far, write)
        write.delivered = True
        if not status and write.immediate is not None:
            far.receive(write.immediate)
        return status

    def _copy(self, far: "LoopbackConnection", write: _Write) -> str:
        network = self.port.network
        if not write.length:
            return ""
        if not _registered(network, self.port, write.local, write.length):
            return "LOC_PROT_ERR"
        if not _registered(network, far.port, write.remote, write.length):
            return "REM_ACCESS_ERR"
        to, source = (write.local, write.remote) if write.reading else (write.remote, write.local)
        ctypes.memmove(to[0], source[0], write.length)
        return ""

    def _end(self, write: _Write, status: str) -> None:
        if write.signaled or status:
            self.port.complete(Completion(self.qp_num, 0, status, received=False, immediate=0))

    def _break(self, write: _Write, status: str) -> None:
        """Fail with this write; everything behind it is flushed."""
        self._end(write, status)
        self._flush(write)

    def _flush(self, *failed: _Write) -> None:
        network = self.port.network
        far = network.connections.get(self._remote)
        if far is not None and network.fate(self.port, far.port) == "late":
            late, life = [*failed, *self._unanswered], far.life
            network.retransmission.after(network.late_s, lambda: self._come_late(far, life, late))
        self.broken = True
        while self._unanswered:
            self._end(self._unanswered.popleft(), _FLUSHED)
        for _ in range(self._receives):
            self.port.complete(Completion(self.qp_num, 0, _FLUSHED, received=True, immediate=0))
        self._receives = 0

    def _come_late(self, far: "LoopbackConnection", life: int, writes: list[_Write]) -> None:
        with self.port.network.lock:
            if not far.broken and far.life == life:
                for write in writes:
                    self._deliver(far, write)

    def fence(self) -> None:
        """Have nothing more leave or arrive by it. May be called again."""
        with self.port.network.lock:
            if not self.broken:
                self._flush()

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
