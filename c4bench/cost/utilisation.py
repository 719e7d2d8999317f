"""Which share of its time a replica computes if others are behind a slow link, and the bandwidth that it needs.

Model, ways to train, their figures and the grid of bandwidths are those of Streaming DiLoCo (arXiv 2501.18512v1).
A layer is sent once in each period of steps, and is needed again some steps later. A fragment is the set of layers that
are sent after the same step (section 2).

Section 3.1 simulates a graph of computations and transfers. A step computes the layers forward, then backward, and
there for each layer the gradient by its activations before the gradient by its parameters. The link is a queue: it
carries one layer at a time, in the order in which they are sent. A layer arrives `latency_s` after its last bit was
sent. What is needed and has not arrived stops the replica.

All times are sums and maxima, so the simulation is exact, and it runs for many bandwidths at once. Only layers that are
sent or waited for are events; the steps between them are one addition.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray


class Granularity(StrEnum):
    """What sends, or waits: a layer's part of a step, or the step."""

    LAYER = "layer"
    STEP = "step"


class Pattern(StrEnum):
    """Which layers a fragment has: consecutive ones, or every P-th (the paper's figure 2)."""

    SEQUENTIAL = "sequential"
    STRIDED = "strided"


class Schedule(msgspec.Struct, frozen=True):
    """A layer is sent after the step of the period that `offsets` has for it, and needed `1 + overlap` steps later.

    `sends`: a layer is sent as soon as the backward pass has its parameter gradient, or after the step.
    `waits`: the forward pass of the layer waits for what was received, or that of the whole step.
    """

    period: int
    offsets: tuple[int, ...]
    overlap: int = 0
    sends: Granularity = Granularity.LAYER
    waits: Granularity = Granularity.LAYER

    def __post_init__(self) -> None:
        """Raise ValueError for a layer that would be sent again before it was received, or never sent."""
        if not 0 <= self.overlap < self.period:
            raise ValueError(f"an overlap of {self.overlap} steps is not from 0 to below the period of {self.period}")
        if not self.offsets or not all(0 <= offset < self.period for offset in self.offsets):
            raise ValueError(f"offsets {self.offsets} are not from 0 to below the period of {self.period}")


def data_parallel(layers: int) -> Schedule:
    """All gradients are exchanged in every step."""
    return Schedule(1, (0,) * layers)


def diloco(layers: int, period: int) -> Schedule:
    """All outer gradients are exchanged after every `period` steps."""
    return Schedule(period, (0,) * layers)


def streaming(
    layers: int,
    fragments: int,
    period: int,
    overlap: int = 0,
    pattern: Pattern = Pattern.STRIDED,
    waits: Granularity = Granularity.LAYER,
) -> Schedule:
    """Every fragment is exchanged once in `period` steps; the offsets are as even as whole steps permit."""
    if not 1 <= fragments <= layers:
        raise ValueError(f"{layers} layers cannot be {fragments} fragments")
    offsets = [round(fragment * period / fragments) % period for fragment in range(fragments)]
    of_layer = (_fragment(layer, layers, fragments, pattern) for layer in range(layers))
    return Schedule(period, tuple(offsets[fragment] for fragment in of_layer), overlap, waits=waits)


def _fragment(layer: int, layers: int, fragments: int, pattern: Pattern) -> int:
    return layer % fragments if pattern is Pattern.STRIDED else layer * fragments // layers


Array = NDArray[np.float64]

_MAX_PERIODS, _MAX_LAG = 256, 12
# Relative to a step. Rounding errors of a period are smaller, and a difference of this size does not show.
_SAME = 1e-9
_COLUMNS, _ROUNDS = 64, 6


class Compute(msgspec.Struct, frozen=True):
    """The seconds that each layer computes in a step: forward, and backward by activations and by parameters."""

    forward_s: tuple[float, ...]
    activation_s: tuple[float, ...]
    parameter_s: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise ValueError for layers without all three times, for negative times, and for a step without any."""
        passes = (self.forward_s, self.activation_s, self.parameter_s)
        if len({len(times) for times in passes}) != 1 or min(min(times, default=-1.0) for times in passes) < 0:
            raise ValueError("every layer needs three times that are not negative")
        if self.step_s <= 0:
            raise ValueError("a step must take time")

    @property
    def step_s(self) -> float:
        """The seconds that a step computes."""
        return sum(self.forward_s) + sum(self.activation_s) + sum(self.parameter_s)

    @classmethod
    def equal(cls, layers: int, step_s: float) -> "Compute":
        """A step of 3 `layers` - 1 equal parts: nothing needs the gradient by the first layer's activations."""
        if layers < 1 or step_s <= 0:
            raise ValueError(f"{layers} layers that compute {step_s} s are no model")
        part = step_s / (3 * layers - 1)
        return cls((part,) * layers, (0.0,) + (part,) * (layers - 1), (part,) * layers)


