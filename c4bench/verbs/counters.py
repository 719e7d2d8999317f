"""A NIC's state and counters: of its RDMA device, of its interface's driver, and of its host's IP layer."""

import ctypes
import fcntl
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from c4bench.model.telemetry import COUNTERS, NicRecord

SYSFS = Path("/sys/class")
# The kernel caches hardware counters for this long; two readings closer together may be equal.
CACHE_S = 0.02


def hardware_counters(device: str, port: int = 1, sysfs: Path = SYSFS) -> dict[str, int]:
    """The `hw_counters` of the device and the port by name; empty if the driver has none."""
    base = sysfs / "infiniband" / device
    counters = _read_all(base / "hw_counters")
    counters.update(_read_all(base / "ports" / str(port) / "hw_counters"))
    counters.pop("lifespan", None)
    return counters


def port_counters(device: str, port: int = 1, sysfs: Path = SYSFS) -> dict[str, int]:
    """The standard `counters` of a port, by name; those in words (`port_xmit_data`) are as the kernel gives them."""
    return _read_all(sysfs / "infiniband" / device / "ports" / str(port) / "counters")


_Source = Mapping[str, Mapping[str, tuple[str, ...]]]  # names by driver and kind
# By source: the driver's `hw_counters`. Several names of one driver count different events, which are added, or with a
# minus taken away; rxe's completer_retry_err counts both kinds. A ConnectX as shipped repeats packets before the timer
# of their QP expires (roce_adp_retrans), and slows itself down with each as if a CNP had come: rp_cnp_handled counts
# these too (roce_slow_restart_cnps), and they say nothing of congestion.
_HARDWARE: _Source = {
    "mlx5": {
        "retransmits": ("local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err", "roce_adp_retrans"),
        "out_of_sequence": ("out_of_sequence",),
        "duplicates": ("duplicate_request",),
        "cnp_sent": ("np_cnp_sent",),
        "cnp_received": ("rp_cnp_handled", "rp_cnp_ignored", "-roce_slow_restart_cnps"),
        "ecn_marked": ("np_ecn_marked_roce_packets",),
    },
    "bnxt_re": {
        "retransmits": ("to_retransmits", "seq_err_naks_rcvd"),
        "out_of_sequence": ("oos_drop_count",),
        "duplicates": ("dup_req",),
        "cnp_sent": ("tx_cnp_pkts",),
        "cnp_received": ("rx_cnp_pkts",),
        "ecn_marked": ("rx_ecn_marked_pkts",),
    },
    "irdma": {
        "cnp_sent": ("cnpSent",),
        "cnp_received": ("cnpHandled", "cnpIgnored"),
        "ecn_marked": ("RxECNMrkd",),
    },
    "rxe": {
        "retransmits": ("completer_retry_err",),
        "out_of_sequence": ("out_of_seq_request",),
        "duplicates": ("duplicate_request",),
        # rxe does not look at the mark: the IP layer of its host counts the packet before (`IP_ECN_MARKED`).
        "ecn_marked": ("InCEPkts",),
    },
}
# By source: what the driver of the port's network interface counts (`ethtool -S`); `{}` is each of the priorities.
_ETHERNET: _Source = {
    "mlx5_core": {
        "pause_sent": ("tx_prio{}_pause", "tx_global_pause"),
        "pause_received": ("rx_prio{}_pause", "rx_global_pause"),
        "pause_sent_us": ("tx_prio{}_pause_duration", "tx_global_pause_duration"),
        "pause_received_us": ("rx_prio{}_pause_duration", "rx_global_pause_duration"),
    },
    "bnxt_en": {
        "pause_sent": ("tx_pfc_ena_frames_pri{}", "tx_pause_frames"),
        "pause_received": ("rx_pfc_ena_frames_pri{}", "rx_pause_frames"),
        "pause_sent_us": ("pfc_pri{}_tx_duration_us",),
        "pause_received_us": ("pfc_pri{}_rx_duration_us",),
    },
    "ice": {
        "pause_sent": ("tx_priority_{}_xoff.nic", "link_xoff_tx.nic"),
        "pause_received": ("rx_priority_{}_xoff.nic", "link_xoff_rx.nic"),
    },
}
_PRIORITIES = range(8)
# Packets of the network namespace that IP received with a mark, of `/proc/net/netstat`.
IP_ECN_MARKED = "InCEPkts"


def _by_kind(*sources: _Source) -> dict[str, frozenset[str]]:
    """All sources' names of each kind."""
    names: dict[str, set[str]] = {kind: set() for kind in COUNTERS}
    for kinds in (kinds for source in sources for kinds in source.values()):
        for kind, patterns in kinds.items():
            names[kind] |= {pattern.format(number) for pattern in patterns for number in _PRIORITIES}
    return {kind: frozenset(found) for kind, found in names.items()}


