"""A timer with a file descriptor (timerfd), so that a deadline can be polled with other descriptors."""

import ctypes
import os
from contextlib import suppress

_CLOCK_MONOTONIC = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """`fd` is readable once the time set has passed, until it is set again.

    A timer replaces the timeout of every wait, for which the kernel reads its clock three times. That costs as much as
    the rest of a wake-up; in a virtual-time lab it is the only cost of a wake-up.
    """

    def __init__(self) -> None:
        self.fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), f"timerfd_create: {os.strerror(ctypes.get_errno())}")

    def set(self, after_s: float) -> None:
        """Expire after that time, at least 1 ns; replaces an earlier setting."""
        seconds, nanoseconds = divmod(max(1, round(after_s * 1e9)), 10**9)
        setting = _Setting(_Timespec(0, 0), _Timespec(seconds, nanoseconds))
        if _libc.timerfd_settime(self.fd, 0, ctypes.byref(setting), None):
            raise OSError(ctypes.get_errno(), f"timerfd_settime: {os.strerror(ctypes.get_errno())}")

    def close(self) -> None:
        """Close the descriptor. May be called again."""
        with suppress(OSError):
            os.close(self.fd)
        self.fd = -1
