"""Probes that expire on their way: which switch each reaches, from an ordinary socket with the data flows' 5-tuple.

The extension of an ICMP error may name the interface that a packet came in by (RFC 4884, RFC 5837). Linux sends it with
the setting `icmp_errors_extension_mask`; several makes of switches do so for interfaces that have no address of their
own.
"""

import contextlib
import ipaddress
import math
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from c4bench.errors import C4Error
from c4bench.model.fabric import HopAnswer, HopProbe, Nic

ROCE_PORT = 4791
# Nothing listens here (the first port of traceroute), so a destination answers "port unreachable".
CLOSED_PORT = 33434
ATTEMPTS = 4
_MARK = b"c4bench probe"
# A RoCE packet's first header (BTH, IBTA 9.2): opcode, flags, partition key, destination QP, acknowledge, and in two
# parts the packet sequence number.
_BTH = struct.Struct(">BBHIBBH")
_WRITE_ONLY, _ANY_PARTITION = 0x0A, 0xFFFF
# What is read of quoted data: that header, if there is one, and the mark of a call.
_QUOTED_BYTES = _BTH.size + len(_MARK) + 4
_AGAIN_S = 1e-4
_GATHERED_S = 1e-3
_TIME_EXCEEDED = {4: 11, 6: 3}
# ee_errno, ee_origin, ee_type, ee_code, ee_info, and where an extension begins and whether it is invalid
# (linux/errqueue.h); the offender's sockaddr follows at byte 16.
_EXTENDED_ERROR = struct.Struct("=IBBBxIHBx")
_RECVERR4, _RECVERR6, _RECVTTL = 11, 25, 12
# IP_RECVERR_RFC4884, IPV6_RECVERR_RFC4884: since Linux 5.9.
_EXTENSIONS4, _EXTENSIONS6 = 26, 31
_INT = struct.Struct("=i")


class _Family(NamedTuple):
    """What differs by IP version: socket family, option level, options, where an error has the offender's address."""

    family: int
    level: int
    ttl: int
    traffic_class: int
    receive_ttl: int
    receive_errors: int
    receive_extensions: int
    offender: slice


_FAMILIES = {
    4: _Family(
        socket.AF_INET,
        socket.IPPROTO_IP,
        socket.IP_TTL,
        socket.IP_TOS,
        _RECVTTL,
        _RECVERR4,
        _EXTENSIONS4,
        slice(20, 24),
    ),
    6: _Family(
        socket.AF_INET6,
        socket.IPPROTO_IPV6,
        socket.IPV6_HOPLIMIT,
        socket.IPV6_TCLASS,
        socket.IPV6_RECVHOPLIMIT,
        _RECVERR6,
        _EXTENSIONS6,
        slice(24, 40),
    ),
}


class IcmpError(NamedTuple):
    """An ICMP error: its sender, whether it is Time Exceeded, and where its extension begins (0 for none)."""

    sender: str
    expired: bool
    extension_at: int = 0


def send_probes(
    nic: Nic,
    probes: Sequence[HopProbe],
    timeout_s: float,
    *,
    rate_pps: float = math.inf,
    to_port: int = ROCE_PORT,
    traffic_class: int = 0,
    qps: Sequence[int] = (),
) -> list[HopAnswer]:
    """The answer to each probe from `nic`; no two probes may have the same destination and source port.

    The answer is that of the switch at which the probe expired, or of its destination. A probe is silent if none of
    four attempts within `timeout_s` is answered, or if a switch refuses to forward it. A NIC drops probes to the RDMA
    port that reach it. At most `rate_pps` probes are sent per second. `traffic_class` is IP's, all eight bits, so that
    switches queue probes with the data. With `qps`, the number of a queue pair for each probe, they are RoCE packets
    for these as far as switches look; a NIC that one reaches drops it, since its checksum is wrong. Raises C4Error if
    the sockets cannot be opened.
    """
    prober = _Prober(nic, probes, to_port, RateLimiter(rate_pps), traffic_class, qps)
    try:
        for _ in range(ATTEMPTS):
            prober.attempt(timeout_s / ATTEMPTS)
    finally:
        prober.close()
    return [prober.answers.get(_flow(probe), HopAnswer()) for probe in probes]


def send_bursts(
    nic: Nic, destination: str, bursts: Sequence[tuple[int, int, int]], rate_pps: float, traffic_class: int = 0
) -> None:
    """Send packets with the 5-tuple of data flows for switches to count: `count` for each (source port, hops, count).

    They expire after `hops` hops. `traffic_class` is as for `send_probes`. Raises C4Error if the sockets cannot be
    opened.
    """
    pacer = RateLimiter(rate_pps)
    for port, hops, count in bursts:
        with open_sender(nic, port, traffic_class, answers=False) as sender:
            for _ in range(count):
                pacer.wait()
                send_waiting(sender, HopProbe(destination, port, hops), _MARK)


