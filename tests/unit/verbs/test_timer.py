"""A deadline as a descriptor."""

import select
import time

import pytest

from c4bench.verbs.timer import Timer


@pytest.fixture
def timer():
    made = Timer()
    yield made
    made.close()
    made.close()


def readable(timer, within_s):
    return bool(select.select([timer.fd], [], [], within_s)[0])


def test_the_descriptor_is_readable_from_the_deadline_on(timer):
    """The timer expires at the time set, and stays readable until it is set again."""
    began = time.monotonic()
    timer.set(0.02)
    assert not readable(timer, 0.0)
    assert readable(timer, 10.0)
    assert time.monotonic() - began >= 0.02
    timer.set(60.0)
    assert not readable(timer, 0.0)


@pytest.mark.parametrize("after_s", [0.0, -1.0])
def test_a_deadline_that_is_past_goes_off_at_once(timer, after_s):
    """A time of 0 expires at once, although the kernel would disarm the timer."""
    timer.set(after_s)
    assert readable(timer, 10.0)
