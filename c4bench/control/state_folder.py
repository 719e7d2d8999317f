"""Where the master keeps its state: files that are replaced as a whole, and logs that grow by lines."""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from c4bench import files
from c4bench.errors import UnhealthyError


class StateFiles(Protocol):
    """Files and logs by name. What a call has written is kept when it returns."""

    def where(self, name: str) -> str:
        """How messages call this file or log."""

    def read(self, name: str) -> bytes | None:
        """A file; None if there is none."""

    def replace(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Write a file, completely or not at all; what is not `durable` may be lost with the machine."""

    def append(self, name: str, line: bytes) -> int:
        """Add a line to a log; return the size of all its lines."""

    def rewrite(self, name: str, lines: Iterable[bytes]) -> int:
        """Replace all lines of a log; return their size."""

    def rotate(self, name: str, older: str) -> None:
        """Call a log `older`, in place of what was called so, and begin an empty one."""

    def lines(self, name: str) -> list[bytes]:
        """The complete lines of a log."""

    def remove(self, name: str) -> None:
        """Remove a log."""

    def close(self) -> None:
        """Let another master have them."""


class StateFolder:
    """A folder on this machine. Raises UnhealthyError if another master uses it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for part in ("jobs", "evidence"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        self._lock = _lock(directory)

    def where(self, name: str) -> str:
        """The file's path."""
        return str(self._directory / name)

    def read(self, name: str) -> bytes | None:
        """A file; None if there is none."""
        path = self._directory / name
        return path.read_bytes() if path.exists() else None

    def replace(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Write a file, completely or not at all."""
        files.replace(self._directory / name, [content], durable=durable)

    def append(self, name: str, line: bytes) -> int:
        """Add a line, which is on disk when this returns."""
        descriptor = os.open(self._directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line + b"\n")
            os.fsync(descriptor)
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def rewrite(self, name: str, lines: Iterable[bytes]) -> int:
        """Replace all lines, completely or not at all."""
        files.replace(self._directory / name, (line + b"\n" for line in lines), durable=True)
        return (self._directory / name).stat().st_size

    def rotate(self, name: str, older: str) -> None:
        """Rename the log."""
        (self._directory / name).replace(self._directory / older)

    def lines(self, name: str) -> list[bytes]:
        """Every line; an incomplete last line is removed, so that the next entry begins a new line."""
        path = self._directory / name
        if not path.exists():
            return []
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        return whole.splitlines()

    def remove(self, name: str) -> None:
        """Remove a log."""
        (self._directory / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Unlock the folder for another master."""
        os.close(self._lock)


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UnhealthyError(f"another master uses {directory}; end it, or use another folder") from None
    return descriptor
