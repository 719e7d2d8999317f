"""How many bits of a parameter are sent, which the paper does not state, nor where the replica waits with overlap.

The bits are fitted: each published cell is met by an interval of bits, and the fit is the middle of the bits that meet
the most cells. With overlap the step waits, as in its algorithm 2; `fit` tells what waiting in each layer would give.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from c4bench.cost.utilisation import GRID_BPS, MODELS, Array, Cell, Settings, cells
from tools.diloco_paper.published import grid_points, published

# A fit is called flat over the bits that put this many of the 75 cells on their published bandwidth.
ENOUGH = 65
_AS_PUBLISHED = Settings()


class Fit(NamedTuple):
    """How many cells are met, by the bits of a parameter.

    `best` is the most cells, met from `low` to `high` bits. Around these, `flat` are the least and the most bits that
    meet `enough` cells, and `near` those with which no cell is more than one step of the grid off; nan if none do.
    """

    best: int
    low: float
    high: float
    flat: tuple[float, float]
    near: tuple[float, float]

    @property
    def bits(self) -> float:
        """The middle of the best interval."""
        return (self.low + self.high) / 2


class _Interval(NamedTuple):
    """Bits of a parameter that put a cell on its published bandwidth: above `low` up to `high`; one step more each."""

    low: float
    high: float
    near_low: float
    near_high: float


def fit(settings: Settings = _AS_PUBLISHED, enough: int = ENOUGH) -> Fit:
    """The bits of a parameter that meet the most cells of the published table.

    The bandwidth that a cell needs is proportional to the bits. So a cell is met by one interval of bits,
    and the number of cells changes only at the ends of these intervals.
    """
    unit = cells(MODELS, settings._replace(bits=1.0))
    intervals = [_interval(cell) for cell in unit]
    ends = np.unique([end for interval in intervals for end in interval])
    upper = ends[1:]
    met = np.sum([(each.low < upper) & (upper <= each.high) for each in intervals], axis=0)
    near = np.sum([(each.near_low < upper) & (upper <= each.near_high) for each in intervals], axis=0)
    best = int(np.max(met))
    at = int(np.argmax(met))
    low, high = _run(ends, met == best, at)
    return Fit(best, low, high, _run(ends, met >= enough, at), _run(ends, near == len(unit), at))


def _interval(cell: Cell) -> _Interval:
    """For a cell whose bandwidth is that of one bit per parameter; a grid point serves all above the one before it."""
    grid = (0.0, 0.0, *GRID_BPS, float("inf"))
    points = grid_points(published(cell))
    first, last = points[0] + 2, points[-1] + 2
    return _Interval(*(grid[index] / cell.needed_bps for index in (first - 1, last, first - 2, last + 1)))


def _run(ends: Array, chosen: NDArray[np.bool_], at: int) -> tuple[float, float]:
    """The ends of the chosen intervals around the one at index `at`; from nan to nan if that is not chosen."""
    if not chosen[at]:
        return float("nan"), float("nan")
    missed = np.flatnonzero(~chosen)
    before, after = missed[missed < at], missed[missed > at]
    first = int(before[-1]) + 1 if len(before) else 0
    last = int(after[0]) if len(after) else len(chosen)
    return float(ends[first]), float(ends[last])
