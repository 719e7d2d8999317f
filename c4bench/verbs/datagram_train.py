"""How fast a NIC sends: datagrams for a queue pair of nobody, back to back, and when each has left.

No program is needed at the far end, which drops them without an answer. They take the NIC's own way to the wire, in the
traffic class of its data, so that what limits its data limits them. A send queue completes a datagram once it has left
(InfiniBand Architecture Specification, volume 1, 9.8.3), or, with software NICs, once the queue before the wire has
room.
"""

import ctypes
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyverbs.addr import AH
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from c4bench.model.fabric import Nic
from c4bench.verbs.addressing import DEFAULT_PATH, address_vector
from c4bench.verbs.device import ENUMS, Device, address_handle
from c4bench.verbs.errors import verbs
from c4bench.verbs.transport import Remote

# Ethernet, IPv4, UDP, BTH, DETH (IBTA 9.3.2), and the invariant checksum.
_HEADERS_BYTES = 14 + 20 + 8 + 12 + 8 + 4
_NOBODY, _QKEY = 0xC4B000, 0x11C4B000
_HOP_LIMIT = 64
# More than a software NIC has on its way at once, which completes them earlier.
_IN_FLIGHT = 256
_SHORTEST_S = 1e-9
# Times at which those are complete for which there is room at first.
_AT_ONCE = 2


class Sent(NamedTuple):
    """How many datagrams were complete at a time (host's clock)."""

    at_s: float
    datagrams: int


class SentTrain(NamedTuple):
    """A train: its datagrams' size on the wire, and how many of them were complete when, none at first."""

    wire_bytes: int
    sent: tuple[Sent, ...]

    @property
    def rate_bps(self) -> float:
        """The rate, bit/s, behind those that left at once; 0 for a train that is too short.

        What is complete together has found room together, as what was complete before has left.
        """
        first, last = max(_AT_ONCE, len(self.sent) // 5), len(self.sent) - 1
        if last <= first:
            return 0.0
        left = self.sent[last - 1].datagrams - self.sent[first - 1].datagrams
        return left * self.wire_bytes * 8 / max(self.sent[last].at_s - self.sent[first].at_s, _SHORTEST_S)


def send_train(nic: Nic, peer: str, train_bytes: int, within_s: float) -> SentTrain:
    """Send a train of so many bytes from a NIC to a peer's address; the rest is left out after `within_s`.

    Raises VerbsError where a verb fails, such as when the link is down.
    """
    with Device(nic, depth=2 * _IN_FLIGHT) as device, _datagrams(device, peer) as (qp, request, size):
        count = max(2, train_bytes // size)
        until_s = time.monotonic() + within_s
        posted, done, sent = 0, 0, [Sent(time.time(), 0)]
        while done < count and (left_s := until_s - time.monotonic()) > 0:
            for _ in range(min(count, done + _IN_FLIGHT) - posted):
                with verbs(device.name, "sending a datagram"):
                    qp.post_send(request)
                posted += 1
            select.select([device.event_fds[0]], [], [], left_s)
            if complete := len([one for one in device.completions() if not one.status]):
                done += complete
                sent.append(Sent(time.time(), done))
        return SentTrain(size + _HEADERS_BYTES, tuple(sent))


@contextmanager
def _datagrams(device: Device, peer: str) -> Iterator[tuple[Any, Any, int]]:
    """A queue pair, the work request that sends a datagram of full size to the peer, and its size in bytes."""
    size = device.status().active_mtu_bytes
    data = ctypes.create_string_buffer(size)
    region = device.register(ctypes.addressof(data), size)
    cap = QPCap(max_send_wr=_IN_FLIGHT, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
    try:
        with verbs(device.name, "creating a QP for datagrams"):
            qp = QP(device.pd, QPInitAttr(qp_type=ENUMS.IBV_QPT_UD, scq=device.cq, rcq=device.cq, cap=cap))
        with verbs(device.name, f"addressing {peer}"), qp:
            attributes = QPAttr(port_num=device.port_number)
            attributes.qkey = _QKEY
            qp.to_rts(attributes)
            handle = AH(device.pd, attr=_address(device, peer))
            with handle:
                request = SendWR(
                    opcode=ENUMS.IBV_WR_SEND,
                    num_sge=1,
                    sg=[SGE(ctypes.addressof(data), size, region.lkey)],
                    send_flags=ENUMS.IBV_SEND_SIGNALED,
                )
                request.set_wr_ud(handle, _NOBODY, _QKEY)
                yield qp, request, size
    finally:
        region.close()


def _address(device: Device, peer: str) -> Any:  # noqa: ANN401  (a pyverbs AHAttr)
    remote = Remote(peer if ":" in peer else f"::ffff:{peer}", _NOBODY)
    layer, own = device.status().link_layer, device.resolve_gid()
    vector = address_vector(device.nic, layer, own, remote, DEFAULT_PATH, _HOP_LIMIT, None)
    return address_handle(vector, device.port_number)
