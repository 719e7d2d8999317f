"""Training steps of a named transformer, with its own sizes: tensor, pipeline, data and expert groups.

A step passes forward over all micro-batches, then backward (GPipe, arXiv 1811.06965). A pass over a stage's layers is
cut into pieces: a piece computes, then reduces its activations in the tensor group, and exchanges tokens in the expert
group. Gradients of a piece are reduced by a second thread while the last backward pass goes on.
"""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec

from c4bench.collective.communicator import Communicator
from c4bench.collective.options import Options
from c4bench.cost.transformer import MODELS, Accelerator, Parallelism, Transformer, forward_pass, gradients
from c4bench.errors import UsageError
from c4bench.model.step import RankGroup
from c4bench.workload import exchanges
from c4bench.workload.context import RankContext
from c4bench.workload.exchanges import Exchange, InBackground
from c4bench.workload.groups import cut


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a modelled cluster, whose GPUs send at `rate_bps`, becomes these hosts.

    All times are multiplied by `time`; bytes also by the rate of this rank's share of its host's NICs to `rate_bps`.
    So computing and sending keep their relation.
    """

    rate_bps: float = 400e9
    time: float = 0.01

    def bytes_factor(self, context: RankContext) -> float:
        """What a modelled number of bytes is multiplied by."""
        member = context.job.members[context.rank]
        neighbours = sum(other.host == member.host for other in context.job.members)
        rates = {nic.name: nic.rate_bps for nic in context.job.nics}
        return self.time * sum(rates[name] for name in member.nics) / neighbours / self.rate_bps


class Pretraining(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`steps` steps of `micro_batches`, each of `sequences` of `sequence` tokens; `pieces` of a stage's layers.

    `jitter` is the relative standard deviation of computing time, from the seed.
    """

    model: str
    steps: int
    parallelism: Parallelism = Parallelism()
    micro_batches: int = 8
    sequences: int = 1
    sequence: int = 2048
    pieces: int = 4
    accelerator: Accelerator = Accelerator()
    scale: Scale = Scale()
    jitter: float = 0.001
    resilient: bool = True
    profile: str = "brisk"


def named(model: str) -> Transformer:
    """A model by its name. Raises UsageError if there is none."""
    if model not in MODELS:
        raise UsageError(f"there is no model {model!r}; use {', '.join(MODELS)}")
    return MODELS[model]


def check(parameters: dict[str, Any]) -> None:
    """Raise UsageError, or msgspec's ValidationError, for parameters that no job can have."""
    wish = msgspec.convert(parameters, Pretraining)
    if problem := wish.parallelism.problem(named(wish.model)):
        raise UsageError(f"{wish.model}: {problem}")
    if min(wish.steps, wish.micro_batches, wish.sequences, wish.sequence, wish.pieces) < 1:
        raise UsageError("steps, micro_batches, sequences, sequence and pieces must be at least 1")


def run(context: RankContext) -> None:
    """Report `ready`, and finally `steps`: when each step ran, how long each computed, how many are exact."""
    parameters = context.parameters(Pretraining)
    if context.size != parameters.parallelism.ranks:
        raise UsageError(
            f"{context.size} ranks are not tensor x pipeline x data = {parameters.parallelism.ranks}; correct either"
        )
    with ExitStack() as stack:
        world = stack.enter_context(context.communicator("world", Options.of(parameters)))
        stage = _Stage(context, parameters, _groups(stack, world, parameters.parallelism))
        world.barrier()
        context.report("ready")
        spans = [timed(stage.step) for _ in range(parameters.steps)]
        world.barrier()
    context.report("steps", spans=spans, computed_s=stage.computed_s, exact=stage.exact)


def timed(step: Callable[[], None]) -> tuple[float, float]:
    """When a step began and ended, on this host's clock."""
    began = time.time()
    step()
    return began, time.time()


class _Groups(NamedTuple):
    """A rank's communicators; those of one rank send nothing."""

    tensor: Communicator
    pipeline: Communicator
    data: Communicator
    expert: Communicator
    copies: Communicator


