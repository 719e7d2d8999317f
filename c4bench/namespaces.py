"""Linux namespaces and mounts by system call: Python 3.11 wraps none of them, and a process each is dear in a lab."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Attach a file system. Raises OSError."""
    encoded = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(_libc.mount(*encoded), f"mount {kind or 'bind'} on {target}")


def bind(source: str, target: str, *, recursive: bool = False) -> None:
    """Make `source` visible at `target`, which must exist."""
    mount(source, target, flags=MS_BIND | (MS_REC if recursive else 0))


def unshare(flags: int) -> None:
    """Leave the namespaces in `flags` (CLONE_NEW*) for new ones. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def enter(path: str, kind: int) -> None:
    """Move the calling thread into the namespace bound at `path`. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, kind), f"setns {path}")
    finally:
        os.close(descriptor)


@contextmanager
def network(path: str | None) -> Iterator[None]:
    """Run the block with the calling thread in the network namespace at `path` (None: where it is)."""
    if path is None:
        yield
        return
    home = f"/proc/self/task/{_libc.gettid()}/ns/net"
    descriptor = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(path, CLONE_NEWNET)
        try:
            yield
        finally:
            _check(_libc.setns(descriptor, CLONE_NEWNET), "setns back")
    finally:
        os.close(descriptor)
