"""Named pipes in which files of other tools appear: what one writer has written is one file."""

import os
import select
from pathlib import Path

from c4bench.evidence.limits import MOST_BYTES, UnreadableError

_PIECE = 1 << 16
# A writer of more than a pipe holds goes on as soon as it is read; one that pauses for longer is heard again later.
_MORE_WITHIN_S = 0.05


class Pipe:
    """A named pipe that is open for reading. The next writer's bytes replace those of the one before."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._data = bytearray()
        self._ended = False
        self.version = 0

    def poll(self) -> None:
        """Read what has been written; `version` rises with every piece."""
        while select.select([self._descriptor], [], [], _MORE_WITHIN_S)[0]:
            try:
                piece = os.read(self._descriptor, _PIECE)
            except BlockingIOError:
                return
            if not piece:
                self._ended = bool(self._data)
                return
            if self._ended:
                self._data.clear()
                self._ended = False
            self._data += piece[: MOST_BYTES + 1 - len(self._data)]
            self.version += 1

    def content(self) -> bytes:
        """What the newest writer has written. Raises UnreadableError if that is nothing, or too much."""
        if not self._data:
            raise UnreadableError("nothing has been written to the pipe")
        if len(self._data) > MOST_BYTES:
            raise UnreadableError(f"more than {MOST_BYTES >> 20} MiB have been written to the pipe")
        return bytes(self._data)

    def close(self) -> None:
        """Stop reading."""
        os.close(self._descriptor)