_COUNTED_AS = _by_kind(_HARDWARE, _ETHERNET)
COUNTED = frozenset(name.lstrip("-") for names in _by_kind(_HARDWARE).values() for name in names) - {IP_ECN_MARKED}
ETHERNET_COUNTED = frozenset(name for names in _by_kind(_ETHERNET).values() for name in names)
# What the driver of a ConnectX's interface counts besides: packets lost in the NIC, and errors of its cable.
_LOST_OR_WRONG = (
    *("rx_discards_phy", "tx_discards_phy", "rx_prio{}_discards", "rx_out_of_buffer", "rx_steer_missed_packets"),
    *("rx_symbol_err_phy", "rx_pcs_symbol_err_phy", "rx_crc_errors_phy", "tx_errors_phy", "link_down_events_phy"),
    *("tx_pause_storm_warning_events", "tx_pause_storm_error_events"),
)
PORT_TROUBLES = ETHERNET_COUNTED | {name.format(number) for name in _LOST_OR_WRONG for number in _PRIORITIES}


def nic_record(nic: str, state: str, counters: Mapping[str, int]) -> NicRecord:
    """The record of a NIC with the counters of its device and of its network interfaces, by the drivers' names."""
    return NicRecord(nic, state, **{kind: _total(counters, names) for kind, names in _COUNTED_AS.items()})


def _total(counters: Mapping[str, int], names: frozenset[str]) -> int | None:
    """The sum of those counters that are there, less those with a minus; None where none is to be added."""
    added = [counters[name] for name in counters.keys() & names]
    less = sum(counters.get(name[1:], 0) for name in names if name.startswith("-"))
    return max(0, sum(added) - less) if added else None


def difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What changed from `before` to `after`, by name; a counter that appeared counts from 0."""
    changes = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: change for name, change in changes.items() if change}


def _read_all(folder: Path) -> dict[str, int]:
    counters: dict[str, int] = {}
    if folder.is_dir():
        for entry in sorted(folder.iterdir()):
            # Some drivers have counters that cannot be read, or are not numbers.
            with suppress(OSError, ValueError):
                counters[entry.name] = int(entry.read_text())
    return counters


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
    """The statistics of `netdev` whose names are `wanted`, which stay known until their number changes.

    `ethtool -S` prints the same; the ioctl needs no rights (include/uapi/linux/ethtool.h of the kernel). They are those
    of the calling thread's network namespace.
    """

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


NETSTAT = Path("/proc/self/net/netstat")
_NETSTAT_BYTES = 1 << 14
_GROUP = "IpExt:"


class MarkedPackets:
    """The marked packets that the IP layer of the caller's network namespace counts, from one file that stays open."""

    def __init__(self, netstat: Path = NETSTAT) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open(netstat, os.O_RDONLY | os.O_CLOEXEC)

    def count(self) -> int | None:
        """How many there have been; None if this kernel does not count them."""
        return _marked(os.pread(self._file, _NETSTAT_BYTES, 0).decode()) if self._file >= 0 else None

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _marked(text: str) -> int | None:
    """The count in the text of `/proc/net/netstat`: in each group a line of names and one of values."""
    lines = [line.split() for line in text.splitlines() if line.startswith(_GROUP)]
    named = dict(zip(*lines[:2], strict=False)) if len(lines) > 1 else {}
    return int(named[IP_ECN_MARKED]) if IP_ECN_MARKED in named else None


_TEXT_BYTES = 64


class PortReader:
    """The port of a NIC's RDMA device, whose sysfs files stay open.

    `netdevs` are its network interfaces, whose drivers count pause frames. If the device is `alone` on its host, the
    marked packets that the host's IP layer counts are its own.
    """

    def __init__(
        self,
        nic: str,
        device: str,
        port: int = 1,
        *,
        netdevs: Sequence[str] = (),
        alone: bool = False,
        sysfs: Path = SYSFS,
        netstat: Path = NETSTAT,
    ) -> None:
        self._nic = nic
        self._device = sysfs / "infiniband" / device
        self._port = self._device / "ports" / str(port)
        self._netstat = netstat
        self._alone = alone
        self._files: dict[str, int] = {}
        self._marks: MarkedPackets | None = None
        self._netdevs = netdevs
        self._statistics = PortStatistics((), ETHERNET_COUNTED)

    def read(self) -> NicRecord:
        """The port's state and counters now."""
        if not self._files:
            self._open()
        try:
            texts = {name: os.pread(file, _TEXT_BYTES, 0).decode().strip() for name, file in self._files.items()}
            # The file has "5: LinkUp", for example.
            state = texts.pop("phys_state", "").rpartition(" ")[2].lower()
            counters = {name: int(text) for name, text in texts.items()} | self._marked()
        except (OSError, ValueError):
            # A device may disappear and come back with other files.
            self.close()
            return NicRecord(self._nic, "")
        return nic_record(self._nic, state, counters | self._statistics.read())

    def _open(self) -> None:
        paths = [self._port / "phys_state"]
        for folder in (self._device / "hw_counters", self._port / "hw_counters"):
            paths += [folder / name for name in sorted(COUNTED)]
        for path in paths:
            with suppress(OSError):
                self._files[path.name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Packets of hardware do not pass the host's IP layer; only rxe's device says whose interface it is on.
        if self._alone and (self._device / "parent").exists():
            self._marks = MarkedPackets(self._netstat)
        self._statistics = PortStatistics(self._netdevs, ETHERNET_COUNTED)

    def _marked(self) -> dict[str, int]:
        count = self._marks.count() if self._marks else None
        return {} if count is None else {IP_ECN_MARKED: count}

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        if self._marks:
            self._marks.close()
            self._marks = None
