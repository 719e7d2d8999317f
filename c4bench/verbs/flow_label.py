"""The GRH flow label as a knob: it becomes the UDP source port, where the driver puts it there."""

from __future__ import annotations

import platform
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from c4bench.errors import C4Error
from c4bench.verbs.addressing import ETHERNET
from c4bench.verbs.discovery import netdev_of
from c4bench.verbs.packet_capture import PacketCapture
from c4bench.verbs.path import SOURCE_PORTS, PathAttributes, label_for, port_of
from c4bench.verbs.scratch import to_nobody

if TYPE_CHECKING:
    from collections.abc import Sequence

    from c4bench.verbs.device import Device
    from c4bench.verbs.endpoint import Endpoint

_SOFTWARE = 0xFFFFFF
# The first Linux whose driver hands the label to `rdma_get_udp_sport` when a QP is connected, by the vendor identity of
# ibv_query_device: rxe (which has none), mlx5, irdma. A vendor's own driver package may do so on older kernels.
_LINUX_SINCE = {_SOFTWARE: (5, 18), 0x02C9: (5, 8), 0x8086: (5, 18)}
_ASKED_PORT = 0xEDB8
_WITHIN_S = 0.05


class FlowLabel:
    """The GRH flow label chooses the port: RoCE v2 annex A17.9.1 with Linux's folding of 20 bits into 14."""

    chooses = "UDP source port"

    def obstacle(self, device: Device) -> str:
        """See PathControl.

        A software NIC's packets can be read off its netdev: one is sent, to nobody, and looked at. A hardware NIC's
        cannot, nor can those of a NIC whose netdev is out of reach; there the driver's history decides.
        """
        status = device.status()
        if status.link_layer != ETHERNET:
            return f"its link layer is {status.link_layer}"
        if device.vendor == _SOFTWARE:
            # Without a netdev of that name here, or the right to listen on it, history has to do.
            with suppress(C4Error):
                return _seen(device)
        return _recorded(device.vendor)

    def choices(self, device: Device) -> Sequence[int]:  # noqa: ARG002
        """The dynamic ports."""
        return SOURCE_PORTS

    def way(self, choice: int) -> PathAttributes:
        """A label that folds to the port; label 0 for ECMP."""
        return PathAttributes(flow_label=label_for(choice))

    def settle(self, endpoint: Endpoint, choice: int) -> None:
        """Nothing is left to do: the label is in the address vector."""

    def move(self, endpoint: Endpoint, choice: int) -> None:
        """Give the live connection another label."""
        endpoint.readdress(self.way(choice))

    def source_port(self, endpoint: Endpoint) -> int:
        """The fold of the label."""
        return port_of(endpoint.way.flow_label, *endpoint.qps)


def _seen(device: Device) -> str:
    netdev = netdev_of(device.name, device.port_number)
    if not netdev:
        raise C4Error(f"{device.name}: its netdev is not known here")
    with PacketCapture(netdev) as tap, to_nobody(device, PathAttributes(flow_label=label_for(_ASKED_PORT))) as endpoint:
        endpoint.probe()
        ports = tap.source_ports(endpoint.qp_num, _WITHIN_S)
    if not ports:
        raise C4Error(f"{device.name}: its packets are not seen on {netdev}")
    wrong = ports - {_ASKED_PORT}
    return f"asked for UDP source port {_ASKED_PORT}, it sent from {wrong.pop()}" if wrong else ""


def _recorded(vendor: int) -> str:
    since = _LINUX_SINCE.get(vendor)
    if since is None:
        return f"it is not known whether the driver of vendor {vendor:#x} heeds the flow label"
    running = kernel_version()
    return "" if running >= since else f"its driver heeds the flow label since Linux {since[0]}.{since[1]}"


def kernel_version() -> tuple[int, int]:
    """Major and minor version of the running kernel."""
    major, minor = re.findall(r"\d+", platform.release())[:2]
    return int(major), int(minor)
