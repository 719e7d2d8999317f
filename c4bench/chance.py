"""The chance of counts: what brains judge by, and what reports promise."""

import math


def binomial_tail(count: int, total: int, share: float) -> float:
    """The chance that `count` or more of `total` independent draws succeed, each with chance `share`."""
    return sum(math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(count, total + 1))
