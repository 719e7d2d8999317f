"""The bandwidth between sites that each way to train needs for a compute utilisation.

The ways, their figures and the grid of bandwidths are those of the Streaming DiLoCo paper (arXiv 2501.18512v1): 50
bandwidths from 0.1 to 1,000 Gbit/s, evenly spaced by their logarithm, so that a step is 20.7 %.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from c4bench.cost.utilisation import (
    Compute,
    Granularity,
    Pattern,
    Schedule,
    data_parallel,
    diloco,
    first_on_grid,
    needed_bandwidth,
    streaming,
    utilisation,
)

GRID_BPS: tuple[float, ...] = tuple(np.logspace(8, 12, 50).tolist())
UTILISATIONS = (0.5, 0.8, 0.9, 0.95, 0.99)
# The paper's H: steps from one exchange of a layer to the next; layers of a fragment; and tau: the overlap in steps.
PERIOD, FRAGMENT_LAYERS, OVERLAP = 100, 3, 1
# What 4 bits send of the bits that the other methods send.
FOUR_BITS = 0.25
# How many bits of a parameter are sent: those with which the simulation meets the most figures of the paper.
BITS_PER_PARAMETER = 13.32


class Model(NamedTuple):
    """A model of the table: parameters, layers, and the seconds that a step computes."""

    name: str
    layers: int
    parameters: float
    step_s: float


class Method(StrEnum):
    """A way to train on several sites; each of the last three adds to the one before."""

    DATA_PARALLEL = "data-parallel"
    DILOCO = "DiLoCo"
    STREAMING = "Streaming DiLoCo"
    OVERLAPPED = "+ overlap"
    FOUR_BIT = "+ 4 bits"


# The models of the paper's table.
MODELS = (Model("1B", 24, 1e9, 0.1), Model("10B", 48, 1e10, 0.8), Model("100B", 108, 1e11, 4.9))


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


def printed(bandwidth_bps: float) -> str:
    """The bandwidth as the paper prints it, in Gbit/s: rounded to two decimals, and these to one."""
    return f"{round(bandwidth_bps / 1e9, 2):.1f}"


def format_bandwidth(cell: Cell) -> str:
    """The cell's bandwidth as the paper prints it, in Gbit/s; a bandwidth beyond the grid as more than its last."""
    return printed(cell.bandwidth_bps) if cell.point < len(GRID_BPS) else f"> {printed(GRID_BPS[-1])}"


def _row(model: Model, method: Method, settings: Settings) -> list[Cell]:
    compute = Compute.equal(model.layers, model.step_s)
    bits = layer_bits(model, method, settings)
    needed = needed_bandwidth(compute, bits, schedule(model, method, settings), UTILISATIONS)
    points = first_on_grid(needed, GRID_BPS)
    return [
        Cell(model.name, method, share, float(bandwidth), int(point))
        for share, bandwidth, point in zip(UTILISATIONS, needed, points, strict=True)
    ]
