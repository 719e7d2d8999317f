"""The rate of a train of datagrams, by when those of them were complete."""

import pytest

from c4bench.verbs.datagram_train import Sent, SentTrain

BYTES, RATE_BPS = 4162, 2.5e9


def train(times):
    return SentTrain(BYTES, tuple(Sent(1000.0 + at_s, count) for at_s, count in times))


def left_after(count):
    """When so many have left the queue, at the rate."""
    return count * BYTES * 8 / RATE_BPS


def test_the_rate_is_that_at_which_datagrams_left():
    """A software NIC takes 68 at once and 50 whenever 50 have left; hardware completes each as it leaves."""
    software = [(0.0, 0), (1e-6, 68), *((left_after(50 * number), 68 + 50 * number) for number in range(1, 5))]
    # The last ones are fewer than there was room for.
    software[-1] = software[-1][0], 256
    hardware = [(0.0, 0), *((left_after(number), number) for number in range(1, 257))]
    for times in (software, hardware):
        assert train(times).rate_bps == pytest.approx(RATE_BPS, rel=1e-3)


@pytest.mark.parametrize("times", [[(0.0, 0)], [(0.0, 0), (1e-6, 68)], [(0.0, 0), (1e-6, 68), (1e-3, 70)]])
def test_a_short_train_says_nothing(times):
    """Those that leave at once, and those for which there is room next, show no rate."""
    assert train(times).rate_bps == 0.0


def test_times_that_do_not_advance_are_no_error():
    """A coarse clock gives a very high rate, rather than a division by zero."""
    assert train([(0.0, 0), *[(1e-3, number) for number in range(1, 9)]]).rate_bps > RATE_BPS
