"""Packets that a NIC sends itself, from a queue pair, as it sends data, for switches to count.

Switches may treat RDMA's packets otherwise than those that only look like them, for instance by marks that NICs set for
adaptive routing, or by the IPv6 flow label. These packets are a write to a queue pair of nobody, which the NIC that
they reach drops without an answer. They cannot be made to expire at a switch: the kernel sets the hop limit of a
connection by its own route, whatever is asked for.
"""

import ctypes
import time

from c4bench.errors import C4Error
from c4bench.model.fabric import Nic
from c4bench.verbs.device import Device
from c4bench.verbs.transport import BRISK, Remote, TransportProfile

# A retransmission of an unanswered write comes after 67 ms at the earliest; the packets have long left by then.
_SENT_S = 0.02


def send_burst_by_qp(nic: Nic, destination: str, source_port: int, qp: int, count: int, traffic_class: int) -> None:
    """Send `count` packets of full size from a source port to a queue pair at an address, of which there must be none.

    Raises C4Error where the device cannot choose source ports.
    """
    profile = TransportProfile("burst", BRISK.timeout, 0, BRISK.rnr_retries, traffic_class=traffic_class)
    with Device(nic, depth=16) as device:
        if not device.paths.choices(device):
            raise C4Error(f"{nic.name}: the source ports of its packets cannot be chosen")
        length = count * device.status().active_mtu_bytes
        data = ctypes.create_string_buffer(length)
        address = ctypes.addressof(data)
        region = device.register(address, length)
        remote = Remote(_gid(destination), qp, mtu_bytes=device.status().active_mtu_bytes)
        try:
            with device.connection(profile, 1, 1) as endpoint:
                endpoint.connect(remote, source_port)
                endpoint.write((address, region.lkey), (0, 0), length)
                time.sleep(_SENT_S)
        finally:
            region.close()


def _gid(address: str) -> str:
    """The GID of an IP address."""
    return address if ":" in address else f"::ffff:{address}"
