"""A timer with a file descriptor (timerfd), so that a deadline can be polled with other descriptors."""

import ctypes
import os
from contextlib import suppress

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """`fd` is readable once the time set has passed, until it is set again.

    A timer replaces the timeout of every wait, for which the kernel reads its clock three times. That costs as much as
    the rest of a wake-up; in a virtual-time lab it is the only cost of a wake-up.

    One that another process has made, and shares with this one, is given by its descriptor `fd`.
    """

    def __init__(self, fd: int = -1) -> None:
        self.fd: int = fd
        if fd < 0:
            self.fd = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), f"timerfd_create: {os.strerror(ctypes.get_errno())}")

    def set(self, after_s: float) -> None:
        """Expire after that time, at least 1 ns; replaces an earlier setting."""
        self._set(0, round(after_s * 1e9))

    def set_at(self, at_ns: int) -> None:
        """Expire at that time of the monotonic clock, now if it has passed; replaces an earlier setting."""
        self._set(_ABSOLUTE, at_ns)

    def clear(self) -> None:
        """If it has expired, it is not readable any more; a setting that has not expired stays."""
        with suppress(BlockingIOError):
            os.read(self.fd, 8)

    def _set(self, flags: int, time_ns: int) -> None:
        setting = _Setting(_Timespec(0, 0), _Timespec(*divmod(max(1, time_ns), 10**9)))
        if _libc.timerfd_settime(self.fd, flags, ctypes.byref(setting), None):
            raise OSError(ctypes.get_errno(), f"timerfd_settime: {os.strerror(ctypes.get_errno())}")

    def close(self) -> None:
        """Close the descriptor. May be called again."""
        with suppress(OSError):
            os.close(self.fd)
        self.fd = -1
