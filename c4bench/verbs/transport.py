"""The interface of a NIC for collectives: data and protocols only, so that code above runs without pyverbs."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec


class TransportProfile(msgspec.Struct, frozen=True):
    """The retry parameters of a reliable connection.

    `timeout` is the exponent of the acknowledgement timer, 4.096 us x 2^timeout (InfiniBand Architecture Specification,
    volume 1, 9.7.6.1.3); a dead path fails after (retries + 1) timers. `rnr_retries` is for receivers without a posted
    receive; collectives never need it. The value 7 means infinite RNR retries and is not used. `traffic_class` is the
    IP header's, a DSCP and two bits of ECN; None is that of the NIC.
    """

    name: str
    timeout: int
    retries: int
    rnr_retries: int
    min_rnr_timer: int = 12
    hop_limit: int = 64
    traffic_class: int | None = None


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
        """Connect to `remote` with `receives` receives posted; source port 0 leaves the path to ECMP."""

    def write(
        self, local: tuple[int, int], remote: tuple[int, int], length: int, *, immediate: int | None, signaled: bool
    ) -> None:
        """RDMA-write `length` bytes from `local` (address, lkey) to `remote` (address, rkey)."""

    def post_receive(self) -> None:
        """Post one receive for an immediate, without a buffer."""

    def read(self, local: tuple[int, int], remote: tuple[int, int], length: int) -> None:
        """RDMA-read `length` bytes from `remote` (address, rkey) to `local` (address, lkey)."""

    def fence(self) -> None:
        """Enter the error state: nothing leaves or arrives any more, and posted work completes with an error."""

    def move(self, source_port: int) -> None:
        """Move to another path. Nothing may be outstanding."""

    def close(self) -> None:
        """Destroy it."""


class Port(Protocol):
    """An opened NIC."""

    def here(self) -> Remote:
        """Its address for the far end, with a QP of 0. Looked up at each call, because GIDs may change."""

    @property
    def active(self) -> bool:
        """Whether the link is up."""

    @property
    def event_fds(self) -> tuple[int, int]:
        """Descriptors that become readable on a completion and on an asynchronous event."""

    def register(self, address: int, length: int) -> Region:
        """Register memory for local and remote writing."""

    def connection(self, profile: TransportProfile, sends: int, receives: int) -> Connection:
        """A new, unconnected connection with queues of those depths."""

    def completions(self, *, arm: bool = True) -> Sequence[Completion]:
        """All pending completions. Never blocks.

        With `arm`, consume pending notifications and arm the next one first, so that a caller that then waits on the
        descriptor misses nothing. A caller that polls does without, and may start waiting later, since the notification
        of polled completions is still pending.
        """

    def events(self) -> Sequence[PortEvent]:
        """All pending asynchronous events. Never blocks."""

    def close(self) -> None:
        """Close it and everything that belongs to it."""
