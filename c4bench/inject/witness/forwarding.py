"""Witnesses of a switch that forwards wrongly: datagrams of our own, and where they go."""

import contextlib
import errno
import select
import socket
import time

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.inject import interfaces
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.registry import witness
from c4bench.inject.witness.base import Aftermath, Counters, Evidence, Values
from c4bench.model.fault import FaultRequest

_ROCE_PORT = 4791
_UNUSED_PORT = 33434
_ACKNOWLEDGE, _SEND_ONLY = 0x11, 0x04
_TRIES = 20
_ANSWER_S = 5e-3
_FLOWS = 64
# What was queued before the routes changed leaves by all ports for so many looks at most: a full queue takes 7 ms.
_MEASUREMENTS_MAX = 4
_SHARE_MISROUTED = 0.95


@witness("acks_lost")
class AcksLost:
    """`acks` and `data`: shares of RoCE datagrams that a switch at the other end refuses, having nobody to take them.

    The refusal (ICMP port unreachable) is the proof that a datagram arrived. Ours are no part of any connection.
    """

    def __init__(self, request: FaultRequest) -> None:
        self._target = interfaces.examine(request.interface)
        self._healthy = False
        if not self._target.neighbour or not self._target.addresses():
            raise UnhealthyError(f"{request.where} cannot be probed: it has no neighbour or no IPv4 address")

    def before(self) -> Values:
        """In health both arrive."""
        found = self._measure()
        self._healthy = found["acks"] == found["data"] == 1.0
        return found

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (every datagram is sent after it)
        """Seen when only data arrives; the look begins with an acknowledgement, so its beginning is the evidence."""
        began_s = time.time()
        found = self._measure()
        return Evidence(found, began_s if self._healthy and found == {"acks": 0.0, "data": 1.0} else None)

    def after(self) -> Aftermath:
        """Recovered when both arrive."""
        found = self._measure()
        return Aftermath(found, found["acks"] == found["data"] == 1.0)

    def _measure(self) -> Values:
        return {
            "acks": arrived(self._target, _ACKNOWLEDGE) / _TRIES,
            "data": arrived(self._target, _SEND_ONLY) / _TRIES,
        }


@witness("port_share")
class PortShare:
    """`share` of our flows that leave by the port, of all that leave by an ECMP route; seen when about all do."""

    def __init__(self, request: FaultRequest) -> None:
        self._target = interfaces.examine(request.interface)
        routes = self._target.multipath()
        if not routes:
            raise UnhealthyError(f"{request.where} is no member of any ECMP route; see `ip route` on the switch")
        destination, *hops = routes[0].split(" nexthop ")
        self._network = destination.split()[0]
        self._devices = [hop.split()[hop.split().index("dev") + 1] for hop in hops]
        self._counters = Counters(self._target.netns)
        self._before = 1.0

    def before(self) -> Values:
        """In health a part of them."""
        self._before = self._measure()
        return {"share": self._before}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """The first evidence is the first flow, sent at once; what is still queued for the other ports leaves first."""
        began_s = time.time()
        for _ in range(_MEASUREMENTS_MAX):
            share = self._measure()
            if share >= _SHARE_MISROUTED:
                break
        return Evidence({"share": share}, began_s if self._before < _SHARE_MISROUTED <= share else None)

    def after(self) -> Aftermath:
        """Recovered when it is a part again."""
        share = self._measure()
        return Aftermath({"share": share}, share < _SHARE_MISROUTED)

    def _measure(self) -> float:
        before = self._sent()
        with namespaces.network(self._target.netns):
            for _ in range(_FLOWS):  # each from another source port
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    sock.sendto(b"c4bench", (_some_address(self._network), _UNUSED_PORT))
        time.sleep(_ANSWER_S)
        sent = {device: count - before[device] for device, count in self._sent().items()}
        return sent[self._target.interface.netdev] / max(1, sum(sent.values()))

    def _sent(self) -> dict[str, int]:
        return {device: self._counters.read(device).tx_packets for device in self._devices}


def arrived(target: InterfaceTarget, opcode: int) -> int:
    """How many of some datagrams with this RoCE opcode are refused at the other end."""
    count = 0
    with namespaces.network(target.netns):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, target.interface.netdev.encode())
        sock.setblocking(False)
        sock.connect((target.neighbour, _ROCE_PORT))
        for _ in range(_TRIES):
            with contextlib.suppress(OSError):  # what an earlier one came to
                sock.send(bytes([opcode]) + bytes(15))
            if select.select([sock], [], [], _ANSWER_S)[0]:
                count += sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
    return count


def _some_address(network: str) -> str:
    """The first address of the network."""
    first, _, _ = network.partition("/")
    return f"{first.rpartition('.')[0]}.1"
