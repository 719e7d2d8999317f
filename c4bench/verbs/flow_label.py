"""Path control by the GRH flow label, from which some drivers derive the UDP source port."""

import platform
import re
from collections.abc import Sequence
from contextlib import suppress

from c4bench.errors import C4Error
from c4bench.verbs.addressing import ETHERNET
from c4bench.verbs.packet_capture import PacketCapture
from c4bench.verbs.path import SOURCE_PORTS, PathAttributes, label_for, port_of
from c4bench.verbs.path_control import OpenDevice, OpenEndpoint
from c4bench.verbs.scratch import NOBODY, to_nobody
from c4bench.verbs.sysfs import netdev_of
from c4bench.verbs.transport import Remote

_SOFTWARE = 0xFFFFFF
# The first Linux whose driver passes the label to `rdma_get_udp_sport` when a QP is connected, by the vendor id of
# ibv_query_device: rxe (which has none), mlx5, irdma. A vendor's own driver package may do so on older kernels.
_LINUX_SINCE = {_SOFTWARE: (5, 18), 0x02C9: (5, 8), 0x8086: (5, 18)}
_ASKED_PORT = 0xEDB8
_WITHIN_S = 0.05


class FlowLabel:
    """The GRH flow label chooses the port: RoCE v2 annex A17.9.1 with Linux's folding of 20 bits into 14."""

    chooses = "UDP source port"

    def obstacle(self, device: OpenDevice) -> str:
        """See PathControl.

        A software NIC's packets can be captured on its netdev: send one to an unused address and check its source port.
        For a hardware NIC, or a netdev in another namespace, the kernel version decides.
        """
        status = device.status()
        if status.link_layer != ETHERNET:
            return f"its link layer is {status.link_layer}"
        if device.vendor == _SOFTWARE:
            # Without the netdev, or the right to capture on it, the kernel version decides.
            with suppress(C4Error):
                return _obstacle_on_wire(device)
        return _obstacle_by_kernel(device.vendor)

    def choices(self, device: OpenDevice) -> Sequence[int]:  # noqa: ARG002
        """The dynamic ports."""
        return SOURCE_PORTS

    def attributes(self, choice: int) -> PathAttributes:
        """The label that folds to the port; label 0 for ECMP."""
        return PathAttributes(flow_label=label_for(choice))

    def after_connect(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Nothing to do: the label is in the address vector."""

    def move(self, endpoint: OpenEndpoint, choice: int) -> None:
        """Change the label of the connected endpoint."""
        endpoint.readdress(self.attributes(choice))

    def source_port(self, endpoint: OpenEndpoint) -> int:
        """The port that the label folds to."""
        return port_of(endpoint.path.flow_label, *endpoint.qps)


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
