"""Figures from samples: median, percentiles, and how sure a ratio is."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from c4bench.errors import UsageError

_RESAMPLES = 10_000


class Interval(NamedTuple):
    """An estimate and its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def median(values: Sequence[float]) -> float:
    """The middle value; raises UsageError without values."""
    return percentile(values, 50)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the samples lie, interpolated linearly; UsageError without values."""
    if not len(values):
        raise UsageError("no samples: there is nothing to take a percentile of")
    return float(np.percentile(values, percent))


def ratio_interval(planned: Sequence[float], ecmp: Sequence[float], seed: int) -> Interval:
    """The ratio of the means of samples taken in pairs (interleaved in one run), with its bootstrap interval.

    Pairs are resampled together, so that what both samples of a pair shared (a warm machine, a busy minute) cancels
    (percentile bootstrap; Efron, Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13). The same seed gives
    the same interval. Raises UsageError for samples that are not in pairs, fewer than two, or not above zero.
    """
    over, under = np.asarray(planned, dtype=float), np.asarray(ecmp, dtype=float)
    if over.shape != under.shape or over.size < 2:
        raise UsageError(f"{over.size} and {under.size} samples are not two or more pairs; take them in turns")
    if not (np.all(over > 0) and np.all(under > 0)):
        raise UsageError("a ratio needs samples above zero; a transfer that failed is not a sample")
    pick = np.random.default_rng(seed).integers(over.size, size=(_RESAMPLES, over.size))
    ratios = over[pick].mean(axis=1) / under[pick].mean(axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return Interval(float(over.mean() / under.mean()), float(low), float(high))