class RateLimiter:
    """Limits a rate to `rate_pps` per second."""

    def __init__(self, rate_pps: float) -> None:
        self._gap_s = 1 / rate_pps
        self._due_s = 0.0

    def wait(self) -> None:
        """Wait until the next packet may be sent."""
        if not self._gap_s:
            return
        now = time.monotonic()
        # Sleep only for longer waits: sleeping between any two packets would cost more than sending them.
        if self._due_s - now > _GATHERED_S:
            time.sleep(self._due_s - now)
        self._due_s = max(self._due_s, now) + self._gap_s


# Destination and source port.
_Flow = tuple[str, int]


class _Prober:
    """Probes from one NIC, with one socket for each source port; `answers` are those that came."""

    def __init__(
        self,
        nic: Nic,
        probes: Sequence[HopProbe],
        to_port: int,
        pacer: RateLimiter,
        traffic_class: int,
        qps: Sequence[int] = (),
    ) -> None:
        self.answers: dict[_Flow, HopAnswer] = {}
        self._unanswered = {_flow(probe): probe for probe in probes}
        if len(self._unanswered) < len(probes):
            raise ValueError("two probes have the same destination and source port")
        self._qps = dict(zip(map(_flow, probes), qps, strict=True)) if qps else {}
        self._to_port, self._pacer = to_port, pacer
        # An answer that quotes the packet's data shows which call it belongs to.
        self._mark = _MARK + os.urandom(4)
        self._sockets: dict[int, socket.socket] = {}
        self._poller = select.poll()
        try:
            for port in dict.fromkeys(probe.source_port for probe in probes):
                self._sockets[port] = open_sender(nic, port, traffic_class)
                self._poller.register(self._sockets[port], select.POLLERR)
        except C4Error:
            self.close()
            raise
        self._by_fd = {opened.fileno(): opened for opened in self._sockets.values()}

    def attempt(self, wait_s: float) -> None:
        """Send every probe that has no answer yet, and wait so long for answers after the last one."""
        for flow, probe in list(self._unanswered.items()):
            if flow in self._unanswered:
                self._pacer.wait()
                self._send(probe)
                self._collect(0.0)
        until_s = time.monotonic() + wait_s
        while self._unanswered and (left_s := until_s - time.monotonic()) > 0:
            self._collect(left_s)

    def _send(self, probe: HopProbe) -> None:
        sender = self._sockets[probe.source_port]
        # The answer to another probe of this socket makes its next send fail, too.
        sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        try:
            # A full queue only costs this attempt.
            try_send(sender, probe, self._to_port, self._data(probe))
        except C4Error:
            # No route or no carrier counts as a switch that does not answer.
            return

    def _data(self, probe: HopProbe) -> bytes:
        if not self._qps:
            return self._mark
        # Another packet of a connection each time: a switch may send a flow's packets different ways.
        number = int.from_bytes(os.urandom(3))
        header = _WRITE_ONLY, 0, _ANY_PARTITION, self._qps[_flow(probe)], 0, number >> 16, number & 0xFFFF
        return _BTH.pack(*header) + self._mark

    def _collect(self, wait_s: float) -> None:
        for fd, _ in self._poller.poll(wait_s * 1000):
            while (read := _read(self._by_fd[fd], self._mark)) is not None:
                flow, error, hop, ttl = read
                if self._unanswered.pop(flow, None) and (error.expired or error.sender == flow[0]):
                    self.answers[flow] = HopAnswer(hop, ttl)

    def close(self) -> None:
        """Close all sockets."""
        for opened in self._sockets.values():
            opened.close()


def _flow(probe: HopProbe) -> _Flow:
    return str(ipaddress.ip_address(probe.destination)), probe.source_port


def open_sender(nic: Nic, port: int, traffic_class: int, *, answers: bool = True) -> socket.socket:
    """A socket that sends from a NIC and source port. Raises C4Error if it cannot be opened.

    Without `answers` it ignores ICMP errors, any of which would make its next send fail if nobody reads it.
    """
    # Do not connect: Linux gives a connected socket's packets a random flow hash, which a software switch on the same
    # kernel would use for ECMP instead of that of the 5-tuple.
    family = _family(nic.address)
    opened = socket.socket(family.family, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, nic.netdev.encode())
        opened.setsockopt(family.level, family.receive_errors, answers)
        opened.setsockopt(family.level, family.receive_ttl, 1)
        opened.setsockopt(family.level, family.traffic_class, traffic_class)
        with contextlib.suppress(OSError):  # older kernels do not know the option
            opened.setsockopt(family.level, family.receive_extensions, 1)
        opened.bind((nic.address, port))
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise C4Error(f"cannot probe from {nic.name} ({nic.address} on {nic.netdev}, port {port}): {error}") from error
    return opened


def try_send(sender: socket.socket, probe: HopProbe, to_port: int, data: bytes) -> bool:
    """Send one packet; return False if the socket's queue is full. Raises C4Error if it cannot be sent."""
    family = _family(probe.destination)
    limit = [(family.level, family.ttl, _INT.pack(probe.ttl))]
    try:
        sender.sendmsg([data], limit, 0, (probe.destination, to_port))
    except BlockingIOError:
        return False
    except OSError as error:
        raise C4Error(f"cannot send to {probe.destination}: {error}") from error
    return True