class _Event(NamedTuple):
    """The replica computes for `after_s`; then it sends the layer, or waits for it."""

    after_s: float
    layer: int
    sends: bool


class _State(NamedTuple):
    """Seconds from the replica's present until the link is free, and until each layer has arrived; never negative."""

    free_s: Array
    arrived_s: Array


def utilisation(
    compute: Compute, bits: Sequence[float], schedule: Schedule, bandwidth_bps: ArrayLike, latency_s: float = 0.0
) -> Array:
    """Computing time as a share of all time in the long run, for each of the bandwidths; they may be infinite.

    `bits` are what the link carries for each layer. The simulation goes on until a period begins like an earlier one.
    Raises ValueError if the numbers of layers differ, or for a bandwidth, a size or a latency that is none.
    """
    if not 0 <= latency_s < np.inf:
        raise ValueError(f"a latency of {latency_s} s is not 0 or more")
    bandwidths = np.asarray(bandwidth_bps, dtype=np.float64)
    transfer_s = np.divide.outer(_sizes(compute, bits, schedule), _positive(bandwidths))
    events, rest_s = _events(compute, schedule)
    duration_s = _mean_period_s(events, rest_s, transfer_s, latency_s, _SAME * compute.step_s)
    return np.minimum(1.0, schedule.period * compute.step_s / duration_s)


def needed_bandwidth(
    compute: Compute, bits: Sequence[float], schedule: Schedule, wanted: Sequence[float], latency_s: float = 0.0
) -> Array:
    """The least bandwidth in bit/s, to nine digits, at which each wanted utilisation is reached; inf where none is.

    Utilisation never falls as the bandwidth grows, so intervals that contain the answer are divided.
    """
    goals = np.asarray(wanted, dtype=np.float64)
    if not ((goals > 0) & (goals < 1)).all():
        raise ValueError(f"{list(wanted)} are not utilisations between 0 and 1")

    def reached(bandwidth_bps: Array) -> NDArray[np.bool_]:
        flat = utilisation(compute, bits, schedule, bandwidth_bps.ravel(), latency_s)
        return flat.reshape(bandwidth_bps.shape) >= goals

    possible = utilisation(compute, bits, schedule, np.inf, latency_s) > goals + _SAME
    low, high = _bracket(compute, bits, schedule, goals)
    while (short := possible & ~reached(high)).any():
        high = np.where(short, 2 * high, high)
    for _ in range(_ROUNDS):
        grid = np.geomspace(low, high, _COLUMNS)
        enough = reached(grid)
        first = np.where(enough.any(axis=0), np.maximum(enough.argmax(axis=0), 1), _COLUMNS - 1)
        low, high = (np.take_along_axis(grid, index[None], axis=0)[0] for index in (first - 1, first))
    return np.where(possible, high, np.inf)


def first_on_grid(needed_bps: Array, grid_bps: Sequence[float]) -> NDArray[np.intp]:
    """The index of the least bandwidth of an ascending grid that suffices; the grid's length where none does."""
    return np.searchsorted(np.asarray(grid_bps), needed_bps, side="left")


def _sizes(compute: Compute, bits: Sequence[float], schedule: Schedule) -> Array:
    sizes = np.asarray(bits, dtype=np.float64)
    layers = len(compute.forward_s)
    if not len(sizes) == layers == len(schedule.offsets):
        raise ValueError(f"{layers} layers compute, {len(sizes)} have a size and {len(schedule.offsets)} an offset")
    if not (np.isfinite(sizes) & (sizes >= 0)).all():
        raise ValueError("a layer's size must be 0 bit or more")
    return sizes


def _positive(bandwidths: Array) -> Array:
    if not (bandwidths > 0).all():
        raise ValueError("a bandwidth must be more than 0 bit/s")
    return bandwidths


