"""Packet trains: the time that packets take that were sent back to back tells the rate of the narrowest hop.

That is their dispersion (Dovrolis et al., "Packet-dispersion techniques and a capacity-estimation methodology", 2004).
"""

import fcntl
import ipaddress
import random
import socket
import struct
import time
from collections.abc import Collection
from typing import NamedTuple

from c4bench.errors import C4Error
from c4bench.model.fabric import Nic, Train

# Size of the largest packets, the path MTU of RoCE.
_MOST_BYTES = 4096
_HEADERS_BYTES = {4: 28, 6: 48}
_SIOCGIFMTU = 0x8921
_INTERFACE = struct.Struct("16sI20x")
# When the train was sent (ns), the packet's place, how many there are, and the size of each.
_HEADER = struct.Struct("!QHHH")
TRAIN_HEADER_BYTES = _HEADER.size
# Pauses are between so many times the mean.
_VARIES = 0.5, 1.5


class TrainPacket(NamedTuple):
    """A packet's part in its train of `length` packets of `size` bytes, which was sent at `sent_ns`."""

    sent_ns: int
    place: int
    length: int
    size: int

    def packed(self) -> bytes:
        """As in the packet."""
        return _HEADER.pack(*self)


class TrainPacer:
    """Pauses before trains from a NIC, `rate_pps` of them a second on average.

    They vary, by NIC and by `token`, so that trains of several NICs do not meet again and again.
    """

    def __init__(self, nic: Nic, rate_pps: float, token: int) -> None:
        self._pause_s = 1 / rate_pps
        self._draw = random.Random(f"{nic.address} {token}")

    def wait(self) -> None:
        """Wait until the next train may be sent."""
        time.sleep(self._pause_s * self._draw.uniform(*_VARIES))


def unpack(data: bytes) -> TrainPacket:
    """What `TrainPacket.packed` has written."""
    return TrainPacket(*_HEADER.unpack(data))


def new_train(nic: Nic, train_bytes: int) -> list[TrainPacket]:
    """The packets of a train from a NIC that is sent now. Raises C4Error if its interface has no MTU."""
    size = min(_MOST_BYTES, _mtu_bytes(nic) - _HEADERS_BYTES[ipaddress.ip_address(nic.address).version])
    length, now_ns = -(-train_bytes // size), time.time_ns()
    return [TrainPacket(now_ns, place, length, size) for place in range(length)]


def _mtu_bytes(nic: Nic) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            found = fcntl.ioctl(any_socket, _SIOCGIFMTU, _INTERFACE.pack(nic.netdev.encode(), 0))
        except OSError as error:
            raise C4Error(f"cannot read the MTU of {nic.netdev}: {error.strerror}") from error
    return int(_INTERFACE.unpack(found)[1])


class TrainTimer:
    """Times the trains of one flow; those that do not arrive whole are left out."""

    def __init__(self) -> None:
        self._first: dict[int, TrainPacket] = {}
        self._arrived_ns: dict[int, dict[int, int]] = {}

    def add(self, number: int, packet: TrainPacket, at_ns: int) -> None:
        """Note when a packet of the train with this number arrived."""
        self._first.setdefault(number, packet)
        self._arrived_ns.setdefault(number, {})[packet.place] = at_ns

    def trains(self) -> tuple[Train, ...]:
        """Those that have arrived whole."""
        whole = (number for number, first in sorted(self._first.items()) if self._is_whole(number, first))
        return tuple(_timed(self._first[number], self._arrived_ns[number].values()) for number in whole)

    def _is_whole(self, number: int, first: TrainPacket) -> bool:
        return len(self._arrived_ns[number]) == first.length > 1


def _timed(packet: TrainPacket, arrived_ns: Collection[int]) -> Train:
    first_ns, last_ns = min(arrived_ns), max(arrived_ns)
    others_bytes = (packet.length - 1) * packet.size
    return Train((first_ns - packet.sent_ns) / 1e9, (last_ns - first_ns) / 1e9 / others_bytes)
