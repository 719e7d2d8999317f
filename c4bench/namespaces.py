"""Linux namespaces and mounts by system call: Python 3.11 has no wrappers, and a process for each is slow in a lab."""

import ctypes
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

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

# linux/magic.h, linux/nsfs.h; struct statfs is 120 bytes on 64-bit Linux.
_PR_SET_TIMERSLACK = 29
_NSFS_MAGIC = 0x6E736673
_NS_GET_USERNS = 0xB701
_NS_GET_NSTYPE = 0xB703
_STATFS_LONGS = 32

_libc = ctypes.CDLL(None, use_errno=True)
# Descriptors of the namespaces that `pinned` holds open, by path.
_pinned: dict[str, int] = {}


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


def set_timer_slack(ns: int) -> None:
    """How late this thread's sleeps may end, at most; 0 is the usual freedom."""
    _check(_libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(ns)), "timer slack")


def enter(path: str, kind: int) -> None:
    """Move the calling thread into the namespace bound at `path`. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, kind), f"setns {path}")
    finally:
        os.close(descriptor)


@contextmanager
def network(path: str | None) -> Iterator[None]:
    """Run the block with the calling thread in the network namespace at `path` (None: where it is).

    A namespace that is `pinned` is entered by its descriptor. Raises OSError, also for what is not a network namespace
    of our own user namespace; it never blocks.
    """
    if path is None:
        yield
        return
    with ExitStack() as stack:
        there = _pinned.get(path)
        if there is None:
            there = _open_network(path)
            stack.callback(os.close, there)
        home = os.open(f"/proc/self/task/{_libc.gettid()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, home)
        _check(_libc.setns(there, CLONE_NEWNET), f"setns {path}")
        try:
            yield
        finally:
            _check(_libc.setns(home, CLONE_NEWNET), "setns back")


@contextmanager
def pinned(inodes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Open the network namespaces at these paths once, for every `network` within the block; yields their inodes.

    Nobody can exchange a namespace in the meantime. Raises OSError if one is missing, or has another inode than given;
    0 stands for any.
    """
    with ExitStack() as stack:
        for path, inode in inodes.items():
            descriptor = _open_network(path)
            stack.callback(os.close, descriptor)
            if inode not in (0, os.fstat(descriptor).st_ino):
                raise OSError(f"{path} is another network namespace than before")
            before = _pinned.get(path)
            _pinned[path] = descriptor
            stack.callback(_unpin, path, before)
        yield {path: os.fstat(_pinned[path]).st_ino for path in inodes}


def unpin_all() -> None:
    """Forget what is pinned: in a child process that has closed its parent's descriptors."""
    _pinned.clear()


def _unpin(path: str, before: int | None) -> None:
    if before is None:
        del _pinned[path]
    else:
        _pinned[path] = before


def _open_network(path: str) -> int:
    # A FIFO in its place is not waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _require_our_network(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_our_network(descriptor: int, path: str) -> None:
    """Raises OSError unless it is a network namespace that belongs to our user namespace (ioctl_ns(2))."""
    status = (ctypes.c_long * _STATFS_LONGS)()
    _check(_libc.fstatfs(descriptor, status), f"fstatfs {path}")
    if status[0] != _NSFS_MAGIC or fcntl.ioctl(descriptor, _NS_GET_NSTYPE) != CLONE_NEWNET:
        raise OSError(f"{path} is not a network namespace")
    owner = fcntl.ioctl(descriptor, _NS_GET_USERNS)
    try:
        if os.fstat(owner).st_ino != Path("/proc/self/ns/user").stat().st_ino:
            raise OSError(f"{path} is a network namespace of another user namespace")
    finally:
        os.close(owner)
