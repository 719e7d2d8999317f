import pytest
from hypothesis import given
from hypothesis import strategies as st
from night_cases import at_night

from c4bench.errors import UsageError
from tools.shares import least_successes, share_interval


@pytest.mark.parametrize(("count", "total"), [(0, 0), (3, 2)])
def test_what_is_no_share_is_refused(count, total):
    """Statistics without the samples they need are refused, not invented."""
    with pytest.raises(UsageError):
        share_interval(count, total)


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    # Where all or none succeed the bounds have a closed form; the third is from tables (Fleiss, 1981).
    [(24, 24, 0.025 ** (1 / 24), 1.0), (0, 10, 0.0, 1 - 0.025 ** (1 / 10)), (5, 10, 0.1871, 0.8129)],
)
def test_a_share_has_its_exact_interval(count, total, low, high):
    """The bounds are the shares with which so many, or so few, come with a chance of 2.5 %."""
    assert share_interval(count, total) == pytest.approx((count / total, low, high), abs=1e-4)


@given(st.integers(1, 40), st.floats(0.05, 0.99), st.sampled_from([1e-4, 1e-2, 0.2]))
def test_fewer_than_the_least_successes_come_as_seldom_as_asked(total, share, chance):
    """By counting all outcomes: one success less than that is rarer than the chance, and no higher limit keeps it."""
    tosses = [1.0]
    for _ in range(total):
        tosses = [a * (1 - share) + b * share for a, b in zip([*tosses, 0.0], [0.0, *tosses], strict=True)]
    least = least_successes(total, share, chance)
    assert sum(tosses[:least]) <= chance * (1 + 1e-9)
    assert sum(tosses[: least + 1]) > chance * (1 - 1e-9) or least == total


@pytest.mark.parametrize("total", [24, 1500, *at_night(50_000)])
def test_an_interval_of_a_share_holds_for_many_trials(total):
    """Where all succeed, the lower bound is the share at which all do once in forty cases; likewise where none does."""
    low = 0.025 ** (1 / total)
    assert share_interval(total, total)[1:] == pytest.approx((low, 1.0), abs=1e-7)
    assert share_interval(0, total)[1:] == pytest.approx((0.0, 1 - low), abs=1e-7)
