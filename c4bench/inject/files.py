"""Open files that another user owns, without being led elsewhere: no link is followed, and nothing is waited for."""

import os
import stat
from collections.abc import Collection
from pathlib import Path

from c4bench.errors import UnhealthyError


def open_below(root: Path, path: Path, owners: Collection[int]) -> int:
    """A descriptor to read the regular file at `path` below the folder `root`, which one of the `owners` (uid) made.

    No component from `root` on may be a symbolic link, and the file may have no second name, which could be a file of
    somebody else's. Raises FileNotFoundError if it does not exist, UnhealthyError for anything but such a file.
    """
    *folders, name = path.relative_to(root).parts
    try:
        folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(folder).st_uid not in owners:
                raise UnhealthyError(f"{root} belongs to another user than the agent's; remove it, restart the agent")
            for part in folders:
                folder = _replace(folder, os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnhealthyError(f"{path} cannot be opened as a regular file ({error.strerror}); remove it") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise UnhealthyError(f"{path} is not a regular file with one name; remove it")
    return descriptor


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new


def read_roots(path: Path, at_most_bytes: int) -> bytes:
    """The content of a file that only root can write. Raises FileNotFoundError, or UnhealthyError for another file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnhealthyError(f"{path} cannot be read ({error.strerror}); deploy again") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != 0 or writable or status.st_size > at_most_bytes:
            raise UnhealthyError(f"{path} is not a file that only root can write; deploy again")
        return file.read(at_most_bytes)
