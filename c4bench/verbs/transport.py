"""What the collectives need of a NIC: pure data and protocols, so that everything above runs without pyverbs too."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec


class TransportProfile(msgspec.Struct, frozen=True):
    """How patiently a reliable connection retries.

    `timeout` is the exponent of the acknowledgement timer, 4.096 us x 2^timeout (InfiniBand Architecture Specification,
    volume 1, 9.7.6.1.3); a dead path errs after (retries + 1) timers. `rnr_retries` covers a receiver without a posted
    receive; the collectives never rely on it. 7 would mean "for ever" for either, and is not used.
    """

    name: str
    timeout: int
    retries: int
    rnr_retries: int
    min_rnr_timer: int = 12
    hop_limit: int = 64


BRISK = TransportProfile("brisk", timeout=14, retries=3, rnr_retries=6)
PATIENT = TransportProfile("patient", timeout=16, retries=6, rnr_retries=6)
PROFILES = {profile.name: profile for profile in (BRISK, PATIENT)}


class Remote(msgspec.Struct, frozen=True):
    """The far end of a connection: its GID as text and its QP number.

    `lid` is its InfiniBand address, 0 on Ethernet. `mtu_bytes` is the active path MTU at that end, 0 where unknown; a
    connection uses the smaller of both ends'.
    """

    gid: str
    qp: int
    lid: int = 0
    mtu_bytes: int = 0


class Completion(NamedTuple):
    """One work completion. `status` is empty on success; `immediate` is meaningful when `received`."""

    qp: int
    wr_id: int
    status: str
    received: bool
    immediate: int


class PortEvent(NamedTuple):
    """An asynchronous event of a device: `kind` is the verbs name without prefix, such as `PORT_ERR`."""

    device: str
    kind: str


class Region(Protocol):
    """Registered memory."""

    @property
    def lkey(self) -> int:
        """Key for local use."""

    @property
    def rkey(self) -> int:
        """Key for the far end's use."""

    def close(self) -> None:
        """Deregister."""


class Connection(Protocol):
    """One end of a reliable connection."""

    @property
    def qp_num(self) -> int:
        """Number of the QP."""

    @property
    def source_port(self) -> int:
        """UDP source port its packets carry, 0 where unknown."""

    def connect(self, remote: Remote, source_port: int = 0, receives: int = 0) -> None:
        """Bring it up towards `remote` with `receives` receives posted; source port 0 leaves the path to ECMP."""

    def write(
        self, local: tuple[int, int], remote: tuple[int, int], length: int, *, immediate: int | None, signaled: bool
    ) -> None:
        """RDMA-write `length` bytes from `local` (address, lkey) to `remote` (address, rkey)."""

    def post_receive(self) -> None:
        """Post one receive that takes an immediate and no bytes."""

    def read(self, local: tuple[int, int], remote: tuple[int, int], length: int) -> None:
        """RDMA-read `length` bytes from `remote` (address, rkey) to `local` (address, lkey)."""

    def fence(self) -> None:
        """Have nothing more leave or arrive by it: the error state. What is still posted completes with an error."""

    def move(self, source_port: int) -> None:
        """Take another path; nothing may be outstanding."""

    def close(self) -> None:
        """Destroy it."""


class Port(Protocol):
    """An opened NIC."""

    def here(self) -> Remote:
        """Its address as the far end needs it, with a QP of 0. Looked up at each call: a GID may move."""

    @property
    def active(self) -> bool:
        """Whether its link is up now."""

    @property
    def event_fds(self) -> tuple[int, int]:
        """Descriptors that become readable: on a completion, on an asynchronous event."""

    def register(self, address: int, length: int) -> Region:
        """Register memory for local and remote writing."""

    def register_dmabuf(self, fd: int, offset: int, length: int) -> Region:
        """Register memory exported as DMA-BUF; writes then address it from `offset` on, and not by a pointer.

        Raises VerbsError, which says why, where the device cannot.
        """

    def connection(self, profile: TransportProfile, sends: int, receives: int) -> Connection:
        """A new, unconnected connection with queues of those depths."""

    def completions(self, *, arm: bool = True) -> Sequence[Completion]:
        """Take every completion. Never blocks.

        With `arm` pending notifications are consumed and the next one is armed first, so that whoever then waits on the
        descriptor misses nothing. A caller that polls leaves that out, and may start waiting later: the notification
        of what it polled before is still there.
        """

    def events(self) -> Sequence[PortEvent]:
        """Take every pending asynchronous event. Never blocks."""

    def close(self) -> None:
        """Release everything that belongs to it."""
