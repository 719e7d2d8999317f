"""Ticks of the clock, which do not depend on who waits or since when."""

import asyncio
import time
from contextlib import closing

import pytest

from c4bench.verbs.ticks import Ticks

MS = 10**6


@pytest.mark.parametrize(
    ("now_ms", "left_ms"),
    [(0, 30), (29, 1), (30, 100), (31, 99), (130, 100), (1_000_007, 23)],
)
def test_moments_are_multiples_of_the_period_after_the_phase(now_ms, left_ms):
    """Every 100 ms at three tenths: 30, 130, 230 ms of the clock; a call at one of these times waits for the next."""
    with closing(Ticks(0.1, 0.3)) as ticks:
        assert ticks.remaining_ns(now_ms * MS) == left_ms * MS


def test_a_wait_ends_at_the_moment_and_not_before():
    """Waits that begin anywhere in a period all end at its moment; a busy machine may make some of them late."""

    async def ends():
        with closing(Ticks(0.02, 0.5)) as ticks:
            found = []
            for ahead_s in (0.0, 0.003, 0.008, 0.012, 0.017) * 2:
                await asyncio.sleep(ahead_s)
                before_ns = time.monotonic_ns()
                await ticks.wait()
                due_ns = before_ns + (10 * MS - before_ns) % (20 * MS)
                found.append(time.monotonic_ns() - due_ns)
            return found

    late_ns = asyncio.run(ends())
    assert min(late_ns) >= 0
    assert sorted(late_ns)[len(late_ns) // 2] < 5 * MS


def test_what_has_been_missed_is_left_out():
    """After five periods of something else a wait is for the next moment, with no burst of those that passed."""

    async def lasted_ns():
        with closing(Ticks(0.02)) as ticks:
            await ticks.wait()
            time.sleep(0.1)
            first_ns = time.monotonic_ns()
            for _ in range(3):
                await ticks.wait()
            return time.monotonic_ns() - first_ns

    assert asyncio.run(lasted_ns()) > 40 * MS


def test_ticks_that_are_closed_leave_nothing_in_the_loop():
    """An agent that ends is not disturbed, and neither is a later user of the same descriptor."""

    async def scene():
        with closing(Ticks(60.0)) as ticks:
            waiting = asyncio.create_task(ticks.wait())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            descriptor = ticks._timer.fd
        return asyncio.get_running_loop().remove_reader(descriptor)

    assert asyncio.run(scene()) is False
