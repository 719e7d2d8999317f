"""Host clocks against the master's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.c4d.observe.clocks import HostClocks


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0.0, 0.5), min_size=1, max_size=16))
def test_offset_is_the_clock_difference_plus_the_shortest_delay(offset_s, delays_s):
    """Delay only ever adds, so the smallest difference is closest to the truth."""
    clocks = HostClocks()
    for tick, delay_s in enumerate(delays_s):
        clocks.arrived("h0", tick - 0.1, float(tick))
        clocks.observe(tick + offset_s + delay_s)
    assert clocks.offset_s("h0") == pytest.approx(offset_s + min(delays_s), abs=1e-6)


def _offset_after(windows, *, silent_s):
    """The offset of a clock that was set back by a minute, `windows` after the host had been silent."""
    clocks = HostClocks()
    for tick in range(20 + windows):
        now_s = tick * 0.1 + (silent_s if tick >= 20 else 0.0)
        end_s = now_s - (60.0 if tick >= 20 else 0.0)
        clocks.arrived("h0", end_s - 0.1, end_s)
        clocks.observe(now_s)
    return clocks.offset_s("h0")


def test_a_clock_that_was_set_back_is_followed_at_once():
    """The first window after a step backwards begins before the last one has ended: older differences are forgotten."""
    assert _offset_after(1, silent_s=0.0) == pytest.approx(60.0)


def test_stepped_clock_is_followed():
    """If a host was silent for as long as its clock was set back, the old difference is forgotten in 16 windows."""
    assert _offset_after(15, silent_s=70.0) == pytest.approx(0.0)
    assert _offset_after(16, silent_s=70.0) == pytest.approx(60.0)
