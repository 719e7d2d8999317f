"""When a job is judged."""

import pytest

from c4bench.bus.job_follower import JobClock


def test_a_job_is_judged_at_the_same_times_whenever_it_is_read():
    """A reader that begins later, or reads faster, judges at the same times of the server."""
    arrivals_s = [100.03, 100.12, 100.29, 100.61]
    slow, fast = JobClock(), JobClock()
    slowly = [at_s for number, came_s in enumerate(arrivals_s) for at_s in slow.passes(came_s, 5.0 + number)]
    fast.passes(arrivals_s[0], 0.0)
    later = [at_s for came_s in arrivals_s[2:] for at_s in fast.passes(came_s, 0.0)]
    assert slowly == pytest.approx([100.1, 100.2, 100.3, 100.4, 100.5, 100.6])
    assert later == pytest.approx(slowly)


def test_a_job_of_which_nothing_comes_is_judged_too():
    """Where no message comes any more, time passes by our own clock, a little behind for what is under way."""
    clock = JobClock()
    assert clock.now(1.0) == []
    clock.passes(100.0, 10.0)
    assert clock.now(10.1) == []
    assert clock.now(10.16) == pytest.approx([100.1])
    assert clock.now(10.5) == pytest.approx([100.2, 100.3, 100.4])
    assert clock.judged_s == 100.0
    assert clock.passes(100.38, 10.6) == []
    assert clock.judged_s == 100.38


def test_a_clock_that_goes_on_by_years_is_followed_at_once():
    """Where the server's clock is set on, only the last ten minutes before are judged, however long it says it was."""
    clock = JobClock()
    clock.passes(100.0, 0.0)
    times_s = clock.passes(1e9, 1.0)
    assert len(times_s) <= 6_001
    assert times_s[-1] == pytest.approx(1e9)
