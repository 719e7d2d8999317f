"""Detached processes of the injector: they outlive it and the session that began it."""

import contextlib
import os
import signal

from c4bench import namespaces


def detach(*keep: int) -> None:
    """Make the calling process one that no closed session ends, with no file of its parent's but those of `keep`."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  (numbers, not paths)
        if descriptor not in keep:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)
    namespaces.unpin_all()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.chdir("/")
