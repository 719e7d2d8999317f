"""A transport within one process: writes are memory copies, completions wake an eventfd. For ranks that are threads."""

import ctypes
import time
from collections import deque
from dataclasses import dataclass

from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import Completion, Remote, TransportProfile
from tools.loopback_network import FLUSHED, Delivery, LoopbackNic, Network, ReceivingQp

__all__ = ["LoopbackConnection", "LoopbackPort", "Network"]

_ECMP_PORT = 0xC001
_TIMER_UNIT_S = 4.096e-6


@dataclass(slots=True)
class _Write:
    """A posted write or read. It takes effect at the far end once, even if its acknowledgement is lost."""

    local: tuple[int, int]
    remote: tuple[int, int]
    length: int
    immediate: int | None
    signaled: bool
    reading: bool = False
    delivered: bool = False


class LoopbackConnection(ReceivingQp):
    """One end of a connection. A write has arrived when `write` returns, unless the network's `delivery` differs."""

    def __init__(self, port: LoopbackNic, profile: TransportProfile, receives: int) -> None:
        super().__init__(port, receives)
        self.source_port = 0
        self._remote = 0
        self._unanswered: deque[_Write] = deque()
        self._tries = profile.retries + 1
        self._tried = 0
        self._timer_s = _TIMER_UNIT_S * 2**profile.timeout * port.network.timer_scale
        self._due_s = 0.0

    def connect(self, remote: Remote, source_port: int = 0, receives: int = 0) -> None:
        """Connect to `remote.qp` with `receives` receives posted.

        Raises VerbsError while the port is down or has no address.
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

    def write(
        self, local: tuple[int, int], remote: tuple[int, int], length: int, *, immediate: int | None, signaled: bool
    ) -> None:
        """Copy `length` bytes from `local` (address, lkey) to `remote` (address, rkey).

        Raises C4Error if the far end has no receive posted for `immediate`. On a real NIC that is receiver-not-ready,
        which the collectives' credits prevent.
        """
        self._post(_Write(local, remote, length, immediate, signaled))

    def read(self, local: tuple[int, int], remote: tuple[int, int], length: int) -> None:
        """Copy `length` bytes from `remote` to `local`."""
        self._post(_Write(local, remote, length, None, signaled=True, reading=True))

    def _post(self, write: _Write) -> None:
        if not self.peer:
            raise VerbsError(f"QP {self.qp_num} on {self.port.name} is not connected", device=self.port.name)
        with self.port.network.lock:
            if self.broken:
                self._end(write, FLUSHED)
            elif self._unanswered:
                self._unanswered.append(write)
            else:
                self._send(write)

    def _send(self, write: _Write) -> None:
        network = self.port.network
        far = network.connections.get(self._remote)
        delivery = self._delivery(far) if far is not None else ""
        if far is None or far.qp_num in network.dead:
            self._end(write, "RETRY_EXC_ERR")
        elif not delivery and not far.broken:
            self._end(write, self._deliver(far, write))
        else:
            self._unanswered.append(write)
            if delivery == "unacknowledged" and not far.broken:
                self._deliver(far, write)
            self._tried = 0
            self._due_s = time.monotonic() + self._timer_s
            network.retransmission.add(self)

    def _delivery(self, far: ReceivingQp) -> Delivery:
        """What happens to packets to that end; none passes a port that is down, or reaches an old address."""
        delivery = self.port.network.delivery(self.port, far.port)
        up = self.port.active and far.port.active
        if not up or far.port.address != self.peer or not far.peer:
            return delivery or "lost"
        return delivery or ("" if far.peer == self.port.address else "unacknowledged")

    def retry(self, now_s: float) -> bool:
        """See Unanswered."""
        with self.port.network.lock:
            if not self._unanswered or self.broken or self.port.closed:
                return False
            if now_s >= self._due_s:
                self._retransmit(now_s)
            return bool(self._unanswered)

    def _retransmit(self, now_s: float) -> None:
        network = self.port.network
        far = network.connections.get(self._remote)
        delivery: Delivery = self._delivery(far) if far is not None else "lost"
        if far is not None and not far.broken and delivery in {"", "unacknowledged"}:
            for write in self._unanswered:
                self._deliver(far, write)
            if not delivery:
                while self._unanswered:
                    self._end(self._unanswered.popleft(), "")
                return
        self._tried += 1
        self._due_s = now_s + self._timer_s
        if self._tried >= self._tries:
            self._break(self._unanswered.popleft(), "RETRY_EXC_ERR")

    def _deliver(self, far: ReceivingQp, write: _Write) -> str:
        """Perform the write at the far end, once; returns the completion status of a real NIC."""
        if write.delivered:
            return ""
        status = self._copy(far, write)
        write.delivered = True
        if not status and write.immediate is not None:
            far.receive(write.immediate)
        return status

    def _copy(self, far: ReceivingQp, write: _Write) -> str:
        network = self.port.network
        if not write.length:
            return ""
        if not network.registered(self.port, write.local, write.length):
            return "LOC_PROT_ERR"
        if not network.registered(far.port, write.remote, write.length):
            return "REM_ACCESS_ERR"
        to, source = (write.local, write.remote) if write.reading else (write.remote, write.local)
        ctypes.memmove(to[0], source[0], write.length)
        return ""

    def _end(self, write: _Write, status: str) -> None:
        if write.signaled or status:
            self.port.complete(Completion(self.qp_num, 0, status, received=False, immediate=0))

    def _break(self, write: _Write, status: str) -> None:
        """Fail with this write and flush those behind it."""
        self._end(write, status)
        self._flush(write)

    def _flush(self, *failed: _Write) -> None:
        network = self.port.network
        far = network.connections.get(self._remote)
        if far is not None and network.delivery(self.port, far.port) == "late":
            late_writes, life = [*failed, *self._unanswered], far.life
            network.retransmission.after(network.late_s, lambda: self._deliver_late(far, life, late_writes))
        self.broken = True
        while self._unanswered:
            self._end(self._unanswered.popleft(), FLUSHED)
        for _ in range(self._receives):
            self.port.complete(Completion(self.qp_num, 0, FLUSHED, received=True, immediate=0))
        self._receives = 0

    def _deliver_late(self, far: ReceivingQp, life: int, writes: list[_Write]) -> None:
        with self.port.network.lock:
            closed = self.port.closed or far.port.closed
            if not (closed or far.broken) and far.life == life:
                for write in writes:
                    self._deliver(far, write)

    def fence(self) -> None:
        """Enter the error state: nothing leaves or arrives any more. May be called again."""
        with self.port.network.lock:
            if not self.broken:
                self._flush()

    def move(self, source_port: int) -> None:
        """Set the source port; there is only one path."""
        self.source_port = source_port or _ECMP_PORT

    def close(self) -> None:
        """Stop answering writes."""
        self.port.network.connections.pop(self.qp_num, None)


class LoopbackPort(LoopbackNic):
    """A loopback NIC that makes connections."""

    def connection(self, profile: TransportProfile, sends: int, receives: int) -> LoopbackConnection:  # noqa: ARG002  (a Port's signature)
        """A new connection; a write takes no time, so only the depth of the receive queue matters."""
        return LoopbackConnection(self, profile, receives)
