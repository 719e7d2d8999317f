"""Trains of probes, and witnesses by them: faults are seen on an idle fabric too.

A NIC with an RDMA device is probed on the path of its data: by requests to the connection manager behind another host's
NIC (`verbs.cm_echo`). Other interfaces send ICMP echo requests (RFC 792) to the other end of their cable.
"""

import contextlib
import math
import os
import select
import socket
import statistics
import struct
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.inject import interfaces
from c4bench.inject.interfaces import InterfaceTarget, netns_of
from c4bench.inject.registry import witness
from c4bench.inject.witness.base import IP, RDMA, STATE, Compared, Values
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest, Interface
from c4bench.verbs.cm_echo import RDMA_CM, CmEcho

CONNECTION_MANAGER = RDMA_CM
# Kinds of hardware whose data the kernel carries, with its other packets.
BY_KERNEL = ("rxe", "ethernet")
HEADERS_BYTES = 28  # IPv4 without options, ICMP
FRAME_BYTES = HEADERS_BYTES + 14
_ECHO, _ECHO_REPLY = 8, 0
_HEADER = struct.Struct(
    "!BBHHHI"
)  # type, code, checksum, identifier, sequence, and the probe's number, which never wraps
_STAMP = struct.Struct("=qq")
_SO_BINDTODEVICE = 25
_SO_TIMESTAMPNS = 35
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_BUFFER_BYTES = 32 << 20
_PACKET_MAX_BYTES = 1 << 16
_REPLY_TIMEOUT_S = 0.25


class EchoReply(NamedTuple):
    """The reply to a probe: its number, when the probe was sent and when the reply arrived (host's clock)."""

    number: int
    sent_s: float
    arrived_s: float


class Echoes(NamedTuple):
    """The result of a train of probes; `replies` in order of arrival."""

    sent_s: Sequence[float]
    replies: Sequence[EchoReply]

    @property
    def lost(self) -> int:
        """The number of probes without a reply."""
        return len(self.sent_s) - len({answer.number for answer in self.replies})

    @property
    def first_lost_s(self) -> float | None:
        """When the first probe without a reply was sent."""
        answered = {answer.number for answer in self.replies}
        return next((sent_s for number, sent_s in enumerate(self.sent_s) if number not in answered), None)


class Probes(Protocol):
    """Sends trains of at most `most` probes; `plane` is what carries them (see `base`)."""

    plane: str
    most: int

    def train(self, count: int, size_bytes: int = 64, gap_s: float = 0.0) -> Echoes:
        """Send `count` probes, one every `gap_s`, of `size_bytes` where they can; wait up to 0.25 s for the replies."""


def data_probes(nic: Interface, request: FaultRequest) -> Probes:
    """Probes on the path of the interface's data.

    Raises UnhealthyError where that is a NIC's own and there is no NIC of another host to probe, or no connection
    manager here: packets of the kernel would say nothing of it.
    """
    peer = next((other for other in request.peers if isinstance(nic, Nic) and other.plane == nic.plane), None)
    if isinstance(nic, Nic) and nic.device and peer and CONNECTION_MANAGER.exists():
        return RdmaProber(nic, peer)
    if interfaces.hardware(nic) not in BY_KERNEL:
        missing = f"{CONNECTION_MANAGER} (load rdma_ucm)" if peer else "a NIC of another host in its plane"
        raise UnhealthyError(f"{nic.name} cannot be probed on the path of its data without {missing}")
    return Prober(interfaces.examine(nic))


class RdmaProber:
    """Probes from a NIC to that of another host, sent by the NIC as it sends data, or in another traffic class.

    They are all of one size. The answers to them have traffic class 0.
    """

    plane = RDMA
    most = 5_000

    def __init__(self, nic: Nic, peer: Nic, traffic_class: int | None = None) -> None:
        self._ends = nic.address, peer.address
        self._traffic_class = nic.traffic_class if traffic_class is None else traffic_class

    def train(self, count: int, size_bytes: int = 64, gap_s: float = 0.0) -> Echoes:  # noqa: ARG002
        """See `Probes`."""
        with CmEcho(*self._ends, self._traffic_class) as echo:
            for number in range(count):
                echo.send(number)
                echo.receive(gap_s)
            echo.receive(_REPLY_TIMEOUT_S, lambda: len(echo.arrived_s) == count)
            replies = [EchoReply(number, echo.sent_s[number], at_s) for number, at_s in echo.arrived_s.items()]
            return Echoes([echo.sent_s[number] for number in range(count)], replies)