def _events(compute: Compute, schedule: Schedule) -> tuple[list[_Event], float]:
    """The events of a period in order of time, and how long the replica computes after the last one."""
    step_s = compute.step_s
    timed = sorted(_timed(compute, schedule))
    times_s = [0.0, *(step * step_s + time_s for step, _, time_s, _, _ in timed)]
    gaps_s = [max(0.0, later - before) for before, later in pairwise(times_s)]
    events = [_Event(gap_s, layer, sends) for gap_s, (_, sends, _, _, layer) in zip(gaps_s, timed, strict=True)]
    return events, schedule.period * step_s - times_s[-1]


def _timed(compute: Compute, schedule: Schedule) -> Iterator[tuple[int, bool, float, int, int]]:
    """Step, whether it is a send, time within the step, order among equals, and layer: all waits precede all sends."""
    forward_s = 0.0
    for layer, offset in enumerate(schedule.offsets):
        starts_s = 0.0 if schedule.waits is Granularity.STEP else forward_s
        yield (offset + 1 + schedule.overlap) % schedule.period, False, starts_s, layer, layer
        forward_s += compute.forward_s[layer]
    backward_s = forward_s
    for layer in reversed(range(len(schedule.offsets))):
        backward_s += compute.activation_s[layer] + compute.parameter_s[layer]
        ends_s = compute.step_s if schedule.sends is Granularity.STEP else backward_s
        yield schedule.offsets[layer], True, ends_s, -layer, layer


def _mean_period_s(
    events: Sequence[_Event], rest_s: float, transfer_s: Array, latency_s: float, same_s: float
) -> Array:
    """The mean duration of a period in the long run.

    Once a period begins like the one `lag` periods before, these `lag` periods repeat for ever. Where none does within
    `_MAX_PERIODS`, a queue is still growing slowly: then it is the mean of the later half, and at least what the link
    needs for all layers.
    """
    layers, columns = transfer_s.shape[0], transfer_s.shape[1:]
    states = [_State(np.zeros(columns), np.zeros((layers, *columns)))]
    ends_s = [np.zeros(columns)]
    mean_s = np.full(columns, np.nan)
    while np.isnan(mean_s).any() and len(states) <= _MAX_PERIODS:
        state, duration_s = _period(events, rest_s, transfer_s, latency_s, states[-1])
        ends_s.append(ends_s[-1] + duration_s)
        for lag in range(1, min(len(states), _MAX_LAG) + 1):
            repeats = np.isnan(mean_s) & _alike(state, states[-lag], same_s)
            mean_s = np.where(repeats, (ends_s[-1] - ends_s[-1 - lag]) / lag, mean_s)
        states.append(state)
    periods = len(ends_s) - 1
    recent_s = (ends_s[-1] - ends_s[periods // 2]) / (periods - periods // 2)
    return np.where(np.isnan(mean_s), np.maximum(recent_s, transfer_s.sum(axis=0)), mean_s)


def _period(
    events: Sequence[_Event], rest_s: float, transfer_s: Array, latency_s: float, state: _State
) -> tuple[_State, Array]:
    """The state after a period that begins with `state`, and the period's duration."""
    now_s = np.zeros_like(state.free_s)
    free_s, arrived_s = state.free_s, list(state.arrived_s)
    for event in events:
        now_s = now_s + event.after_s
        if event.sends:
            free_s = np.maximum(free_s, now_s) + transfer_s[event.layer]
            arrived_s[event.layer] = free_s + latency_s
        else:
            now_s = np.maximum(now_s, arrived_s[event.layer])
    now_s = now_s + rest_s
    return _State(np.maximum(free_s - now_s, 0.0), np.maximum(np.stack(arrived_s) - now_s, 0.0)), now_s


def _alike(one: _State, other: _State, same_s: float) -> NDArray[np.bool_]:
    different_s = np.maximum(np.abs(one.free_s - other.free_s), np.abs(one.arrived_s - other.arrived_s).max(axis=0))
    alike: NDArray[np.bool_] = different_s <= same_s
    return alike


def _bracket(compute: Compute, bits: Sequence[float], schedule: Schedule, goals: Array) -> tuple[Array, Array]:
    """Bandwidths between which each goal is reached without latency.

    The first cannot carry the bits of a period in that time. The second could even while nothing is computed.
    """
    total = float(_sizes(compute, bits, schedule).sum())
    if not total:
        raise ValueError("where nothing is sent any bandwidth suffices")
    least = total * goals / (schedule.period * compute.step_s)
    return least * (1 - _SAME), least / (1 - goals) * (1 + _SAME)


# 50 bandwidths from 0.1 to 1,000 Gbit/s, evenly spaced by their logarithm, so that a step is 20.7 %.
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
