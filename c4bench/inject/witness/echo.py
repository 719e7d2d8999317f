"""ICMP echo requests (RFC 792) from one interface, and witnesses by them: faults are seen on an idle fabric too."""

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
from typing import NamedTuple

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.inject import interfaces
from c4bench.inject.interfaces import InterfaceTarget, netns_of
from c4bench.inject.registry import witness
from c4bench.inject.witness.base import Aftermath, Evidence, Values
from c4bench.model.fault import FaultRequest, Interface

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


class Prober:
    """Probes from an interface's own address to the peer at the other end of its cable.

    Raises UnhealthyError when it has no IPv4 address or no known peer.
    """

    def __init__(self, target: InterfaceTarget) -> None:
        interface = target.interface
        addresses = target.addresses()
        self._source, self._peer = addresses[0].local if addresses else "", target.neighbour
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


# The number of probes is chosen for about 20 expected losses, between a minimum and a maximum.
_LOSSES_EXPECTED, _PROBES_MIN, _PROBES_MAX = 20, 40, 50_000
# Accepted deviation of a binomial count, in standard deviations; share of probes that a flipped bit does not damage.
_SIGMAS, _HARMLESS = 4.0, 0.02
_PROBE_BYTES = 1024
# After the revert this share of the fault's loss is accepted: probes in flight when it ended.
_RESIDUAL_LOSS = 0.05


@witness("echo_loss")
class EchoLoss:
    """`sent` and `lost` probes. Seen when the loss fits the requested probability."""

    def __init__(self, request: FaultRequest) -> None:
        probability = float(request.parameters.get("probability", 1.0))
        both = request.parameters.get("direction") == "both"
        self._probability = 1 - (1 - probability) ** 2 if both else probability
        self._count = min(_PROBES_MAX, max(_PROBES_MIN, math.ceil(_LOSSES_EXPECTED / self._probability)))
        self._gap_s = request.witness_s / self._count
        self._prober = Prober(interfaces.examine(request.interface))
        self._lost_before = 0

    def before(self) -> Values:
        """Count losses before the fault."""
        echoes = self._train()
        self._lost_before = echoes.lost
        return _counts(echoes)

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (every probe is sent after the onset)
        """Observed when the first lost probe was sent."""
        echoes = self._train()
        fits = plausible(echoes.lost, len(echoes.sent_s), self._probability) and self._lost_before < echoes.lost / 2
        return Evidence(_counts(echoes), echoes.first_lost_s if fits else None)

    def after(self) -> Aftermath:
        """Recovered when almost none is lost."""
        echoes = self._train()
        expected = self._count * self._probability
        return Aftermath(_counts(echoes), echoes.lost <= max(self._lost_before, _RESIDUAL_LOSS * expected))

    def _train(self) -> Echoes:
        return self._prober.train(self._count, _PROBE_BYTES, self._gap_s)


@witness("echo_delay")
class EchoDelay:
    """`round_trip_s`, the median. Seen when it has grown by at least half of the requested delay."""

    def __init__(self, request: FaultRequest) -> None:
        directions = 2 if request.choice("direction") == "both" else 1
        self._asked_s = request.number("delay_s") * directions
        self._gap_s = request.witness_s / _PROBES_MIN
        self._prober = Prober(interfaces.examine(request.interface))
        self._before_s = math.inf

    def before(self) -> Values:
        """Measure the round trip before the fault."""
        self._before_s = _round_trip_s(self._train())
        return {"round_trip_s": self._before_s}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Observed when the first late probe was sent."""
        echoes = self._train()
        threshold_s = self._before_s + self._asked_s / 2
        late = [answer.sent_s for answer in echoes.replies if answer.arrived_s - answer.sent_s >= threshold_s]
        seen = bool(late) and _round_trip_s(echoes) >= threshold_s
        return Evidence({"round_trip_s": _round_trip_s(echoes)}, min(late) if seen else None)

    def after(self) -> Aftermath:
        """Recovered when less than half of the delay remains."""
        left_s = _round_trip_s(self._train())
        return Aftermath({"round_trip_s": left_s}, left_s < self._before_s + self._asked_s / 2)

    def _train(self) -> Echoes:
        return self._prober.train(_PROBES_MIN, gap_s=self._gap_s)


@witness("echo_order")
class EchoOrder:
    """`overtaken`: replies that arrived before that of an earlier probe. Seen when there are more than before."""

    def __init__(self, request: FaultRequest) -> None:
        probes = math.ceil(_LOSSES_EXPECTED / request.number("probability"))
        self._count = max(_PROBES_MIN, probes)
        # Many probes must be in flight at once, or none can overtake.
        self._gap_s = request.number("delay_s") / 10
        self._prober = Prober(interfaces.examine(request.interface))
        self._before = 0

    def before(self) -> Values:
        """Count reordering before the fault."""
        self._before = count_overtaking(self._train())
        return {"overtaken": self._before}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Observed when the first overtaking reply arrived."""
        echoes = self._train()
        first = next(
            (later.arrived_s for earlier, later in pairwise(echoes.replies) if later.number > earlier.number + 1), None
        )
        count = count_overtaking(echoes)
        return Evidence({"overtaken": count}, first if count > self._before else None)

    def after(self) -> Aftermath:
        """Recovered when there are no more than before."""
        left = count_overtaking(self._train())
        return Aftermath({"overtaken": left}, left <= self._before)

    def _train(self) -> Echoes:
        return self._prober.train(self._count, gap_s=self._gap_s)