def _groups(stack: ExitStack, world: Communicator, shared: Parallelism) -> _Groups:
    replica = shared.tensor * shared.data
    shapes = (
        RankGroup("tensor", shared.tensor),
        RankGroup("pipeline", shared.pipeline, replica),
        RankGroup("data", shared.data, shared.tensor),
        RankGroup("expert", shared.expert, shared.tensor),
        RankGroup("copies", shared.data // shared.expert, shared.tensor * shared.expert),
    )
    return _Groups(*(stack.enter_context(cut(world, shape)) for shape in shapes))


class _Stage:
    """One rank's share of the model, between steps."""

    def __init__(self, context: RankContext, parameters: Pretraining, groups: _Groups) -> None:
        model, shared = named(parameters.model), parameters.parallelism
        self._parameters, self._controls = parameters, context.controls
        self._noise = random.Random(f"{context.job.seed} {context.rank}")
        forward = forward_pass(model, shared, parameters.sequences, parameters.sequence, parameters.accelerator)
        factor, pieces = parameters.scale.bytes_factor(context), parameters.pieces
        self._piece_s = parameters.scale.time * forward.compute_s / pieces
        self._after_piece = _after_piece(groups, factor * forward.tensor_bytes, factor * forward.expert_bytes, pieces)
        stage, stage_bytes = groups.pipeline, factor * forward.stage_bytes
        before, behind = stage.rank > 0, stage.rank < stage.size - 1
        self._forward_in = [exchanges.receive(stage, stage.rank - 1, stage_bytes)] if before else []
        self._forward_out = [exchanges.send(stage, stage.rank + 1, stage_bytes)] if behind else []
        self._backward_in = [exchanges.receive(stage, stage.rank + 1, stage_bytes)] if behind else []
        self._backward_out = [exchanges.send(stage, stage.rank - 1, stage_bytes)] if before else []
        shared_bytes, expert_bytes = gradients(model, shared)
        sums = ((groups.data, shared_bytes), (groups.copies, expert_bytes))
        self._gradients = [
            [exchanges.all_reduce(comm, factor * size / pieces) for comm, size in sums if comm.size > 1 and size]
            for _ in range(pieces)
        ]
        self.computed_s: list[float] = []
        self.exact = 0

    def step(self) -> None:
        """All forward passes, all backward passes, and the gradients."""
        self._computed_s, self._right = 0.0, True
        for _ in range(self._parameters.micro_batches):
            self._pass(self._forward_in, 1, self._forward_out)
        reducer = InBackground()
        try:
            for left in reversed(range(self._parameters.micro_batches)):
                self._pass(self._backward_in, 2, self._backward_out, None if left else reducer)
        finally:
            right = reducer.finish()
        self.computed_s.append(self._computed_s)
        self.exact += self._right and right

    def _pass(
        self, before: list[Exchange], factor: int, behind: list[Exchange], reducer: InBackground | None = None
    ) -> None:
        """One pass over a micro-batch, which takes `factor` times as long as the forward pass."""
        self._all(before)
        for piece in range(self._parameters.pieces):
            began = time.monotonic()
            noise = max(0.0, self._noise.gauss(1.0, self._parameters.jitter))
            self._controls.compute(factor * self._piece_s * noise)
            self._computed_s += time.monotonic() - began
            self._all(self._after_piece)
            if reducer:
                reducer.give(self._gradients[piece])
        self._all(behind)

    def _all(self, group: list[Exchange]) -> None:
        for exchange in group:
            self._right = exchange() and self._right


def _after_piece(groups: _Groups, tensor_bytes: float, expert_bytes: float, pieces: int) -> list[Exchange]:
    """What follows the computing of a piece: tokens go to their experts and back, and activations are summed."""
    made = []
    if expert_bytes:
        made += [exchanges.all_to_all(groups.expert, expert_bytes / pieces)] * 2
    if tensor_bytes:
        made.append(exchanges.all_reduce(groups.tensor, tensor_bytes / pieces))
    return made
