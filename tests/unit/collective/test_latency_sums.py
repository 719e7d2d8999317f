"""Sums of message times, published at counts that both ends of a connection share."""

from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective.ring_layout import STRIDES, LatencySums, roundest

_MASK = (1 << 64) - 1


def readings(counts, times):
    """What a reader is told that comes by when so many messages have been counted."""
    tally, marks, before = LatencySums(), [], 0
    for count in counts:
        while tally.count < count:
            tally.add(times[tally.count])
        if count > before:
            marks.append(roundest(before, count, tally.sums))
        before = count
    return marks


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(0, _MASK))
def test_what_is_told_is_the_sum_of_the_first_times(steps, begin_ns):
    """A mark's sum covers exactly its number of messages, and each mark is newer than the last one."""
    counts = [sum(steps[: index + 1]) for index in range(len(steps))]
    times = [begin_ns + 1000 * index for index in range(sum(steps))]
    previous = 0
    for mark in readings(counts, times):
        assert mark.sum_ns == sum(times[: mark.messages]) & _MASK
        assert previous < mark.messages <= sum(steps)
        previous = mark.messages


@given(st.integers(1, 200), st.integers(1, 200), st.integers(20, 60))
def test_ends_in_phase_are_told_alike(period, under_way, windows):
    """With messages always in flight at each reading, both ends still publish multiples of the next stride."""
    posted = [window * period for window in range(1, windows)]
    arrived = [max(0, count - under_way) for count in posted]
    times = list(range(windows * period))
    common = {mark.messages for mark in readings(posted, times)} & {mark.messages for mark in readings(arrived, times)}
    stride = next(stride for stride in STRIDES if stride >= period)
    assert common >= set(range(stride, arrived[-1] + 1, stride))
