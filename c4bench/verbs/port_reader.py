"""Read a NIC port's state and counters repeatedly, at low cost."""

import os
from contextlib import suppress
from pathlib import Path

from c4bench.verbs.counters import COUNTED, SYSFS, Congestion, congestion

_TEXT_BYTES = 64


class PortReader:
    """A port of an RDMA device, whose sysfs files stay open."""

    def __init__(self, device: str, port: int = 1, sysfs: Path = SYSFS) -> None:
        self._device = sysfs / "infiniband" / device
        self._port = self._device / "ports" / str(port)
        self._files: dict[str, int] = {}

    def read(self) -> tuple[str, Congestion]:
        """The physical state in lower case (`linkup`), empty if it cannot be read, and the congestion counters."""
        if not self._files:
            self._open()
        try:
            texts = {name: os.pread(file, _TEXT_BYTES, 0).decode().strip() for name, file in self._files.items()}
            # The file has "5: LinkUp", for example.
            state = texts.pop("phys_state", "").rpartition(" ")[2].lower()
            return state, congestion({name: int(text) for name, text in texts.items()})
        except (OSError, ValueError):
            # A device may disappear and come back with other files.
            self.close()
            return "", congestion({})

    def _open(self) -> None:
        paths = [self._port / "phys_state"]
        for folder in (self._device / "hw_counters", self._port / "hw_counters"):
            paths += [folder / name for name in sorted(COUNTED)]
        for path in paths:
            with suppress(OSError):
                self._files[path.name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()
