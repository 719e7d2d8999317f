"""The chance of counts: what brains judge by, and what reports promise."""

import math


def binomial_tail(count: int, total: int, share: float) -> float:
    """The chance that `count` or more of `total` independent draws succeed, each with chance `share`."""
    if not 0 < share < 1:
        return float(count <= 0 or (share >= 1 and count <= total))
    # The powers of many trials are too large and too small for a float each, but not together.
    return math.fsum(math.exp(_log_chance(one, total, share)) for one in range(count, total + 1))


def _log_chance(count: int, total: int, share: float) -> float:
    """The logarithm of the chance of exactly `count` of `total`."""
    ways = math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
    return ways + count * math.log(share) + (total - count) * math.log1p(-share)
