"""Capture outgoing RoCE v2 packets on a network interface."""

import ipaddress
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from c4bench.errors import C4Error
from c4bench.verbs.probe import ROCE_PORT
from c4bench.verbs.transport import Remote

_ETH_P_ALL = 0x0003
_OUTGOING = 4
_UDP = 17
_UDP_BYTES = 8
# IPv6 header, UDP header and base transport header.
_SNAPLEN = 40 + 8 + 12


class Sent(NamedTuple):
    """A captured packet: IP addresses, UDP source port, destination QP and opcode of its BTH, IP's traffic class."""

    source: str
    destination: str
    source_port: int
    qp: int
    opcode: int
    traffic_class: int


class PacketCapture:
    """A packet socket on `netdev`. It sees packets of software NICs, not those that hardware generates.

    Raises C4Error if the interface does not exist or this process may not capture on it (CAP_NET_RAW).
    """

    def __init__(self, netdev: str) -> None:
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        except OSError as error:
            raise C4Error(f"cannot listen on {netdev}: {error.strerror}; run as root") from error
        try:
            self._socket.bind((netdev, _ETH_P_ALL))
        except OSError as error:
            self._socket.close()
            raise C4Error(f"cannot listen on {netdev}: {error.strerror}") from error
        self._socket.setblocking(False)

    def poll(self) -> list[Sent]:
        """The RoCE v2 packets sent since the last call, as far as the socket's buffer could hold them."""
        return list(self._packets())

    def _packets(self) -> Iterator[Sent]:
        with suppress(BlockingIOError):
            while True:
                data, (_, _, kind, *_) = self._socket.recvfrom(_SNAPLEN)
                packet = parse(data) if kind == _OUTGOING else None
                if packet:
                    yield packet

    def source_ports(self, to: Remote, timeout_s: float) -> set[int]:
        """The UDP source ports of packets to a QP; waits for the first packet, at most `timeout_s`.

        QPs of other NICs have the same numbers, so the address counts too.
        """
        address = ipaddress.IPv6Address(to.gid)
        wanted = (str(address.ipv4_mapped or address), to.qp)
        deadline_s = time.monotonic() + timeout_s
        while True:
            ports = {packet.source_port for packet in self._packets() if (packet.destination, packet.qp) == wanted}
            left_s = deadline_s - time.monotonic()
            if ports or left_s <= 0:
                return ports
            select.select([self._socket], [], [], left_s)

    def close(self) -> None:
        """Stop capturing. May be called again."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def parse(data: bytes) -> Sent | None:
    """Parse a packet from its IP header on; None if it is not RoCE v2 or has IPv6 extension headers."""
    version = data[0] >> 4 if data else 0
    if version == 4:
        header, protocol, addresses = (data[0] & 15) * 4, data[9:10], (data[12:16], data[16:20])
        traffic_class = int.from_bytes(data[1:2])
    elif version == 6:
        header, protocol, addresses = 40, data[6:7], (data[8:24], data[24:40])
        traffic_class = int.from_bytes(data[:2]) >> 4 & 0xFF
    else:
        return None
    udp, base = data[header : header + _UDP_BYTES], data[header + _UDP_BYTES :]
    if protocol != bytes([_UDP]) or len(base) < 8 or int.from_bytes(udp[2:4]) != ROCE_PORT:
        return None
    source, destination = (str(ipaddress.ip_address(address)) for address in addresses)
    return Sent(source, destination, int.from_bytes(udp[:2]), int.from_bytes(base[5:8]), base[0], traffic_class)
