"""Path controls by the address vector, and the choice of a device's path control."""

import platform
import re
from collections.abc import Sequence
from contextlib import suppress

from c4bench import extensions
from c4bench.errors import C4Error
from c4bench.verbs.addressing import ETHERNET, INFINIBAND, PathAttributes, label_for
from c4bench.verbs.discovery import netdev_of
from c4bench.verbs.mlx5 import LagPort, LiveSourcePort, SourcePortAndLagPort
from c4bench.verbs.packet_capture import PacketCapture
from c4bench.verbs.path_control import (
    NOBODY,
    SOFTWARE,
    NoPathControl,
    OpenDevice,
    OpenEndpoint,
    PathControl,
    UdpSourcePort,
    to_nobody,
)
from c4bench.verbs.transport import Remote

# The first Linux whose driver passes the label to `rdma_get_udp_sport` when a QP is connected, by the vendor id of
# ibv_query_device: rxe (which has none), mlx5, irdma. A vendor's own driver package may do so on older kernels.
_LINUX_SINCE = {SOFTWARE: (5, 18), 0x02C9: (5, 8), 0x8086: (5, 18)}
_ASKED_PORT = 0xEDB8
_WITHIN_S = 0.05


class FlowLabel(UdpSourcePort):
    """The GRH flow label chooses the port: RoCE v2 annex A17.9.1 with Linux's folding of 20 bits into 14."""

    def obstacle(self, device: OpenDevice) -> str:
        """See PathControl.

        A software NIC's packets can be captured on its netdev: send one to an unused address and check its source port.
        For a hardware NIC, or a netdev in another namespace, the kernel version decides.
        """
        status = device.status()
        if status.link_layer != ETHERNET:
            return f"its link layer is {status.link_layer}"
        if device.vendor == SOFTWARE:
            # Without the netdev, or the right to capture on it, the kernel version decides.
            with suppress(C4Error):
                return _obstacle_on_wire(device)
        return _obstacle_by_kernel(device.vendor)

    def after_connect(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Nothing to do: the label is in the address vector."""

    def move(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Change the label of the connected endpoint, by its address vector."""
        endpoint.readdress(self.attributes(choice))


def _obstacle_on_wire(device: OpenDevice) -> str:
    netdev = netdev_of(device.name, device.port_number)
    if not netdev:
        raise C4Error(f"{device.name}: its netdev is unknown")
    with (
        PacketCapture(netdev) as capture,
        to_nobody(device, PathAttributes(flow_label=label_for(_ASKED_PORT))) as endpoint,
    ):
        endpoint.probe()
        ports = capture.source_ports(Remote(NOBODY, endpoint.qp_num), _WITHIN_S)
    if not ports:
        raise C4Error(f"{device.name}: no packet of it was captured on {netdev}")
    wrong = ports - {_ASKED_PORT}
    return f"asked for UDP source port {_ASKED_PORT}, it sent from {wrong.pop()}" if wrong else ""


def _obstacle_by_kernel(vendor: int) -> str:
    supported_since = _LINUX_SINCE.get(vendor)
    if supported_since is None:
        return f"it is not known whether the driver of vendor {vendor:#x} honours the flow label"
    running = kernel_version()
    return (
        ""
        if running >= supported_since
        else f"its driver honours the flow label since Linux {supported_since[0]}.{supported_since[1]}"
    )


def kernel_version() -> tuple[int, int]:
    """Major and minor version of the running kernel."""
    major, minor = re.findall(r"\d+", platform.release())[:2]
    return int(major), int(minor)


# An LMC has three bits.
_MOST = 1 << 7


class PathBits:
    """A port with LMC m has 2^m LIDs, which subnet managers route on different paths.

    Both ends' LIDs get the same bits, so both ports must have the same LMC (InfiniBand Architecture Specification,
    volume 1, 7.11).
    """

    chooses = "LID path bits"

    def obstacle(self, device: OpenDevice) -> str:
        """Checks the port's link layer and its LMC."""
        status = device.status()
        if status.link_layer != INFINIBAND:
            return f"its link layer is {status.link_layer}"
        return "" if status.lmc else "its LMC is 0: the subnet manager gave it a single LID"

    def choices(self, device: OpenDevice) -> Sequence[int]:
        """All values of the bits that the LMC leaves free."""
        return range(1, 1 << device.status().lmc)

    def attributes(self, choice: int) -> PathAttributes:
        """The bits themselves."""
        if not 0 <= choice < _MOST:
            raise ValueError(f"{choice} is not a value of LID path bits, 0 to {_MOST - 1}")
        return PathAttributes(path_bits=choice)

    def after_connect(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Nothing to do: the bits are in the address vector."""

    def move(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Change the bits of the connected endpoint, by its address vector."""
        endpoint.readdress(self.attributes(choice))

    def source_port(self, endpoint: OpenEndpoint) -> int:  # noqa: ARG002
        """InfiniBand has none."""
        return 0


# In the order in which they are tried; those of others come after ours.
_OWN: dict[str, PathControl] = {
    "mlx5.source_port_and_lag_port": SourcePortAndLagPort(LiveSourcePort()),
    "flow_label_and_lag_port": SourcePortAndLagPort(FlowLabel()),
    "mlx5.source_port": LiveSourcePort(),
    "flow_label": FlowLabel(),
    "mlx5.lag_port": LagPort(),
    "lid_path_bits": PathBits(),
}
PATH_CONTROLS: extensions.Registry[PathControl] = extensions.Registry(
    extensions.PATH_CONTROLS, "a PathControl", lambda: _OWN, extensions.is_a(PathControl)
)


def choose(device: OpenDevice) -> PathControl:
    """The first path control that works on `device`; those for UDP source ports come first.

    If none works, the result offers no choice and has the reasons.
    """
    obstacles = []
    for control in PATH_CONTROLS.values():
        obstacle = control.obstacle(device)
        if not obstacle:
            return control
        obstacles.append(f"{type(control).__name__}: {obstacle}")
    return NoPathControl("; ".join(obstacles))
