"""Statistics of a network interface's driver, as `ethtool -S` prints them, by the ioctl that needs no rights.

See include/uapi/linux/ethtool.h of the kernel. The statistics are those of the calling thread's network namespace.
"""

import ctypes
import fcntl
import socket
import struct
import time
from collections.abc import Sequence

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_SET_OF_STATISTICS = 1
_NAME_BYTES, _VALUE_BYTES = 32, 8
_SET_INFO, _STRINGS, _STATS = struct.Struct("=2IQI"), struct.Struct("=3I"), struct.Struct("=2I")
_REQUEST = struct.Struct("16sP16x")
# The driver writes as many values as it has then: room for those that it may have got since they were counted.
_SPARE = 512
# Firmware answers for some drivers, in a millisecond or more: they are not asked more often than this (s).
_ASKED_EVERY_S = 0.2


class PortStatistics:
    """The `wanted` statistics of a port's interfaces, added up; those whose drivers have none are asked once."""

    def __init__(self, netdevs: Sequence[str], wanted: frozenset[str]) -> None:
        self._drivers = [DriverStatistics(netdev, wanted) for netdev in netdevs]
        self._asked_s: float | None = None
        self._newest: dict[str, int] = {}

    def read(self) -> dict[str, int]:
        """The values by name, which are up to `_ASKED_EVERY_S` old."""
        if not self._drivers or (self._asked_s is not None and time.monotonic() - self._asked_s < _ASKED_EVERY_S):
            return self._newest
        answers = [driver.read() for driver in self._drivers]
        if self._asked_s is None:
            self._drivers = [driver for driver, values in zip(self._drivers, answers, strict=True) if values]
        names = {name for values in answers for name in values}
        self._newest = {name: sum(values.get(name, 0) for values in answers) for name in names}
        self._asked_s = time.monotonic() if self._drivers else None
        return self._newest


class DriverStatistics:
    """The statistics of `netdev` whose names are `wanted`, which stay known until their number changes."""

    def __init__(self, netdev: str, wanted: frozenset[str]) -> None:
        self._netdev = netdev
        self._wanted = wanted
        self._places: dict[str, int] = {}
        self._count = -1

    def read(self) -> dict[str, int]:
        """The values by name; empty if there is no such interface, or its driver has none of them."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            try:
                count = self._read_count(sock)
                if count != self._count:
                    names = self._read_names(sock, count)
                    self._count, self._places = count, {name: at for name, at in names.items() if name in self._wanted}
                return self._read_values(sock) if self._places else {}
            except OSError:
                # The interface has gone, or its driver has no statistics.
                self._count = -1
                return {}

    def _read_count(self, sock: socket.socket) -> int:
        asked = _SET_INFO.pack(_GSSET_INFO, 0, 1 << _SET_OF_STATISTICS, 0)
        _, _, sets, count = _SET_INFO.unpack_from(self._ask(sock, asked, _SET_INFO.size))
        return int(count) if sets else 0

    def _read_names(self, sock: socket.socket, count: int) -> dict[str, int]:
        asked = _STRINGS.pack(_GSTRINGS, _SET_OF_STATISTICS, count)
        answer = self._ask(sock, asked, _STRINGS.size + (count + _SPARE) * _NAME_BYTES)
        starts = range(_STRINGS.size, _STRINGS.size + count * _NAME_BYTES, _NAME_BYTES)
        names = (answer[start : start + _NAME_BYTES].split(b"\0")[0] for start in starts)
        return {name.decode(errors="replace").strip(): place for place, name in enumerate(names)}

    def _read_values(self, sock: socket.socket) -> dict[str, int]:
        size = _STATS.size + (self._count + _SPARE) * _VALUE_BYTES
        answer = self._ask(sock, _STATS.pack(_GSTATS, self._count), size)
        values = struct.unpack_from(f"={self._count}Q", answer, _STATS.size)
        return {name: values[place] for name, place in self._places.items()}

    def _ask(self, sock: socket.socket, asked: bytes, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(asked, size)
        fcntl.ioctl(sock, _SIOCETHTOOL, _REQUEST.pack(self._netdev.encode(), ctypes.addressof(buffer)))
        return buffer.raw
