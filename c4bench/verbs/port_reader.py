"""What a NIC's port says of itself, read again and again at little cost."""

import os
from contextlib import suppress
from pathlib import Path

from c4bench.verbs.counters import COUNTED, SYSFS, Congestion, congestion

_TEXT_BYTES = 64


class PortReader:
    """A port of an RDMA device; its files in sysfs are kept open."""

    def __init__(self, device: str, port: int = 1, sysfs: Path = SYSFS) -> None:
        self._device = sysfs / "infiniband" / device
        self._port = self._device / "ports" / str(port)
        self._files: dict[str, int] = {}

    def read(self) -> tuple[str, Congestion]:
        """The physical state in lower case (`linkup`), empty where it cannot be read, and the congestion counters."""
        if not self._files:
            self._open()
        try:
            texts = {name: os.pread(file, _TEXT_BYTES, 0).decode().strip() for name, file in self._files.items()}
            # As in "5: LinkUp".
            state = texts.pop("phys_state", "").rpartition(" ")[2].lower()
            return state, congestion({name: int(text) for name, text in texts.items()})
        except (OSError, ValueError):
            # A device that is gone may come back, with other files.
            self.close()
            return "", congestion({})

    def _open(self) -> None:
        places = [self._port / "phys_state"]
        for folder in (self._device / "hw_counters", self._port / "hw_counters"):
            places += [folder / name for name in sorted(COUNTED)]
        for place in places:
            with suppress(OSError):
                self._files[place.name] = os.open(place, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Look at it no more, until it is read again."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()
