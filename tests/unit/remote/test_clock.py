"""A clock at the far end of a line."""

import time

import pytest

from c4bench.remote.clock import ClockOffset, offset


def far(ahead_s, delays):
    """A clock ahead by so much, at the end of a line that takes so long there and back."""
    waits = iter(delays)

    def ask():
        there_s, back_s = next(waits)
        time.sleep(there_s)
        read_s = time.time() + ahead_s
        time.sleep(back_s)
        return read_s

    return ask


@pytest.mark.parametrize("ahead_s", [0.0, 3.0, -3.0])
def test_the_true_offset_lies_within_the_error(ahead_s):
    """However unequal the two ways are, the offset is known to half the shortest round trip."""
    delays = [(0.02, 0.0), (0.0, 0.004), (0.03, 0.001)]
    found = offset(far(ahead_s, delays), len(delays))
    assert abs(found.offset_s - ahead_s) <= found.error_s
    assert 0.002 <= found.error_s < 0.02


def test_a_local_clock_has_no_offset():
    """A correction smaller than its own error would be noise; a larger one is made."""
    assert ClockOffset(0.001, 0.002).ours(10.0) == 10.0
    assert ClockOffset(3.0, 0.002).ours(10.0) == 7.0
