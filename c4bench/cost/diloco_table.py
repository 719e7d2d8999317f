"""The bandwidth that each method needs for a utilisation, beside the published Table 4 of Streaming DiLoCo.

The paper states neither how many bits a parameter takes nor where the replica waits with overlap. The bits are fitted:
each published cell is met by an interval of bits, and the fit is the middle of the bits that meet the most cells. With
overlap the step waits, as in its algorithm 2; `fit` tells what waiting in each layer would give.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from c4bench.cost.diloco_paper import (
    FOUR_BITS,
    FRAGMENT_LAYERS,
    GRID_BPS,
    MODELS,
    OVERLAP,
    PERIOD,
    TABLE_4,
    UTILISATIONS,
    Method,
    Model,
    grid_points,
)
from c4bench.cost.schedules import Granularity, Pattern, Schedule, data_parallel, diloco, streaming
from c4bench.cost.utilisation import Array, Compute, first_on_grid, needed_bandwidth, utilisation

# The result of `fit()`, to two decimals.
BITS_PER_PARAMETER = 13.32
# A fit is called flat over the bits that put this many of the 75 cells on their published bandwidth.
ENOUGH = 65


class Settings(NamedTuple):
    """What the methods have in common; `waits` is where the replica waits with overlap."""

    bits: float = BITS_PER_PARAMETER
    period: int = PERIOD
    fragment_layers: int = FRAGMENT_LAYERS
    overlap: int = OVERLAP
    pattern: Pattern = Pattern.STRIDED
    waits: Granularity = Granularity.STEP


_AS_PUBLISHED = Settings()


class Cell(NamedTuple):
    """The bandwidth that a method needs; `point` is its index on the grid, or the grid's length if none suffices."""

    model: str
    method: Method
    utilisation: float
    needed_bps: float
    point: int

    @property
    def bandwidth_bps(self) -> float:
        """The least bandwidth of the grid that suffices; inf if none does."""
        return GRID_BPS[self.point] if self.point < len(GRID_BPS) else float("inf")

    @property
    def published(self) -> str:
        """What the paper prints for this cell; empty for a model that it does not have."""
        row = TABLE_4.get((self.model, self.method))
        return row[UTILISATIONS.index(self.utilisation)] if row else ""

    @property
    def steps_off(self) -> int:
        """Steps of the grid from the published bandwidth to this one: negative if this one is lower, 0 without one."""
        return min((self.point - other for other in grid_points(self.published)), key=abs, default=0)


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


def schedule(model: Model, method: Method, settings: Settings) -> Schedule:
    """When the method exchanges the model's layers."""
    if method is Method.DATA_PARALLEL:
        return data_parallel(model.layers)
    if method is Method.DILOCO:
        return diloco(model.layers, settings.period)
    overlap = 0 if method is Method.STREAMING else settings.overlap
    waits = settings.waits if overlap else Granularity.LAYER
    fragments = -(-model.layers // settings.fragment_layers)
    return streaming(model.layers, fragments, settings.period, overlap, settings.pattern, waits)


def layer_bits(model: Model, method: Method, settings: Settings) -> list[float]:
    """What the link carries for each layer, if all layers have the same size."""
    bits = settings.bits * (FOUR_BITS if method is Method.FOUR_BIT else 1.0)
    return [bits * model.parameters / model.layers] * model.layers


def curve(
    model: Model, method: Method, settings: Settings = _AS_PUBLISHED, bandwidth_bps: Sequence[float] = GRID_BPS
) -> list[float]:
    """The utilisation at each of the bandwidths."""
    compute = Compute.equal(model.layers, model.step_s)
    bits = layer_bits(model, method, settings)
    return [float(share) for share in utilisation(compute, bits, schedule(model, method, settings), bandwidth_bps)]


def cells(models: Sequence[Model] = MODELS, settings: Settings = _AS_PUBLISHED) -> list[Cell]:
    """The table's cells: by model, by method, by utilisation."""
    return [cell for model in models for method in Method for cell in _row(model, method, settings)]


def on_grid(table: Sequence[Cell]) -> int:
    """How many cells of the paper's models have the published bandwidth."""
    return sum(cell.published != "" and cell.steps_off == 0 for cell in table)


def within_step(table: Sequence[Cell]) -> int:
    """How many cells of the paper's models are at most one step of the grid off."""
    return sum(cell.published != "" and abs(cell.steps_off) <= 1 for cell in table)


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


def _row(model: Model, method: Method, settings: Settings) -> list[Cell]:
    compute = Compute.equal(model.layers, model.step_s)
    bits = layer_bits(model, method, settings)
    needed = needed_bandwidth(compute, bits, schedule(model, method, settings), UTILISATIONS)
    points = first_on_grid(needed, GRID_BPS)
    return [
        Cell(model.name, method, share, float(bandwidth), int(point))
        for share, bandwidth, point in zip(UTILISATIONS, needed, points, strict=True)
    ]


def _interval(cell: Cell) -> _Interval:
    """For a cell whose bandwidth is that of one bit per parameter; a grid point serves all above the one before it."""
    grid = (0.0, 0.0, *GRID_BPS, float("inf"))
    points = grid_points(cell.published)
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
