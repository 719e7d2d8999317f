"""Ticks of the machine's monotonic clock, at the same times for all processes, whenever they started."""

import asyncio
import time

from c4bench.verbs.timer import Timer

_SECOND_NS = 10**9


class Ticks:
    """Ticks `period_s` apart on the monotonic clock, each `phase` of a period (0 to 1) after a multiple of it.

    Waiting uses a timer descriptor, because asyncio rounds its timeouts up to a millisecond after its last event.
    """

    def __init__(self, period_s: float, phase: float = 0.0) -> None:
        self._period_ns = round(period_s * _SECOND_NS)
        self._offset_ns = round(phase * period_s * _SECOND_NS)
        self._timer = Timer()

    async def wait(self) -> None:
        """Wait for the next tick; missed ticks are skipped."""
        loop = asyncio.get_running_loop()
        passed = asyncio.Event()
        self._timer.set(self.remaining_ns(time.monotonic_ns()) / _SECOND_NS)
        loop.add_reader(self._timer.fd, passed.set)
        try:
            await passed.wait()
        finally:
            loop.remove_reader(self._timer.fd)

    def remaining_ns(self, now_ns: int) -> int:
        """The time from `now_ns` to the next tick, in ns: more than 0, at most a period."""
        return self._period_ns - (now_ns - self._offset_ns) % self._period_ns

    def close(self) -> None:
        """Release the descriptor. May be called again."""
        self._timer.close()
