"""Timers with a file descriptor (timerfd), and ticks of the machine's monotonic clock, which all processes share."""

import asyncio
import ctypes
import os
import time
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


_SECOND_NS = 10**9
_COUNT_BYTES = 8  # what a timer descriptor has to read


class Ticks:
    """Ticks `period_s` apart on the monotonic clock, each `phase` of a period (0 to 1) after a multiple of it.

    Waiting uses a timer descriptor, because asyncio rounds its timeouts up to a millisecond after its last event. The
    loop watches it from the first wait on: to begin and to end that with each wait costs as much as the rest of it.
    """

    def __init__(self, period_s: float, phase: float = 0.0) -> None:
        self._period_ns = round(period_s * _SECOND_NS)
        self._offset_ns = round(phase * period_s * _SECOND_NS)
        self._timer = Timer()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._passed = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the next tick; missed ticks are skipped."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._timer.fd, self._pass)
        self._passed.clear()
        self._timer.set(self.remaining_ns(time.monotonic_ns()) / _SECOND_NS)
        await self._passed.wait()

    def _pass(self) -> None:
        # Nothing is read if the timer was set again after the loop had seen it pass.
        with suppress(BlockingIOError):
            os.read(self._timer.fd, _COUNT_BYTES)
            self._passed.set()

    def remaining_ns(self, now_ns: int) -> int:
        """The time from `now_ns` to the next tick, in ns: more than 0, at most a period."""
        return self._period_ns - (now_ns - self._offset_ns) % self._period_ns

    def close(self) -> None:
        """Release the descriptor. May be called again."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._timer.fd)
        self._loop = None
        self._timer.close()
