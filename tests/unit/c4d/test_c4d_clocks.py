"""Host clocks against the master's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.c4d.ingest.clocks import HostClocks


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0.0, 0.5), min_size=1, max_size=16))
def test_offset_is_the_clock_difference_plus_the_shortest_delay(offset_s, delays_s):
    """Delay only ever adds, so the smallest difference is closest to the truth."""
    clocks = HostClocks()
    for tick, delay_s in enumerate(delays_s):
        clocks.arrived("h0", tick - 0.1, float(tick))
        clocks.observe(tick + offset_s + delay_s)
    assert clocks.offset_s("h0") == pytest.approx(offset_s + min(delays_s), abs=1e-6)


def test_stepped_clock_is_followed():
    """After a step backwards the old, smaller difference is forgotten within sixteen windows."""
    clocks = HostClocks()
    for tick in range(40):
        end_s = tick * 0.1 - (60.0 if tick >= 20 else 0.0)
        clocks.arrived("h0", end_s - 0.1, end_s)
        clocks.observe(tick * 0.1)
    assert clocks.offset_s("h0") == pytest.approx(60.0)
