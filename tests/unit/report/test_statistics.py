import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.chance import binomial_tail
from c4bench.errors import UsageError
from c4bench.report.statistics import mean_interval, median, percentile, ratio_interval

POSITIVE = st.floats(1e-3, 1e6)


@given(st.lists(POSITIVE, min_size=1, max_size=30))
def test_median_halves_the_samples(values):
    """At least half of the samples are on each side of the median, or on it."""
    middle = median(values)
    assert sum(value <= middle for value in values) * 2 >= len(values)
    assert sum(value >= middle for value in values) * 2 >= len(values)


def test_percentile_interpolates():
    """A percentile between two samples lies between them in proportion."""
    assert percentile([0.0, 10.0], 25) == 2.5


@pytest.mark.parametrize(
    "bad",
    [
        lambda: median([]),
        lambda: mean_interval([1.0]),
        lambda: ratio_interval([1.0], [1.0], 0),
        lambda: ratio_interval([1, 2], [1, 2, 3], 0),
    ],
)
def test_too_few_samples_are_refused(bad):
    """Statistics without the samples they need are refused, not invented."""
    with pytest.raises(UsageError):
        bad()


def test_the_interval_of_a_mean_holds_it_in_nineteen_of_twenty_samples():
    """Counted over two thousand samples of six values around 3."""
    draw = np.random.default_rng(1)
    intervals = [mean_interval(draw.normal(3.0, 1.0, 6)) for _ in range(2000)]
    assert sum(low <= 3.0 <= high for _, low, high in intervals) / 2000 == pytest.approx(0.95, abs=0.015)


def test_failed_transfers_are_no_samples():
    """A sample of zero would make a ratio of nothing and is refused."""
    with pytest.raises(UsageError, match="above zero"):
        ratio_interval([1.0, 2.0], [1.0, 0.0], 0)


def test_interval_depends_on_the_seed_alone():
    """The same seed gives the same interval, another seed nearly the same."""
    over, under = [3.0, 4.1, 5.3, 4.7, 3.3, 3.9, 4.4], [2.0, 2.17, 2.23, 1.91, 2.05, 2.11, 1.87]
    first, again, other = (ratio_interval(over, under, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert first == pytest.approx(other, rel=0.02)


@given(st.lists(POSITIVE, min_size=2, max_size=12), st.floats(0.1, 10))
def test_a_constant_ratio_is_certain(values, ratio):
    """Samples whose pairs all have the same ratio give that ratio with no doubt, however much they vary."""
    interval = ratio_interval([value * ratio for value in values], values, 7)
    assert interval == pytest.approx((ratio, ratio, ratio))


def test_interval_covers_the_truth_about_as_often_as_it_says():
    """Of many experiments, some nineteen in twenty intervals hold the true ratio."""
    rng = np.random.default_rng(3)
    covered = 0
    for trial in range(60):
        shared = rng.uniform(0.8, 1.2, 40)
        interval = ratio_interval(1.5 * shared * rng.normal(1, 0.05, 40), shared * rng.normal(1, 0.05, 40), trial)
        covered += interval.low <= 1.5 <= interval.high
    assert covered >= 51


def test_the_tail_of_a_binomial_is_exact():
    """Against sums of fractions; what is certain or impossible has the chance 1 or 0."""
    for count, total, share in ((0, 5, 0.25), (3, 10, 0.125), (10, 10, 0.5), (700, 1400, 0.5)):
        exact = sum(
            math.comb(total, k) * Fraction(share) ** k * (1 - Fraction(share)) ** (total - k)
            for k in range(count, total + 1)
        )
        assert binomial_tail(count, total, share) == pytest.approx(float(exact), rel=1e-9)
    assert [binomial_tail(count, 5, share) for count, share in ((0, 0.0), (1, 0.0), (5, 1.0), (6, 1.0))] == [1, 0, 1, 0]