class Prober:
    """Probes from an interface's own address to the peer at the other end of its cable, sent by the kernel.

    Or to `peer`, an address; and in a traffic class, which those that answer keep. Raises UnhealthyError when the
    interface has no IPv4 address or no known peer.
    """

    plane = IP
    most = 50_000

    def __init__(self, target: InterfaceTarget, peer: str = "", traffic_class: int = 0) -> None:
        interface = target.interface
        addresses = target.addresses()
        self._source, self._peer = addresses[0].local if addresses else "", peer or target.neighbour
        self._traffic_class = traffic_class
        if not self._source or not self._peer:
            missing = "neighbour or gateway" if self._source else "IPv4 address"
            raise UnhealthyError(f"{interface.name} cannot be probed: it has no {missing}")
        self._interface = interface
        self._identifier = os.getpid() & 0xFFFF
        self._next = 0

    def train(self, count: int, size_bytes: int = 64, gap_s: float = 0.0) -> Echoes:
        """Send `count` IP packets of `size_bytes`, one every `gap_s`; wait up to 0.25 s for the replies."""
        first, self._next = self._next, self._next + count
        with _open_socket(self._interface, self._source) as sock:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self._traffic_class)
            receiver = _ReplyReceiver(sock, self._peer, self._identifier, first)
            padding = bytes(size_bytes - HEADERS_BYTES - 4)
            for number in range(first, first + count):
                receiver.sent_s.append(time.time())
                self._send(sock, number, padding)
                receiver.receive(gap_s)
            until_s = time.monotonic() + _REPLY_TIMEOUT_S
            while len(receiver.replies) < count and (left_s := until_s - time.monotonic()) > 0:
                receiver.receive(left_s, enough=count)
        return Echoes(receiver.sent_s, receiver.replies)

    def _send(self, sock: socket.socket, number: int, padding: bytes) -> None:
        fields = (_ECHO, 0, 0, self._identifier, number & 0xFFFF, number)
        header = _HEADER.pack(*fields[:2], checksum(_HEADER.pack(*fields)), *fields[3:])
        with contextlib.suppress(OSError):  # queue full, packet too long or link down: it counts as lost
            sock.sendto(header + padding, (self._peer, 0))


class _ReplyReceiver:
    """Receives the replies to one train."""

    def __init__(self, sock: socket.socket, peer: str, identifier: int, first: int) -> None:
        self.sent_s: list[float] = []
        self.replies: list[EchoReply] = []
        self._socket, self._peer, self._identifier, self._first = sock, peer, identifier, first

    def receive(self, wait_s: float, enough: int | None = None) -> None:
        """Receive for `wait_s`, or until there are `enough` replies."""
        until_s = time.monotonic() + wait_s
        while wait_s > 0 and len(self.replies) != enough and select.select([self._socket], [], [], wait_s)[0]:
            self._read_socket()
            wait_s = until_s - time.monotonic()

    def _read_socket(self) -> None:
        with contextlib.suppress(OSError):  # nothing more to read, or an ICMP error
            while True:
                data, ancillary, _, (peer, _) = self._socket.recvmsg(_PACKET_MAX_BYTES, 64)
                offset = (data[0] & 0xF) * 4
                kind, _, _, identifier, _, number = _HEADER.unpack_from(data, offset)
                index = number - self._first
                ours = kind == _ECHO_REPLY and (peer, identifier) == (self._peer, self._identifier)
                # A reply that differs from the request does not count.
                if ours and 0 <= index < len(self.sent_s) and not any(data[offset + _HEADER.size :]):
                    seconds, nanoseconds = _STAMP.unpack(ancillary[0][2][: _STAMP.size])
                    self.replies.append(EchoReply(index, self.sent_s[index], seconds + nanoseconds / 1e9))