@witness("echo_size")
class EchoSize:
    """`small` and `full`: shares of short and of MTU-sized probes answered. Seen when only short ones are."""

    def __init__(self, request: FaultRequest) -> None:
        target = interfaces.examine(request.interface)
        self._full_bytes = target.mtu_bytes
        self._gap_s = request.witness_s / _PROBES_MIN / 2
        self._prober = Prober(target)
        self._healthy = False

    def before(self) -> Values:
        """Measure both before the fault."""
        small, full = self._trains()
        self._healthy = not small.lost and not full.lost
        return _shares(small, full)

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Observed when the first lost full-size probe was sent."""
        small, full = self._trains()
        seen = self._healthy and not small.lost and full.lost == len(full.sent_s)
        return Evidence(_shares(small, full), full.first_lost_s if seen else None)

    def after(self) -> Aftermath:
        """Recovered when both are answered again."""
        small, full = self._trains()
        return Aftermath(_shares(small, full), not small.lost and not full.lost)

    def _trains(self) -> tuple[Echoes, Echoes]:
        full = self._prober.train(_PROBES_MIN, self._full_bytes, self._gap_s)
        return self._prober.train(_PROBES_MIN, gap_s=self._gap_s), full


@witness("nics_dead")
class NicsDead:
    """`lost`: share of probes lost over all NICs of the host. Seen when none is answered."""

    def __init__(self, request: FaultRequest) -> None:
        self._gap_s = request.witness_s / _PROBES_MIN
        self._probers = [Prober(interfaces.examine(nic)) for nic in request.nics]
        self._lost_before = 1.0

    def before(self) -> Values:
        """Measure the loss before the fault."""
        self._lost_before, _ = self._measure()
        return {"lost": self._lost_before}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Observed when the first lost probe was sent."""
        lost, first_s = self._measure()
        return Evidence({"lost": lost}, first_s if lost == 1.0 and self._lost_before < _RESIDUAL_LOSS else None)

    def after(self) -> Aftermath:
        """Recovered when almost all are answered."""
        lost, _ = self._measure()
        return Aftermath({"lost": lost}, lost <= self._lost_before + _RESIDUAL_LOSS)

    def _measure(self) -> tuple[float, float | None]:
        trains = [prober.train(_PROBES_MIN, gap_s=self._gap_s) for prober in self._probers]
        lost = sum(train.lost for train in trains) / sum(len(train.sent_s) for train in trains)
        return lost, min((train.first_lost_s for train in trains if train.first_lost_s), default=None)


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


def _counts(echoes: Echoes) -> Values:
    return {"sent": len(echoes.sent_s), "lost": echoes.lost}


def _shares(small: Echoes, full: Echoes) -> Values:
    return {
        "small": 1 - small.lost / len(small.sent_s),
        "full": 1 - full.lost / len(full.sent_s),
    }


def _round_trip_s(echoes: Echoes) -> float:
    trips_s = [answer.arrived_s - answer.sent_s for answer in echoes.replies]
    return statistics.median(trips_s) if trips_s else math.inf
