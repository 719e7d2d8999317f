"""Which path a connection takes: the one knob a RoCE v2 sender has is the UDP source port."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from c4bench.verbs.device import Device
    from c4bench.verbs.endpoint import Endpoint

FIRST_PORT = 0xC000
LAST_PORT = 0xFFFF
_PORT_BITS = 14
_LOW = 0x3FFF
_LABEL_MASK = 0xFFFFF
# The first kernel whose rxe derives the port from the label; drivers of hardware did so before.
_KERNEL_WITH_LABEL = (5, 18)


class PathControl(Protocol):
    """A way of choosing a connection's UDP source port; 0 leaves it to the QP numbers and the fabric's ECMP."""

    def works(self, device: Device) -> bool:
        """Whether this knob has an effect on `device`."""

    def flow_label(self, source_port: int) -> int:
        """The GRH flow label to connect with."""

    def source_port(self, flow_label: int, local_qp: int, remote_qp: int) -> int:
        """The port on the wire for a flow label and a pair of QPs."""

    def move(self, endpoint: Endpoint, source_port: int) -> None:
        """Move a connected, quiesced endpoint."""


class FlowLabel:
    """The GRH flow label chooses the port: RoCE v2 annex A17.9.1 with Linux's folding of 20 bits into 14."""

    def works(self, device: Device) -> bool:
        """True on Ethernet with a kernel that folds the label into the port."""
        return device.status().link_layer == "Ethernet" and kernel_version() >= _KERNEL_WITH_LABEL

    def flow_label(self, source_port: int) -> int:
        """0 for ECMP, else a non-zero label that folds to `source_port` (0xC000 to 0xFFFF, else ValueError)."""
        if not source_port:
            return 0
        if not FIRST_PORT <= source_port <= LAST_PORT:
            raise ValueError(f"source port {source_port} is outside {FIRST_PORT}..{LAST_PORT}")
        # A label of 0 would mean ECMP, so port 0xC000 needs high bits that cancel low ones.
        return source_port & _LOW or (1 << _PORT_BITS) | 1

    def source_port(self, flow_label: int, local_qp: int, remote_qp: int) -> int:
        """Fold the label; a label of 0 is derived from both QP numbers first, as Linux's `rdma_get_udp_sport` does."""
        label = flow_label or ecmp_label(local_qp, remote_qp)
        return ((label & _LOW) ^ (label >> _PORT_BITS)) | FIRST_PORT

    def move(self, endpoint: Endpoint, source_port: int) -> None:
        """Redirect the endpoint to the label of `source_port`."""
        endpoint.redirect(self.flow_label(source_port))


def ecmp_label(local_qp: int, remote_qp: int) -> int:
    """The flow label Linux makes up for a connection that was given none (`rdma_calc_flow_label`)."""
    product = local_qp * remote_qp
    product ^= product >> 20
    product ^= product >> 40
    return product & _LABEL_MASK


def kernel_version() -> tuple[int, int]:
    """Major and minor version of the running kernel."""
    major, minor = re.findall(r"\d+", platform.release())[:2]
    return int(major), int(minor)