def _open_socket(interface: Interface, source: str) -> socket.socket:
    with namespaces.network(netns_of(interface)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, interface.netdev.encode())
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    # Never fragment: a packet larger than the path MTU must be lost.
    sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
    sock.bind((source, 0))
    return sock


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071) of an even number of bytes; zeros behind them do not change it."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - ((total + (total >> 16)) & 0xFFFF)


# The number of probes is chosen for about 20 expected losses, between a minimum and the prober's maximum.
_LOSSES_EXPECTED, _PROBES_MIN = 20, 40
# Accepted deviation of a binomial count, in standard deviations; share of probes that a flipped bit does not damage.
_SIGMAS, _HARMLESS = 4.0, 0.02
_PROBE_BYTES = 1024
# After the revert this share of the fault's loss is accepted: probes in flight when it ended.
_RESIDUAL_LOSS = 0.05


@witness("echo_loss")
def echo_loss(request: FaultRequest) -> Compared[Echoes]:
    """`sent` and `lost` probes. Seen, from the first lost one on, when the loss fits the requested probability."""
    either = float(request.parameters.get("probability", 1.0))
    probability = 1 - (1 - either) ** 2 if request.parameters.get("direction") == "both" else either
    prober = data_probes(request.interface, request)
    count = min(prober.most, max(_PROBES_MIN, math.ceil(_LOSSES_EXPECTED / probability)))

    def seen(before: Echoes, during: Echoes) -> float | None:
        fits = plausible(during.lost, len(during.sent_s), probability) and before.lost < during.lost / 2
        return during.first_lost_s if fits else None

    return Compared(
        lambda: prober.train(count, _PROBE_BYTES, request.witness_s / count),
        lambda echoes: {"sent": len(echoes.sent_s), "lost": echoes.lost},
        seen,
        lambda before, after: after.lost <= max(before.lost, _RESIDUAL_LOSS * count * probability),
        prober.plane,
    )


@witness("echo_delay")
def echo_delay(request: FaultRequest) -> Compared[Echoes]:
    """`round_trip_s`, the median. Seen, from the first late probe on, when it has grown by half of the delay."""
    half_s = request.number("delay_s") * (2 if request.choice("direction") == "both" else 1) / 2
    prober = data_probes(request.interface, request)

    def seen(before: Echoes, during: Echoes) -> float | None:
        threshold_s = _round_trip_s(before) + half_s
        late = [answer.sent_s for answer in during.replies if answer.arrived_s - answer.sent_s >= threshold_s]
        return min(late) if late and _round_trip_s(during) >= threshold_s else None

    return Compared(
        lambda: prober.train(_PROBES_MIN, gap_s=request.witness_s / _PROBES_MIN),
        lambda echoes: {"round_trip_s": _round_trip_s(echoes)},
        seen,
        lambda before, after: _round_trip_s(after) < _round_trip_s(before) + half_s,
        prober.plane,
    )


@witness("echo_order")
def echo_order(request: FaultRequest) -> Compared[Echoes]:
    """`overtaken`: replies that arrived before that of an earlier probe. Seen when there are more than before."""
    prober = data_probes(request.interface, request)
    count = min(prober.most, max(_PROBES_MIN, math.ceil(_LOSSES_EXPECTED / request.number("probability"))))
    # Many probes must be in flight at once, or none can overtake.
    gap_s = request.number("delay_s") / 10

    def seen(before: Echoes, during: Echoes) -> float | None:
        pairs = pairwise(during.replies)
        first_s = next((later.arrived_s for earlier, later in pairs if later.number > earlier.number + 1), None)
        return first_s if count_overtaking(during) > count_overtaking(before) else None

    return Compared(
        lambda: prober.train(count, gap_s=gap_s),
        lambda echoes: {"overtaken": count_overtaking(echoes)},
        seen,
        lambda before, after: count_overtaking(after) <= count_overtaking(before),
        prober.plane,
    )


