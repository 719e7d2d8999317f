"""Which parts of a model are synchronised, and when, in inner steps (arXiv 2501.18512, section 2.1 and algorithm 2)."""

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


@dataclass(frozen=True)
class Turn:
    """A fragment's turn to be synchronised: sent after inner step `sent`, received after inner step `received`.

    Steps count from 1; `number` counts the turns of all fragments.
    """

    number: int
    fragment: int
    sent: int
    received: int


@dataclass(frozen=True)
class Schedule:
    """Each of `fragments` fragments is sent once in `period` inner steps (H) and received `overlap` steps (tau) later.

    Turns are `spacing` steps apart. Fragment p is sent when t - t_p is a multiple of H, as algorithm 2 has it (the
    paper's text has t + t_p), with t_p = (p + 1) * spacing - tau: the last fragment is received by the end of the
    period, so that no fragment is under way at a multiple of H.
    """

    period: int
    fragments: int
    spacing: int
    overlap: int

    def turn(self, number: int) -> Turn:
        """The turn of this number."""
        periods, fragment = divmod(number, self.fragments)
        received = periods * self.period + (fragment + 1) * self.spacing
        return Turn(number, fragment, received - self.overlap, received)

    def first_after(self, step: int) -> int:
        """The number of the first turn that is sent after inner step `step`, or later."""
        number = step // self.period * self.fragments
        while self.turn(number).sent <= step:
            number += 1
        return number


def schedule(period: int, fragments: int, overlap: int, spacing: int = 0) -> Schedule:
    """The schedule of so many fragments; `spacing` 0 is the largest that has room for all, as in the paper.

    Raises UsageError for steps that do not fit each other, with the parameter's name.
    """
    if period < fragments:
        raise UsageError(
            f"inner_steps: {period} is less than the {fragments} fragments (with the embedding's), "
            "of which each needs a step of its own; use more steps or fewer fragments"
        )
    if spacing and (period % spacing or spacing * fragments > period):
        raise UsageError(
            f"inner_steps: {period} is not a multiple of spacing {spacing} that has room for {fragments} fragments; "
            f"use a multiple of {spacing}, at least {spacing * fragments}, or leave spacing out"
        )
    spacing = spacing or period // fragments
    if not 0 <= overlap < spacing:
        raise UsageError(
            f"overlap: {overlap} inner steps must be from 0 to {spacing - 1}: "
            f"the next fragment is sent {spacing} steps after a fragment ({period} inner_steps / {fragments} fragments)"
        )
    return Schedule(period, fragments, spacing, overlap)
