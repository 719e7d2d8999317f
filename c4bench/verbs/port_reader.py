"""Read a NIC port's state and counters repeatedly, at low cost."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from c4bench.model.telemetry import NicRecord
from c4bench.verbs.counters import COUNTED, ETHERNET_COUNTED, IP_ECN_MARKED, SYSFS, nic_record
from c4bench.verbs.ethtool import PortStatistics
from c4bench.verbs.marks import NETSTAT, MarkedPackets

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
