"""Open files that another user owns, without being led elsewhere: no link is followed, and nothing is waited for."""

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from c4bench.budget import HOST
from c4bench.errors import UnhealthyError

_PATH_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_below(root: Path, path: Path, owners: Collection[int], access: int = os.O_RDONLY) -> int:
    """A descriptor of the regular file at `path` below the folder `root`, which one of the `owners` (uid) made.

    No component from `root` on may be a symbolic link or a file system of its own, which its owner could let wait, and
    the file may have no second name, which could be a file of somebody else's. `access` is one of os.O_RDONLY and
    os.O_RDWR. Raises FileNotFoundError if it does not exist, UnhealthyError for anything but such a file.
    """
    *folders, name = path.relative_to(root).parts
    with _reached(root, path, folders, owners) as (folder, mount):
        place = os.open(name, _PATH_ONLY, dir_fd=folder)
        try:
            if _mount(place) != mount:
                raise UnhealthyError(f"{path} is a file system of its own; unmount it")
            status = os.fstat(place)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise UnhealthyError(f"{path} is not a regular file with one name; remove it")
            return os.open(f"/proc/self/fd/{place}", access | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(place)


def names_below(root: Path, folder: Path, owners: Collection[int]) -> list[str]:
    """The names in a folder below `root`, or in `root`, sorted; none where it does not exist. Raises as `open_below`.

    Of more than a host may bring, only so many.
    """
    try:
        with _reached(root, folder, folder.relative_to(root).parts, owners) as (place, _):
            descriptor = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with os.scandir(descriptor) as entries:
                    return sorted(entry.name for entry in islice(entries, HOST.names))
            finally:
                os.close(descriptor)
    except FileNotFoundError:
        return []


@contextmanager
def _reached(root: Path, path: Path, folders: Collection[str], owners: Collection[int]) -> Iterator[tuple[int, str]]:
    """The last of the `folders` below `root`, as a descriptor that only names it, and its mount; `path` is wanted."""
    try:
        folder = os.open(root, _PATH_ONLY | os.O_DIRECTORY)
        try:
            if os.fstat(folder).st_uid not in owners:
                raise UnhealthyError(f"{root} belongs to another user than the agent's; remove it, restart the agent")
            mount = _mount(folder)
            for part in folders:
                folder = _replace(folder, os.open(part, _PATH_ONLY | os.O_DIRECTORY, dir_fd=folder))
                if _mount(folder) != mount:
                    raise UnhealthyError(f"{root}: {part} is a file system of its own; unmount it")
            yield folder, mount
        finally:
            os.close(folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnhealthyError(f"{path} cannot be opened as a regular file ({error.strerror}); remove it") from None


def _mount(descriptor: int) -> str:
    """The number of the mount that it is on, which the kernel tells without asking the file system."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(line for line in lines if line.startswith("mnt_id:"))


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