def send_waiting(sender: socket.socket, probe: HopProbe, data: bytes) -> None:
    """Send one packet to the RDMA port, after a full queue has room. Raises C4Error if it cannot be sent."""
    while not try_send(sender, probe, ROCE_PORT, data):
        # What was not sent is not lost.
        time.sleep(_AGAIN_S)


def _read(sock: socket.socket, mark: bytes) -> tuple[_Flow, IcmpError, str, int] | None:
    """The next answer to a probe with this mark: its flow, the error, its hop and its TTL; None for no more.

    The hop is the incoming interface where the answer names it, else the sender.
    """
    while True:
        try:
            quoted, ancillary, _, probed = sock.recvmsg(1024, 1024, socket.MSG_ERRQUEUE)
        except OSError:
            return None
        # RFC 792 switches quote no data: their late answers to an earlier call cannot be told apart. RFC 4884 switches
        # fill what they quote with zeros.
        error = None if quoted and mark not in quoted[:_QUOTED_BYTES] else parse_error(ancillary)
        if error is not None:
            extension = quoted[error.extension_at :] if error.extension_at else b""
            hop = incoming_interface(extension).hop(error.sender)
            return (probed[0], sock.getsockname()[1]), error, hop, _ttl(ancillary)


def parse_error(ancillary: Sequence[tuple[int, int, bytes]]) -> IcmpError | None:
    """The ICMP error of a message from a socket's error queue; None if it did not come from the network.

    Its `sock_extended_err` is described in ip(7) and ipv6(7).
    """
    for level, kind, data in ancillary:
        version = {(socket.IPPROTO_IP, _RECVERR4): 4, (socket.IPPROTO_IPV6, _RECVERR6): 6}.get((level, kind))
        if version:
            _, origin, icmp_type, _, _, extension_at, invalid = _EXTENDED_ERROR.unpack_from(data)
            sender = str(ipaddress.ip_address(data[_FAMILIES[version].offender]))
            expired = icmp_type == _TIME_EXCEEDED[version]
            return IcmpError(sender, expired, 0 if invalid else extension_at) if origin in {2, 3} else None
    return None


def _ttl(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    kinds = {(family.level, family.ttl) for family in _FAMILIES.values()}
    return next((int(_INT.unpack_from(data)[0]) for level, kind, data in ancillary if (level, kind) in kinds), 0)


def _family(address: str) -> _Family:
    return _FAMILIES[ipaddress.ip_address(address).version]


_HEADER = struct.Struct("!BxH")
_OBJECT = struct.Struct("!HBB")
_INDEX = struct.Struct("!I")
_ADDRESS = struct.Struct("!Hxx")
_VERSION = 2
_INTERFACE = 2
# C-type: the role in the two highest bits (0 for the incoming interface), then what follows, in this order.
_ROLE, _HAS_INDEX, _HAS_ADDRESS, _HAS_NAME = 0xC0, 0x08, 0x04, 0x02
# Bytes of an address by its family number.
_SIZES = {1: 4, 2: 16}


class IncomingInterface(NamedTuple):
    """An interface of a switch: its address, its name and its number; "" and 0 where they are not given."""

    address: str = ""
    name: str = ""
    number: int = 0

    def hop(self, sender: str) -> str:
        """What to call the link that ends here: by its own address, else by the `sender` and the interface."""
        which = self.name or (str(self.number) if self.number else "")
        return self.address or (f"{sender}%{which}" if which else sender)


def incoming_interface(extension: bytes) -> IncomingInterface:
    """The incoming interface that an extension structure names; all empty if it names none or is malformed."""
    try:
        return _interface(extension)
    except (struct.error, UnicodeDecodeError, ValueError):
        return IncomingInterface()


def _interface(extension: bytes) -> IncomingInterface:
    version, _ = _HEADER.unpack_from(extension)
    at = _HEADER.size
    while version >> 4 == _VERSION and at < len(extension):
        size, kind, form = _OBJECT.unpack_from(extension, at)
        if not _OBJECT.size <= size <= len(extension) - at:
            break
        if kind == _INTERFACE and not form & _ROLE:
            return _parsed(extension[at + _OBJECT.size : at + size], form)
        at += size
    return IncomingInterface()


def _parsed(body: bytes, form: int) -> IncomingInterface:
    address, name, number, at = "", "", 0, 0
    if form & _HAS_INDEX:
        (number,) = _INDEX.unpack_from(body, at)
        at += _INDEX.size
    if form & _HAS_ADDRESS:
        (family,) = _ADDRESS.unpack_from(body, at)
        at += _ADDRESS.size
        size = _SIZES.get(family, 0)
        address = str(ipaddress.ip_address(body[at : at + size]))
        at += size
    if form & _HAS_NAME:
        name = body[at + 1 : at + body[at : at + 1].ljust(1, b"\0")[0]].rstrip(b"\0").decode()
    return IncomingInterface(address, name, number)
