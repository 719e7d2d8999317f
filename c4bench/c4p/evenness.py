"""How evenly loads are spread. Reports need no more of C4P than this, which imports nothing."""

from collections.abc import Sequence
from statistics import fmean


def max_mean_ratio(values: Sequence[float]) -> float:
    """MMR: the maximum over the mean; 1.0 is perfectly even. NaN without values or without load.

    Its inputs are the loads of parallel links, such as one tier's uplinks.
    """
    mean = fmean(values) if len(values) else 0.0
    return max(values) / mean if mean else float("nan")


def jain_index(values: Sequence[float]) -> float:
    """JFI: (sum x)^2 / (n sum x^2); 1.0 is even, 1/n is all load on one link (Jain, Chiu, Hawe: DEC TR-301, 1984).

    NaN without values or without load.
    """
    peak = max(values, default=0.0)
    if peak <= 0.0:
        return float("nan")
    # Scaled first, because squares of bit rates lose digits and squares of tiny fractions underflow.
    scaled = [value / peak for value in values]
    return float(sum(scaled) ** 2 / (len(scaled) * sum(value * value for value in scaled)))
