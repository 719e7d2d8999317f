"""When the layers of a model are exchanged: data-parallel, DiLoCo and Streaming DiLoCo (arXiv 2501.18512, section 2).

A layer is sent once in each period of steps, and is needed again some steps later. A fragment is the set of layers that
are sent after the same step.
"""

from enum import StrEnum

import msgspec


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
