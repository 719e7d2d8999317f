"""Files that are replaced as a whole, and files of others that are read within bounds.

Whoever reads a replaced file, also after a crash, finds the old content or the new.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from c4bench.budget import FILE, Account, Budget, OverBudgetError
from c4bench.errors import UsageError
from c4bench.foreign_text import file_name

_PIECE = 1 << 20


def replace(path: Path, parts: Iterable[bytes], *, durable: bool = False, mode: int = 0o666) -> None:
    """Replace a file by the bytes of all `parts`, completely or not at all, and leave nothing else of a failure.

    A `durable` file is on disk, under its name, when this returns; any other may be the old one after a power failure.
    `mode` are the permissions, less the umask.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put on disk which files a folder has."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bounded(path: Path, budget: Budget = FILE) -> bytes:
    """The bytes of a regular file, within the bytes and seconds of a budget. Raises UsageError in one line.

    A device is not opened, a pipe is not waited for, and of a file that is larger nothing is read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{file_name(path)}: it is no regular file; give a file")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{file_name(path)}: it is no regular file; give a file")
            account = Account(file_name(path), budget)
            account.spend(bytes=status.st_size)
            account.give_back(bytes=status.st_size)
            pieces = bytearray()
            while piece := file.read(_PIECE):
                account.spend(bytes=len(piece))
                account.check_time()
                pieces += piece
            return bytes(pieces)
    except OverBudgetError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{file_name(path)}: {error.strerror}; give a file that can be read") from None
