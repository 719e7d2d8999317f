"""One end of a loopback connection: what is written, read, lost on the way, tried again and flushed."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from c4bench.errors import C4Error
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import Completion, Remote, TransportProfile

if TYPE_CHECKING:
    from c4bench.verbs.loopback import LoopbackPort, Network

_ECMP_PORT = 0xC001
_FLUSHED = "WR_FLUSH_ERR"
_TIMER_UNIT_S = 4.096e-6

# What the fabric does to packets from one port to another: carries them; loses them; carries the data and loses its
# acknowledgement; loses them for the sender and carries them much later.
Fate = Literal["", "lost", "unacknowledged", "late"]


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
        self.peer = ""
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
        """Connect to `remote.qp` with `receives` receives posted.

        VerbsError while the port is down or has no address.
        """
        if not self.port.active:
            raise VerbsError(f"QP {self.qp_num} on {self.port.name}: the port is down", device=self.port.name)
        self.port.here()
        self._remote, self.peer = remote.qp, remote.gid
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
        if not self.peer:
            raise VerbsError(f"QP {self.qp_num} on {self.port.name} is not connected", device=self.port.name)
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
        fate = self._fate(far) if far is not None else ""
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

    def _fate(self, far: LoopbackConnection) -> Fate:
        """What becomes of packets to that end; nothing passes a port that is down, or finds an address that is gone."""
        fate = self.port.network.fate(self.port, far.port)
        up = self.port.active and far.port.active
        if not up or far.port.address != self.peer or not far.peer:
            return fate or "lost"
        return fate or ("" if far.peer == self.port.address else "unacknowledged")

    def retry(self, now_s: float) -> bool:
        """See Unanswered."""
        with self.port.network.lock:
            if not self._unanswered or self.broken or self.port.closed:
                return False
            if now_s >= self._due_s:
                self._again(now_s)
            return bool(self._unanswered)

    def _again(self, now_s: float) -> None:
        network = self.port.network
        far = network.connections.get(self._remote)
        fate: Fate = self._fate(far) if far is not None else "lost"
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

    def _deliver(self, far: LoopbackConnection, write: _Write) -> str:
        """Do at the far end what the write says, once; returns the completion status that a real NIC would give."""
        if write.delivered:
            return ""
        status = self._copy(far, write)
        write.delivered = True
        if not status and write.immediate is not None:
            far.receive(write.immediate)
        return status

    def _copy(self, far: LoopbackConnection, write: _Write) -> str:
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

    def _come_late(self, far: LoopbackConnection, life: int, writes: list[_Write]) -> None:
        with self.port.network.lock:
            closed = self.port.closed or far.port.closed
            if not (closed or far.broken) and far.life == life:
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
