"""Statistics of samples: median, percentiles, and confidence intervals."""

import math
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
    """The ratio of the means of paired samples (interleaved in one run), with its bootstrap interval.

    Pairs are resampled together, so that what both samples of a pair have in common (a busy machine) cancels
    (percentile bootstrap; Efron, Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13). The same seed gives
    the same interval. Raises UsageError for unpaired samples, fewer than two pairs, or samples that are not above zero.
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


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent samples with its 95 % interval, by Student's t; UsageError for fewer than two values."""
    if len(values) < 2:
        raise UsageError(f"{len(values)} values have no spread; take two or more")
    samples = np.asarray(values, dtype=float)
    mean, error = float(samples.mean()), float(samples.std(ddof=1)) / math.sqrt(len(values))
    reach = student_quantile(0.95, len(values) - 1) * error
    return Interval(mean, mean - reach, mean + reach)


def prediction_interval(values: Sequence[float], confidence: float) -> Interval:
    """The interval in which one more such value falls with that confidence, by Student's t.

    Hahn, Meeker: Statistical Intervals, 1991, section 4.7. Raises UsageError for fewer than two values.
    """
    if len(values) < 2:
        raise UsageError(f"{len(values)} values have no spread; take two or more")
    samples = np.asarray(values, dtype=float)
    mean, spread = float(samples.mean()), float(samples.std(ddof=1))
    reach = student_quantile(confidence, len(values) - 1) * spread * math.sqrt(1 + 1 / len(values))
    return Interval(mean, mean - reach, mean + reach)


def student_quantile(confidence: float, freedom: int) -> float:
    """The two-sided quantile of Student's t for `confidence`."""
    low, high = 0.0, 1.0
    while _student_within(high, freedom) < confidence:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, freedom) < confidence else (low, middle)
    return high


def _student_within(reach: float, freedom: int) -> float:
    """P(|T| <= reach) by its finite series (Abramowitz, Stegun: Handbook of Mathematical Functions, 26.7.3, 26.7.4)."""
    angle = math.atan(reach / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for step in range(2 + odd, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (step - 1) / step
    series = math.sin(angle) * total
    return 2 / math.pi * (angle + series) if odd else series
