"""ICMP echo requests (RFC 792) from one interface, so that faults are seen on an idle fabric too."""

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.inject.interfaces import InterfaceTarget, netns_of
from c4bench.model.fault import Interface

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
