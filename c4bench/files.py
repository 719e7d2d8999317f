"""Files that are replaced as a whole: whoever reads one, also after a crash, finds the old content or the new."""

import os
from collections.abc import Iterable
from pathlib import Path


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
