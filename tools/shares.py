"""Shares of trials that succeed: how certain an observed one is, and how many successes to ask for."""

from c4bench.chance import binomial_tail
from c4bench.errors import UsageError
from c4bench.report.statistics import Interval


def share_interval(count: int, total: int) -> Interval:
    """The share of successes estimated from `count` of `total`, with its exact 95 % interval.

    Clopper, Pearson: The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial, 1934. Raises
    UsageError if `count` is not between 0 and `total`.
    """
    if not 0 <= count <= total or not total:
        raise UsageError(f"{count} of {total} is not a share; give a total above zero and a count up to it")
    low = _share_with_tail(count, total, 0.025) if count else 0.0
    high = _share_with_tail(count + 1, total, 0.975) if count < total else 1.0
    return Interval(count / total, low, high)


def least_successes(total: int, share: float, chance: float) -> int:
    """The highest required number of successes of `total` that is missed with at most `chance`.

    Each trial succeeds with the chance `share`, independent of the others.
    """
    # Fewer than `least` successes are more than `total` - `least` failures.
    return max(least for least in range(total + 1) if binomial_tail(total - least + 1, total, 1 - share) <= chance)


def _share_with_tail(count: int, total: int, chance: float) -> float:
    """The share at which `count` or more of `total` succeed with that chance, by bisection."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(count, total, middle) < chance else (low, middle)
    return low
