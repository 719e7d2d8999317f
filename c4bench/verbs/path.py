"""Which path a connection takes: one protocol for the knobs that NICs have, and the arithmetic of source ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from c4bench.verbs.errors import VerbsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from c4bench.verbs.device import Device
    from c4bench.verbs.endpoint import Endpoint

FIRST_PORT = 0xC000
LAST_PORT = 0xFFFF
SOURCE_PORTS = range(FIRST_PORT, LAST_PORT + 1)
_PORT_BITS = 14
_LOW = 0x3FFF
_LABEL_MASK = 0xFFFFF


class PathAttributes(NamedTuple):
    """What the address vector says of the path: GRH flow label (20 bits) and LID path bits (below 2^LMC)."""

    flow_label: int = 0
    path_bits: int = 0


ANY_WAY = PathAttributes()


class PathControl(Protocol):
    """A way of choosing a connection's path by a number; 0 leaves the choice to the fabric.

    `chooses` names what the numbers stand for.
    """

    chooses: str

    def obstacle(self, device: Device) -> str:
        """Why this has no effect on `device`, found by trying where that is possible; empty where it works."""

    def choices(self, device: Device) -> Sequence[int]:
        """The numbers there are beside 0."""

    def way(self, choice: int) -> PathAttributes:
        """What to connect with. ValueError for a number that is none."""

    def settle(self, endpoint: Endpoint, choice: int) -> None:
        """Do what is left to do once the endpoint is connected."""

    def move(self, endpoint: Endpoint, choice: int) -> None:
        """Move a connected endpoint that has nothing outstanding. VerbsError where the device refuses."""

    def source_port(self, endpoint: Endpoint) -> int:
        """The UDP source port a connected endpoint's packets carry, 0 where there is none or it is not known."""


class NoPathControl:
    """No knob works: every path is the fabric's choice. `reasons` says why, for the error of whoever asks for more."""

    chooses = "nothing"

    def __init__(self, reasons: str) -> None:
        self.reasons = reasons

    def obstacle(self, device: Device) -> str:  # noqa: ARG002
        """None: it promises nothing."""
        return ""

    def choices(self, device: Device) -> Sequence[int]:  # noqa: ARG002
        """None."""
        return ()

    def way(self, choice: int) -> PathAttributes:
        """ValueError for any choice."""
        if choice:
            raise ValueError(f"no path can be chosen on this device: {self.reasons}")
        return ANY_WAY

    def settle(self, endpoint: Endpoint, choice: int) -> None:
        """Nothing is left to do."""

    def move(self, endpoint: Endpoint, choice: int) -> None:
        """Nothing to do for 0. VerbsError for any other choice."""
        if choice:
            raise VerbsError(
                f"QP {endpoint.qp_num} on {endpoint.device.name} cannot be moved: {self.reasons}",
                device=endpoint.device.name,
                qp=endpoint.qp_num,
            )

    def source_port(self, endpoint: Endpoint) -> int:  # noqa: ARG002
        """Not known."""
        return 0


def label_for(source_port: int) -> int:
    """The flow label that folds to a UDP source port; 0 for 0. ValueError outside 0xC000 to 0xFFFF."""
    if not source_port:
        return 0
    if source_port not in SOURCE_PORTS:
        raise ValueError(f"source port {source_port} is outside {FIRST_PORT}..{LAST_PORT}")
    # A label of 0 would mean ECMP, so port 0xC000 needs high bits that cancel low ones.
    return source_port & _LOW or (1 << _PORT_BITS) | 1


def port_of(flow_label: int, local_qp: int, remote_qp: int) -> int:
    """Linux's `rdma_get_udp_sport`: a label of 0 is derived from both QP numbers, then folded."""
    label = flow_label or ecmp_label(local_qp, remote_qp)
    return ((label & _LOW) ^ (label >> _PORT_BITS)) | FIRST_PORT


def ecmp_label(local_qp: int, remote_qp: int) -> int:
    """The flow label Linux makes up for a connection that was given none (`rdma_calc_flow_label`)."""
    product = local_qp * remote_qp
    product ^= product >> 20
    product ^= product >> 40
    return product & _LABEL_MASK
