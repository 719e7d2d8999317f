"""Regular moments of the machine's clock, the same for whoever waits for them, whenever it has started."""

import asyncio
import time

from c4bench.verbs.timer import Timer

_SECOND_NS = 10**9


class Ticks:
    """Moments `period_s` apart on the monotonic clock, each `phase` of a period (0 to 1) after a multiple of it.

    Waiting uses a descriptor: an event loop rounds its own time-outs up to a millisecond, counted from its last event.
    """

    def __init__(self, period_s: float, phase: float = 0.0) -> None:
        self._period_ns = round(period_s * _SECOND_NS)
        self._offset_ns = round(phase * period_s * _SECOND_NS)
        self._timer = Timer()

    async def wait(self) -> None:
        """Wait for the next moment; those that have passed unnoticed are left out."""
        loop = asyncio.get_running_loop()
        passed = asyncio.Event()
        self._timer.set(self.remaining_ns(time.monotonic_ns()) / _SECOND_NS)
        loop.add_reader(self._timer.fd, passed.set)
        try:
            await passed.wait()
        finally:
            loop.remove_reader(self._timer.fd)

    def remaining_ns(self, now_ns: int) -> int:
        """From `now_ns` to the next moment: more than nothing, at most a period."""
        return self._period_ns - (now_ns - self._offset_ns) % self._period_ns

    def close(self) -> None:
        """Release the descriptor. May be called again."""
        self._timer.close()
