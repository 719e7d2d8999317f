"""Whether packets came marked to this host since they were last looked for, by its IP layer."""

import os
from contextlib import suppress
from pathlib import Path

from c4bench.verbs.counters import IP_ECN_MARKED

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
