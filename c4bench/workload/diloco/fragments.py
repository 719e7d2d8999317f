"""Fragments of a model: the parts that are synchronised one after another (arXiv 2501.18512, section 2.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from c4bench.collective.schedule import split
from c4bench.errors import UsageError
from c4bench.workload.models.protocol import Layer, Vector

Pattern = Literal["sequential", "strided"]


@dataclass(frozen=True)
class Fragment:
    """Layers that are synchronised together; `spans` are where their parameters are in the flat vector."""

    name: str
    layers: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(end - begin for begin, end in self.spans)

    def gather(self, vector: Vector) -> Vector:
        """A copy of the fragment's part of a vector, without gaps."""
        return np.concatenate([vector[begin:end] for begin, end in self.spans])

    def scatter(self, part: Vector, vector: Vector) -> None:
        """Write what `gather` returns back to its place."""
        edges = np.cumsum([0, *(end - begin for begin, end in self.spans)])
        for (begin, end), (first, last) in zip(self.spans, pairwise(edges), strict=True):
            vector[begin:end] = part[first:last]


def cut(layers: Sequence[Layer], count: int, pattern: Pattern) -> tuple[Fragment, ...]:
    """Cut a model's blocks into `count` fragments; its embedding, the first layer, is one more, and the last.

    `strided` puts block l into fragment l mod `count`; `sequential` keeps neighbours together. A single fragment is the
    whole model. Raises UsageError if there are fewer blocks than fragments.
    """
    embedding, *blocks = layers
    if count == 1:
        return (_fragment("all", layers),)
    if not 1 <= count <= len(blocks):
        raise UsageError(f"fragments: {count} must be from 1 to {len(blocks)}, the number of the model's blocks")
    if pattern == "strided":
        parts = [blocks[first::count] for first in range(count)]
    else:
        parts = [blocks[begin:end] for begin, end in split(len(blocks), count)]
    return (
        *(_fragment(f"blocks{number}", part) for number, part in enumerate(parts)),
        _fragment("embedding", [embedding]),
    )


def _fragment(name: str, layers: Sequence[Layer]) -> Fragment:
    spans: list[tuple[int, int]] = []
    for layer in layers:
        if spans and spans[-1][1] == layer.begin:
            spans[-1] = spans[-1][0], layer.end
        else:
            spans.append((layer.begin, layer.end))
    return Fragment(name, tuple(layer.name for layer in layers), tuple(spans))
