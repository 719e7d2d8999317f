"""The interface of path controls and of what they act on, what controls have in common, and QPs without a peer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import msgspec

from c4bench.model.fabric import Nic
from c4bench.verbs.addressing import DEFAULT_PATH, SOURCE_PORTS, Gid, PathAttributes, PortStatus, label_for, port_of
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import BRISK, Remote, TransportProfile


class OpenEndpoint(Protocol):
    """A reliable-connection QP; `raw` is the pyverbs object, `remote` the far end, None before it is connected."""

    device: "OpenDevice"
    path: PathAttributes
    remote: Remote | None
    qp_num: int
    raw: Any

    @property
    def qps(self) -> tuple[int, int]:
        """The QP numbers of both ends. Raises VerbsError before it is connected."""

    def connect_by(self, remote: Remote, path: PathAttributes = DEFAULT_PATH, receives: int = 0) -> None:
        """Connect with the given path attributes."""

    def readdress(self, path: PathAttributes) -> None:
        """Change the path attributes of a connected endpoint.

        Raises VerbsError where the device refuses; the endpoint is then as before.
        """

    def try_readdress(self, path: PathAttributes) -> None:
        """The same without asking first whether the device can. Raises VerbsError."""

    def probe(self, wr_id: int = 0) -> None:
        """Write zero bytes."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class OpenDevice(Protocol):
    """An opened RDMA device; `pd`, `cq` and `anchor` are its pyverbs objects."""

    nic: Nic
    name: str
    port_number: int
    pd: Any
    cq: Any
    anchor: Any

    @property
    def vendor(self) -> int:
        """The vendor id of ibv_query_device."""

    @property
    def paths(self) -> "PathControl":
        """How the device's connections choose their paths."""

    @property
    def readdress_obstacle(self) -> str:
        """Why a connected QP cannot be given another address vector, "" where it can; tried once."""

    def status(self) -> PortStatus:
        """The current state of the port."""

    def resolve_gid(self) -> Gid:
        """The GID that carries the device's address. Raises VerbsError if there is none."""

    def here(self) -> Remote:
        """The address of the port, with a QP of 0."""

    def connection(self, profile: TransportProfile, sends: int, receives: int) -> OpenEndpoint:
        """A new endpoint with queues of those depths."""


@runtime_checkable
class PathControl(Protocol):
    """Chooses a connection's path by a number; 0 leaves the choice to the fabric.

    `chooses` names what the numbers stand for.
    """

    chooses: str

    def obstacle(self, device: OpenDevice) -> str:
        """Why this has no effect on `device`, found by a trial where possible; empty where it works."""

    def choices(self, device: OpenDevice) -> Sequence[int]:
        """The valid numbers besides 0."""

    def attributes(self, choice: int) -> PathAttributes:
        """The path attributes to connect with. Raises ValueError for an invalid number."""

    def after_connect(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Complete the choice on a newly connected endpoint."""

    def move(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Move a connected endpoint that has nothing outstanding. Raises VerbsError where the device refuses."""

    def source_port(self, endpoint: OpenEndpoint) -> int:
        """The UDP source port of a connected endpoint's packets, 0 where there is none or it is unknown."""


class UdpSourcePort:
    """What controls by UDP source port have in common: the dynamic ports, and the flow label that folds to one."""

    chooses = "UDP source port"

    def choices(self, device: OpenDevice) -> Sequence[int]:  # noqa: ARG002
        """The dynamic ports."""
        return SOURCE_PORTS

    def attributes(self, choice: int) -> PathAttributes:
        """The label of the port, so that the first packet carries it already; label 0 for ECMP."""
        return PathAttributes(flow_label=label_for(choice))

    def source_port(self, endpoint: OpenEndpoint) -> int:
        """The port that the label folds to, or the driver's."""
        return port_of(endpoint.path.flow_label, *endpoint.qps)


class NoPathControl:
    """For devices on which no path control works; `reasons` explains why, for error messages."""

    chooses = "nothing"

    def __init__(self, reasons: str) -> None:
        self.reasons = reasons

    def obstacle(self, device: OpenDevice) -> str:  # noqa: ARG002
        """Empty: it works on any device."""
        return ""

    def choices(self, device: OpenDevice) -> Sequence[int]:  # noqa: ARG002
        """No choices."""
        return ()

    def attributes(self, choice: int) -> PathAttributes:
        """The default path for 0. Raises ValueError for any other choice."""
        if choice:
            raise ValueError(f"no path can be chosen on this device: {self.reasons}")
        return DEFAULT_PATH

    def after_connect(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Nothing to do."""

    def move(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Nothing to do for 0. Raises VerbsError for any other choice."""
        if choice:
            raise VerbsError(
                f"QP {endpoint.qp_num} on {endpoint.device.name} cannot be moved: {self.reasons}",
                device=endpoint.device.name,
                qp=endpoint.qp_num,
            )

    def source_port(self, endpoint: OpenEndpoint) -> int:  # noqa: ARG002
        """Unknown."""
        return 0


# The vendor id of ibv_query_device of devices without hardware.
SOFTWARE = 0xFFFFFF


def readdress_refusal(device: OpenDevice) -> str:
    """Why the device refuses another address vector for a connected QP, found on a scratch QP; "" if it does not.

    mlx5 has no SQD state (EINVAL). Software devices take every transition that the specification has: none is tried, so
    that a job's QP numbers do not depend on it.
    """
    if device.vendor == SOFTWARE:
        return ""
    try:
        with to_itself(device) as endpoint:
            endpoint.try_readdress(endpoint.path)
    except VerbsError as error:
        return error.status or str(error)
    return ""


# An unassigned address of the Local Network Control Block (RFC 5771), which routers must not forward; the hop limit of
# 1 ensures that.
NOBODY = "::ffff:224.0.0.120"
_ONE_HOP = msgspec.structs.replace(BRISK, name="scratch", hop_limit=1)


@contextmanager
def to_itself(device: OpenDevice) -> Iterator[OpenEndpoint]:
    """An endpoint connected to itself, in RTS. Do not post to it."""
    with device.connection(_ONE_HOP, 1, 1) as endpoint:
        endpoint.connect_by(msgspec.structs.replace(device.here(), qp=endpoint.qp_num))
        yield endpoint


@contextmanager
def to_nobody(device: OpenDevice, path: PathAttributes) -> Iterator[OpenEndpoint]:
    """An endpoint whose packets leave on the link and reach no host: link-local multicast needs no neighbour entry."""
    with device.connection(_ONE_HOP, 1, 1) as endpoint:
        endpoint.connect_by(Remote(NOBODY, endpoint.qp_num), path)
        yield endpoint
