"""Witnesses of forwarding faults of a switch: UDP datagrams and where they arrive."""

import errno
import select
import socket
import time

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.inject import interfaces
from c4bench.inject.interfaces import InterfaceTarget, device_of, words
from c4bench.inject.registry import witness
from c4bench.inject.witness.base import IP, Aftermath, Counters, Evidence, Values
from c4bench.model.fault import FaultRequest

_ROCE_PORT = 4791
_UNUSED_PORT = 33434
_ACKNOWLEDGE, _SEND_ONLY = 0x11, 0x04
_ANSWER_S = 5e-3
# Linux answers an address six times at once, then once a second (icmp_ratelimit). The three measurements of a lost
# acknowledgement take five answers; a switch that is silent has two more after this time.
_REST_S, _RESTS_MAX = 2.2, 2
# One acknowledgement that is missing might be lost by chance.
_ACKS_DURING = 3
_FLOWS = 64
# Packets queued before the route change still leave by all ports for at most this many measurements: a full queue
# drains in 7 ms.
_MEASUREMENTS_MAX = 4
_SHARE_MISROUTED = 0.95


@witness("acks_lost")
class AcksLost:
    """`acks` and `data`: shares of RoCE datagrams that reach the switch at the other end.

    That switch answers with ICMP port unreachable, which proves the arrival. The datagrams belong to no connection. A
    switch answers few of them: a missing acknowledgement counts only if data sent right after it is answered.
    """

    plane = IP

    def __init__(self, request: FaultRequest) -> None:
        self._target = interfaces.examine(request.interface)
        self._healthy = False
        if not self._target.neighbour or not self._target.addresses():
            raise UnhealthyError(f"{request.where} cannot be probed: it has no neighbour or no IPv4 address")

    def before(self) -> Values:
        """Measure both before the fault."""
        values, _ = self._measure(1)
        self._healthy = values["acks"] == values["data"] == 1.0
        return values

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (every datagram is sent after the onset)
        """Seen when only data arrives, at the start of the measurement, which begins with an acknowledgement."""
        values, began_s = self._measure(_ACKS_DURING)
        return Evidence(values, began_s if self._healthy and values == {"acks": 0.0, "data": 1.0} else None)

    def after(self) -> Aftermath:
        """Recovered when both arrive."""
        values, _ = self._measure(1)
        return Aftermath(values, values["acks"] == values["data"] == 1.0)

    def _measure(self, acks: int) -> tuple[Values, float]:
        """The shares of so many acknowledgements and of one data packet that arrive, and when the first was sent."""
        for rest in range(_RESTS_MAX + 1):
            time.sleep(_REST_S if rest else 0)
            began_s = time.time()
            share = sum(arrives(self._target, _ACKNOWLEDGE) for _ in range(acks)) / acks
            if arrives(self._target, _SEND_ONLY):
                return {"acks": share, "data": 1.0}, began_s
        return {"acks": share, "data": 0.0}, began_s


@witness("port_share")
class PortShare:
    """`share` of the flows of an ECMP route that leave by the port. Seen when almost all do."""

    plane = IP

    def __init__(self, request: FaultRequest) -> None:
        self._target = interfaces.examine(request.interface)
        destination, *hops = self._target.ecmp_routes()[0].split(" nexthop ")
        self._network = words(destination)[0]
        self._devices = [device_of(hop) for hop in hops]
        self._counters = Counters(self._target.netns)
        self._before = 1.0

    def before(self) -> Values:
        """Measure the share before the fault."""
        self._before = self._measure()
        return {"share": self._before}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Observed at the first flow. Packets queued for other ports leave first, so the measurement is repeated."""
        began_s = time.time()
        for _ in range(_MEASUREMENTS_MAX):
            share = self._measure()
            if share >= _SHARE_MISROUTED:
                break
        return Evidence({"share": share}, began_s if self._before < _SHARE_MISROUTED <= share else None)

    def after(self) -> Aftermath:
        """Recovered when other ports carry flows again."""
        share = self._measure()
        return Aftermath({"share": share}, share < _SHARE_MISROUTED)

    def _measure(self) -> float:
        before = self._sent()
        with namespaces.network(self._target.netns):
            for _ in range(_FLOWS):  # a new source port each
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    sock.sendto(b"c4bench", (_some_address(self._network), _UNUSED_PORT))
        time.sleep(_ANSWER_S)
        sent = {device: count - before[device] for device, count in self._sent().items()}
        return sent[self._target.interface.netdev] / max(1, sum(sent.values()))

    def _sent(self) -> dict[str, int]:
        return {device: self._counters.read(device).tx_packets for device in self._devices}


@witness("port_unused")
class PortUnused(PortShare):
    """`share` of the flows of an ECMP route that leave by the port. Seen when none does any more."""

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Observed at the first flow. Packets queued for the port leave first, so the measurement is repeated."""
        began_s = time.time()
        for _ in range(_MEASUREMENTS_MAX):
            share = self._measure()
            if not share:
                break
        return Evidence({"share": share}, began_s if self._before > share == 0.0 else None)

    def after(self) -> Aftermath:
        """Recovered when the port carries flows again."""
        share = self._measure()
        return Aftermath({"share": share}, share > 0.0)


def arrives(target: InterfaceTarget, opcode: int) -> bool:
    """Whether a datagram with this RoCE opcode reaches the other end, which answers it."""
    with namespaces.network(target.netns):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, target.interface.netdev.encode())
        sock.setblocking(False)
        sock.connect((target.neighbour, _ROCE_PORT))
        try:
            sock.send(bytes([opcode]) + bytes(15))
        except OSError:  # the link is down
            return False
        answered = select.select([sock], [], [], _ANSWER_S)[0]
        return bool(answered) and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


def _some_address(network: str) -> str:
    """The first address of the network."""
    first, _, _ = network.partition("/")
    return f"{first.rpartition('.')[0]}.1"