class _Sizes(NamedTuple):
    """Trains of probes of the MTU's size, and of short ones; and the path MTU of a NIC that carries its data itself."""

    full: Echoes
    small: Echoes
    active_bytes: int = 0

    @property
    def answered(self) -> bool:
        """Whether every probe was."""
        return not self.small.lost and not self.full.lost

    @property
    def values(self) -> Values:
        """What is reported of it."""
        active = {"active_bytes": float(self.active_bytes)} if self.active_bytes else {}
        return {"small": _answered(self.small), "full": _answered(self.full)} | active


@witness("echo_size")
def echo_size(request: FaultRequest) -> Compared[_Sizes]:
    """`small` and `full`: shares of short and of MTU-sized probes answered. Seen when only short ones are.

    Probes are the kernel's. A NIC that sends RDMA by itself must also have a smaller path MTU than before.
    """
    target = interfaces.examine(request.interface)
    gap_s = request.witness_s / _PROBES_MIN / 2
    prober = Prober(target)
    by_kernel = interfaces.hardware(request.interface) in BY_KERNEL

    def measure() -> _Sizes:
        full = prober.train(_PROBES_MIN, target.mtu_bytes, gap_s)
        small = prober.train(_PROBES_MIN, gap_s=gap_s)
        return _Sizes(full, small, 0 if by_kernel else _active_mtu_bytes(request.interface.device))

    def seen(before: _Sizes, during: _Sizes) -> float | None:
        only_full = not during.small.lost and during.full.lost == len(during.full.sent_s)
        smaller = by_kernel or during.active_bytes < before.active_bytes
        return during.full.first_lost_s if before.answered and only_full and smaller else None

    return Compared(
        measure,
        lambda sizes: sizes.values,
        seen,
        lambda before, after: after.answered and after.active_bytes >= before.active_bytes,
        IP if by_kernel else f"{IP} and {STATE}",
    )


def _active_mtu_bytes(device: str) -> int:
    """The largest path MTU that the NIC's RDMA port offers now."""
    from c4bench.verbs.device import active_mtu_bytes  # noqa: PLC0415  (pyverbs, which few witnesses need)

    return active_mtu_bytes(device, 1)


@witness("nics_dead")
def nics_dead(request: FaultRequest) -> Compared[list[Echoes]]:
    """`lost`: share of probes lost over all NICs of the host. Seen when none is answered, and almost all were."""
    probers = [data_probes(nic, request) for nic in request.nics]

    def seen(before: list[Echoes], during: list[Echoes]) -> float | None:
        dead = _lost(during) == 1.0 and _lost(before) < _RESIDUAL_LOSS
        return min((train.first_lost_s for train in during if train.first_lost_s), default=None) if dead else None

    return Compared(
        lambda: [prober.train(_PROBES_MIN, gap_s=request.witness_s / _PROBES_MIN) for prober in probers],
        lambda trains: {"lost": _lost(trains)},
        seen,
        lambda before, after: _lost(after) <= _lost(before) + _RESIDUAL_LOSS,
        " and ".join(sorted({prober.plane for prober in probers})),
    )


def plausible(lost: int, sent: int, probability: float) -> bool:
    """Whether `probability` explains the number of losses; never for no loss."""
    expected = sent * probability
    spread = _SIGMAS * math.sqrt(expected * (1 - probability))
    return lost > 0 and expected * (1 - _HARMLESS) - spread <= lost <= expected + spread


def count_overtaking(echoes: Echoes) -> int:
    """The number of replies that arrived after one with a larger number."""
    newest, count = -1, 0
    for answer in echoes.replies:
        count += answer.number < newest
        newest = max(newest, answer.number)
    return count


def _answered(echoes: Echoes) -> float:
    return 1 - echoes.lost / len(echoes.sent_s)


def _lost(trains: Sequence[Echoes]) -> float:
    return sum(train.lost for train in trains) / sum(len(train.sent_s) for train in trains)


def _round_trip_s(echoes: Echoes) -> float:
    trips_s = [answer.arrived_s - answer.sent_s for answer in echoes.replies]
    return statistics.median(trips_s) if trips_s else math.inf
