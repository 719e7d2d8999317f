"""Ticks of the machine's monotonic clock, at the same times for all processes, whenever they started."""

import asyncio
import os
import time
from contextlib import suppress

from c4bench.verbs.timer import Timer

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
