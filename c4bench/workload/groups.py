"""A job with overlapping communicators: steps of computing, and collectives over all ranks or over groups."""

import itertools
import random
import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec
import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.memory import Array
from c4bench.collective.options import Options
from c4bench.errors import UsageError
from c4bench.model.step import RankGroup, StepOp
from c4bench.workload.context import RankContext


class StepNoise(msgspec.Struct, frozen=True):
    """One step of one rank: the factor on its computing time, and how long it waits first."""

    factor: float
    wait_s: float


CALM = StepNoise(1.0, 0.0)


class BenignNoise:
    """Draws the steps of `rank` of `size`; an undisturbed step takes `step_s`.

    Sequences are long and short alternately. The first steps warm up. Sometimes all ranks write a checkpoint, one waits
    for data, or one collects garbage. None takes as long as a hang.
    """

    _WARM_UP = 5
    _CALM_STEPS = 12

    def __init__(self, seed: int, rank: int, size: int, step_s: float) -> None:
        self._draw = random.Random(f"{seed} unrest")
        self._rank, self._size, self._step_s = rank, size, step_s
        self._steps = 0

    def step(self) -> StepNoise:
        """The next step. Every rank draws the same numbers, so that they agree on which rank is disturbed."""
        self._steps += 1
        factor = 1.4 if self._steps % 2 else 0.6
        if self._steps <= self._WARM_UP:
            return StepNoise(factor * 3, 0.0)
        kind = self._draw.randrange(3 * self._CALM_STEPS)
        whom, share = self._draw.randrange(self._size), self._draw.uniform(0.2, 0.8)
        if kind == 0:
            return StepNoise(factor, 10 * share * self._step_s)
        if kind == 1 and whom == self._rank:
            # Half a second at most: a stall shorter than max(1 s, 3 periods) is benign.
            return StepNoise(factor, min(0.5, 10 * share * self._step_s))
        if kind == 2 and whom == self._rank:
            return StepNoise(factor * (1 + 2 * share), 0.0)
        return StepNoise(factor, 0.0)


Call = Callable[[], None]


class Groups(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The operations of a step; `jitter` is the relative standard deviation of computing time, from the seed.

    With `unrest` the job has benign disturbances that could look like faults. It ends
    after `steps` steps; 0 is never.
    """

    step: tuple[StepOp, ...]
    jitter: float = 0.01
    paths: str = "planned"
    profile: str = "brisk"
    unrest: bool = False
    steps: int = 0


def run(context: RankContext) -> None:
    """Repeat the step. Reports `ready` once each of its collectives has run, and `done` after the last step."""
    parameters = context.parameters(Groups)
    jitter = random.Random(f"{context.job.seed} {context.rank}")
    with ExitStack() as stack:
        world = stack.enter_context(context.communicator("world", Options.of(parameters)))
        comms: dict[RankGroup | None, Communicator] = {None: world}
        for group in dict.fromkeys(op.group for op in parameters.step if op.group):
            comms[group] = stack.enter_context(cut(world, group))
        calls = [(op.compute_s, call_of(op.kind, comms[op.group], op.size_bytes)) for op in parameters.step]
        for _, call in calls:
            call()
        steps = BenignNoise(context.job.seed, context.rank, context.size, sum(compute_s for compute_s, _ in calls))
        context.report("ready")
        for _ in range(parameters.steps) if parameters.steps else itertools.count():
            step = steps.step() if parameters.unrest else CALM
            time.sleep(step.wait_s)
            for compute_s, call in calls:
                if compute_s:
                    context.controls.compute(step.factor * compute_s * max(0.0, jitter.gauss(1.0, parameters.jitter)))
                call()
        context.report("done")


def cut(world: Communicator, group: RankGroup) -> Communicator:
    """Make the communicators of a group, and return this rank's. Raises UsageError if they do not divide the ranks."""
    if world.size % (group.size * group.stride):
        raise UsageError(
            f"{world.size} ranks cannot be cut into groups {group.name!r} of {group.size} with stride {group.stride}"
        )
    own = world.split(group.first(world.rank), group.index_of(world.rank))
    assert own is not None  # every rank gives a colour
    return own


def call_of(kind: str, comm: Communicator, size_bytes: int) -> Call:
    """A collective as a function without arguments. Raises UsageError for a kind that steps do not support."""
    array = np.zeros(size_bytes // 4, np.float32)
    match kind:
        case "all_reduce":
            return lambda: comm.all_reduce(array)
        case "all_gather":
            part = np.zeros(size_bytes // 4 // comm.size, np.float32)
            whole = np.zeros(part.size * comm.size, np.float32)
            return lambda: comm.all_gather(whole, part)
        case "all_to_all":
            tokens = np.zeros((comm.size, size_bytes // 4 // comm.size), np.float32)
            received = np.empty_like(tokens)
            return lambda: comm.all_to_all(received, tokens)
        case "send":
            return lambda: _pass_on(comm, array)
        case _:
            raise UsageError(f"a step has no {kind!r}; use all_reduce, all_gather, all_to_all or send")


def _pass_on(comm: Communicator, array: Array) -> None:
    """Send from stage to stage, as in a pipeline."""
    if comm.rank > 0:
        comm.recv(array, comm.rank - 1)
    if comm.rank < comm.size - 1:
        comm.send(array, comm.rank + 1)
