"""The figures of graded trials: shares of answers with their intervals, times, and calibration of confidence."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from c4bench.report.statistics import Interval, median
from tools.campaign.grade import Answer, Grade, Stated
from tools.shares import share_interval

# The bins of stated confidence, by their lower edges.
BINS = (0.0, 0.2, 0.4, 0.6, 0.8)


class Share(NamedTuple):
    """Such `trials` of `total`, with the share's exact 95 % interval (Clopper, Pearson 1934)."""

    trials: int
    total: int
    interval: Interval


class Figures(NamedTuple):
    """The figures of a campaign. Shares are of the trials in which an answer was due, or given.

    `among` are the trials whose finding has the component, alone or not. `resolve_s` is the median of the times to a
    resolving finding (s), None without one.
    """

    trials: int
    resolved: Share
    among: Share
    wrong: Share
    silent: Share
    healthy: Share
    healthy_components: int
    resolve_s: float | None


class Bin(NamedTuple):
    """Findings whose stated confidence is at least `low` and below `high`: how many, its mean, and the share right."""

    low: float
    high: float
    findings: int
    stated: float
    right: Interval


def figures(grades: Sequence[Grade]) -> Figures:
    """The figures of some trials, at least one of which was due an answer."""
    due = [grade for grade in grades if grade.due]
    times = [grade.resolve_s for grade in grades if grade.resolve_s is not None]
    return Figures(
        len(grades),
        _share(due, Answer.RESOLVED),
        _share(due, Answer.RESOLVED, Answer.AMONG),
        _share(due, Answer.WRONG),
        _share(due, Answer.SILENT),
        _of(sum(grade.healthy > 0 for grade in grades), len(grades)),
        sum(grade.healthy for grade in grades),
        median(times) if times else None,
    )


def calibration(grades: Iterable[Grade]) -> tuple[Bin, ...]:
    """How often findings are right by stated confidence; bins without findings are left out."""
    stated = [one for grade in grades for one in grade.stated]
    edges = zip(BINS, (*BINS[1:], 1.0), strict=True)
    return tuple(_bin(low, high, inside) for low, high in edges if (inside := _inside(stated, low, high)))


def calibration_error(bins: Iterable[Bin]) -> float:
    """The largest difference, over bins, between the stated confidence and the share that was right."""
    return max((abs(one.stated - one.right.mean) for one in bins), default=0.0)


def _inside(stated: Iterable[Stated], low: float, high: float) -> list[Stated]:
    """Those in a bin; a confidence of 1 belongs to the last."""
    return [one for one in stated if low <= one.confidence < high or one.confidence == high == 1.0]


def _bin(low: float, high: float, inside: Sequence[Stated]) -> Bin:
    right = sum(one.right for one in inside)
    mean = sum(one.confidence for one in inside) / len(inside)
    return Bin(low, high, len(inside), mean, share_interval(right, len(inside)))


def _share(due: Sequence[Grade], *answers: Answer) -> Share:
    return _of(sum(grade.answer in answers for grade in due), len(due))


def _of(count: int, total: int) -> Share:
    return Share(count, total, share_interval(count, total))
