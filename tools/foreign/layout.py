"""How a simulated job divides its ranks into groups, and what each of its pipeline's stages calls in an iteration.

Ranks are numbered as in Megatron-LM: tensor groups first, then context, data and pipeline groups. Stages follow the
schedule 1F1B (PipeDream-Flush): some forward passes, then forward and backward passes in turn, then what is left.
"""

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

_HIDDEN = 1 << 20


class Dimension(StrEnum):
    """A kind of groups, by the descriptions that Megatron-LM gives them."""

    WORLD = "default_pg"
    TENSOR = "TENSOR_MODEL_PARALLEL_GROUP"
    CONTEXT = "CONTEXT_PARALLEL_GROUP"
    DATA = "DATA_PARALLEL_GROUP_WITH_CP"
    EXPERT = "EXPERT_MODEL_PARALLEL_GROUP"
    PIPELINE = "PIPELINE_MODEL_PARALLEL_GROUP"


class Waits(StrEnum):
    """Where a program waits for the device: once an iteration, also after each transfer, or before each all-to-all."""

    ITERATION = "iteration"
    TRANSFERS = "transfers"
    EXPERTS = "experts"


class Layout(NamedTuple):
    """The sizes of a job's groups; `expert` divides `data`."""

    tensor: int
    context: int
    data: int
    pipeline: int
    expert: int

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.tensor * self.context * self.data * self.pipeline

    def groups(self) -> Iterator[tuple[Dimension, tuple[int, ...]]]:
        """All groups of more than one rank, with their members in order."""
        tensor, context, data, _, expert = self
        inner, stage = tensor * context, tensor * context * data
        starts = {
            Dimension.WORLD: ([0], range(self.ranks)),
            Dimension.TENSOR: (range(0, self.ranks, tensor), range(tensor)),
            Dimension.CONTEXT: (
                [at + t for at in range(0, self.ranks, inner) for t in range(tensor)], range(0, inner, tensor),
            ),
            Dimension.DATA: ([at + t for at in range(0, self.ranks, stage) for t in range(tensor)],
                             range(0, stage, tensor)),
            Dimension.EXPERT: (
                [at + i for at in range(0, self.ranks, inner * expert) for i in range(inner)],
                range(0, inner * expert, inner),
            ),
            Dimension.PIPELINE: (range(stage), range(0, self.ranks, stage)),
        }  # fmt: skip
        for dimension, (firsts, offsets) in starts.items():
            if len(offsets) > 1:
                for first in firsts:
                    yield dimension, tuple(first + offset for offset in offsets)

    def stage(self, rank: int) -> int:
        """The stage of the pipeline that a rank belongs to."""
        return rank // (self.tensor * self.context * self.data)


class Step(NamedTuple):
    """A call of a program: a collective, or `transfers` (send or recv, and the stage on the other side) in one batch.

    Later calls run after one that is not `overlapped`. The program waits for all its calls before one with `waits`.
    """

    dimension: Dimension
    kind: str
    elements: int
    transfers: tuple[tuple[str, int], ...] = ()
    overlapped: bool = False
    waits: bool = False


class Program(NamedTuple):
    """What is alike in all ranks: the layout, how many batches and layers an iteration has, and how ranks run ahead."""

    layout: Layout
    batches: int
    layers: int
    waits: Waits
    overlapped: bool

    def iteration(self, stage: int) -> list[Step]:
        """The calls of a stage's ranks in an iteration, in order. The first of them waits for the one before it."""
        last = self.layout.pipeline - 1
        ahead = min(last - stage, self.batches)
        steps: list[Step] = []
        for _ in range(ahead):
            steps += [*self._transfer(("recv", stage - 1)), *self._pass(), *self._transfer(("send", stage + 1))]
        turns = self.batches - ahead
        if turns:
            steps += self._transfer(("recv", stage - 1))
        for turn in range(turns):
            steps += [*self._pass(), *self._transfer(("send", stage + 1), ("recv", stage + 1)), *self._pass()]
            more = turn + 1 < turns
            steps += self._transfer(("send", stage - 1), *([("recv", stage - 1)] if more else []))
        for _ in range(ahead):
            steps += [*self._transfer(("recv", stage + 1)), *self._pass(), *self._transfer(("send", stage - 1))]
        steps += self._end()
        return [steps[0]._replace(waits=True), *steps[1:]]

    def _pass(self) -> Iterator[Step]:
        """The collectives of the layers of a forward or backward pass."""
        layout, hidden = self.layout, _HIDDEN
        for _ in range(self.layers):
            if layout.tensor > 1:
                yield Step(Dimension.TENSOR, "_all_gather_base", hidden)
            if layout.context > 1:
                yield Step(Dimension.CONTEXT, "_all_gather_base", hidden // 2, overlapped=self.overlapped)
            if layout.expert > 1:
                yield Step(Dimension.EXPERT, "all_to_all", hidden, waits=self.waits is Waits.EXPERTS)
                yield Step(Dimension.EXPERT, "all_to_all", hidden)
            if layout.tensor > 1:
                yield Step(Dimension.TENSOR, "_reduce_scatter_base", hidden)

    def _transfer(self, *transfers: tuple[str, int]) -> Iterator[Step]:
        """Transfers to and from stages that there are, as one call."""
        there = tuple(one for one in transfers if 0 <= one[1] < self.layout.pipeline)
        if there:
            yield Step(Dimension.PIPELINE, "transfer", _HIDDEN, there)

    def _end(self) -> Iterator[Step]:
        """What ends an iteration: gradients, and the norm, which all ranks need."""
        if self.layout.data * self.layout.context > 1:
            yield Step(Dimension.DATA, "_reduce_scatter_base", 8 * _HIDDEN, overlapped=self.overlapped)
        yield Step(Dimension.WORLD, "all_reduce", 1)
        if self.layout.data * self.layout.context > 1:
            yield Step(Dimension.DATA, "_all_gather_base", _HIDDEN, waits=True)

    def calls(self, stage: int, iterations: int) -> list[Step]:
        """The calls of several iterations; a program that waits for transfers does so before the next call."""
        steps = [step for _ in range(iterations) for step in self.iteration(stage)]
        if self.waits is Waits.TRANSFERS:
            after = [False, *(bool(step.transfers) for step in steps[:-1])]
            steps = [step._replace(waits=step.waits or late) for step, late in zip(steps, after, strict=True)]
        return steps


def drawn_program(rng: random.Random, ranks: int, most_calls: int) -> Program:
    """A program for so many ranks, a power of two; all ranks together make about `most_calls` in an iteration."""
    left = ranks
    sizes: dict[str, int] = {}
    for name, most in (("tensor", 8), ("pipeline", 16), ("context", 4)):
        choices = [1 << power for power in range(most.bit_length()) if 1 << power <= left // 2]
        sizes[name] = rng.choice(choices or [1])
        left //= sizes[name]
    expert = rng.choice([size for size in (1, 1, 2, 4, 8) if size <= left])
    layout = Layout(sizes["tensor"], sizes["context"], left, sizes["pipeline"], expert)
    batches = rng.randint(1, 2) * sizes["pipeline"] if rng.random() < 0.7 else rng.randint(1, 8)
    per_layer = 2 * (layout.tensor > 1) + (layout.context > 1) + 2 * (layout.expert > 1)
    batches = max(1, min(batches, most_calls // (ranks * max(2, 2 * per_layer))))
    layers = max(1, min(rng.randint(1, 6), most_calls // (ranks * 2 * batches * max(1, per_layer))))
    waits = rng.choice(list(Waits))
    return Program(layout, batches, layers, waits, overlapped=rng.random() < 0.5)
