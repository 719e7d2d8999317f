"""A site's copy of the model, and the inner and outer steps that train it, in order (arXiv 2501.18512, algorithm 2)."""

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.errors import UnhealthyError, UsageError
from c4bench.workload.controls import Controls
from c4bench.workload.diloco.parameters import Diloco
from c4bench.workload.diloco.plan import Fragment, Schedule, Turn
from c4bench.workload.diloco.quantisation import Bytes, Codec
from c4bench.workload.models.corpus import Corpus
from c4bench.workload.models.optimisers import AdamW, Nesterov
from c4bench.workload.models.protocol import Model, Vector


class OuterState:
    """The parameters that sites share, and the outer optimiser's velocity, by fragment.

    `versions` has the number of the turn that each fragment comes from, -1 before its first.
    """

    def __init__(self, initial: Vector, fragments: Sequence[Fragment], rate: float, momentum: float) -> None:
        self._fragments = tuple(fragments)
        self._parts = [part.gather(initial) for part in fragments]
        self._optimisers = [Nesterov(part.size, rate, momentum) for part in fragments]
        self.versions = [-1] * len(fragments)

    def part(self, number: int) -> Vector:
        """The outer parameters of a fragment."""
        return self._parts[number]

    def step(self, number: int, mean: Vector, turn: int) -> None:
        """Take the outer step of a fragment's turn by the mean outer gradient of the sites."""
        self._optimisers[number].step(self._parts[number], mean)
        self.versions[number] = turn

    def copied_items(self, numbers: Collection[int]) -> int:
        """The length of a copy of these fragments."""
        return sum(2 * self._parts[number].size + 1 for number in numbers)

    def copy(self, numbers: Collection[int]) -> Vector:
        """For each of these fragments its parameters, velocity and version, to bring another site up to date.

        Versions are exact in float32 up to 2^24.
        """
        parts = ((self._parts[n], self._optimisers[n].state, [self.versions[n]]) for n in numbers)
        return np.concatenate([np.asarray(item, np.float32) for part in parts for item in part])

    def restore(self, numbers: Collection[int], state: Vector) -> None:
        """Take over what `copy` returned at another site."""
        for number in numbers:
            size = self._parts[number].size
            self._parts[number][:], self._optimisers[number].state[:] = state[:size], state[size : 2 * size]
            self.versions[number] = int(state[2 * size])
            state = state[2 * size + 1 :]

    def parameters(self) -> Vector:
        """All outer parameters as the model's flat vector."""
        whole = np.empty(sum(part.size for part in self._fragments), np.float32)
        for fragment, part in zip(self._fragments, self._parts, strict=True):
            fragment.scatter(part, whole)
        return whole


class Replica:
    """The parameters of one site, trained by AdamW from `initial` on, and merged with the outer ones by `mixing`."""

    def __init__(
        self, initial: Vector, fragments: Sequence[Fragment], inner: AdamW, outer: OuterState, mixing: float
    ) -> None:
        self.parameters = initial.copy()
        self.inner, self.outer = inner, outer
        self._fragments = tuple(fragments)
        self._mixing = np.float32(mixing)

    def outer_gradient(self, number: int) -> Vector:
        """The outer parameters of a fragment minus the site's: a gradient, down which the outer step goes."""
        gradient: Vector = self.outer.part(number) - self._fragments[number].gather(self.parameters)
        return gradient

    def merge(self, number: int) -> None:
        """Mix the outer parameters of a fragment into the site's."""
        fragment = self._fragments[number]
        own = fragment.gather(self.parameters)
        own *= self._mixing
        own += (1 - self._mixing) * self.outer.part(number)
        fragment.scatter(own, self.parameters)

    def adopt(self, numbers: Collection[int]) -> None:
        """Replace the site's parameters of these fragments by the outer ones."""
        for number in numbers:
            self._fragments[number].scatter(self.outer.part(number), self.parameters)

    @property
    def state(self) -> Vector:
        """Everything that training continues from, as one vector."""
        return np.concatenate([self.parameters, self.inner.state, self.outer.copy(range(len(self._fragments)))])

    @state.setter
    def state(self, state: Vector) -> None:
        if state.size != self.state.size:
            raise UnhealthyError(f"a checkpoint of {state.size} items for a state of {self.state.size}: other model")
        ends = np.cumsum([self.parameters.size, self.inner.state.size])
        self.parameters[:], self.inner.state[:], outer = np.split(state, ends)
        self.outer.restore(range(len(self._fragments)), outer)


def mean_of(contributions: Sequence[Bytes], codec: Codec, count: int) -> Vector:
    """The mean of encoded outer gradients, summed in float32 in the order given, so that all sites get equal bits."""
    total = np.zeros(count, np.float32)
    for contribution in contributions:
        total += codec.decode(contribution, count)
    total /= np.float32(len(contributions))
    return total


class Batches:
    """The gradient of a rank's own batch, by the seed, the step and the rank alone."""

    def __init__(self, model: Model, corpus: Corpus, parameters: Diloco, seed: int) -> None:
        self._model, self._corpus, self._seed = model, corpus, seed
        self._shape = parameters.sequences, parameters.model.context

    def gradient(self, weights: Vector, number: int, rank: int, into: Vector) -> float:
        """Write the gradient of a rank's batch in inner step `number`, from 1, and return its loss."""
        batch = self._corpus.batch(self._seed, number - 1, rank, *self._shape)
        return self._model.gradient(weights, batch, into)


class InnerStep:
    """Steps of rank `rank`, whose `weights` are changed in place; `computed_s` sums the time that they computed."""

    def __init__(
        self,
        batches: Batches,
        weights: Vector,
        inner: AdamW,
        comm: Communicator,
        controls: Controls,
        parameters: Diloco,
        rank: int,
    ) -> None:
        self._batches, self._weights, self._inner, self._comm = batches, weights, inner, comm
        self._controls, self._parameters, self._rank = controls, parameters, rank
        # The gradient, then the loss.
        self._sum = np.zeros(weights.size + 1, np.float32)
        self.computed_s = 0.0

    def __call__(self, number: int) -> float:
        """Inner step `number`, from 1; returns the mean loss of all ranks' batches."""
        noise = random.Random(f"{self._rank} {number}").gauss(1.0, self._parameters.jitter)
        began_s = time.monotonic()
        self._controls.compute(self._parameters.compute_s * max(0.0, noise))
        self.computed_s += time.monotonic() - began_s
        total = self._sum
        total[-1] = self._batches.gradient(self._weights, number, self._rank, total[:-1])
        self._reduce(total)
        total /= np.float32(self._comm.size)
        self._inner.rate = self._parameters.rate_at(number)
        self._inner.step(number, self._weights, total[:-1])
        return float(total[-1])

    def _reduce(self, total: Vector) -> None:
        if self._parameters.gradients == "float32":
            self._comm.all_reduce(total)
            return
        short = total[:-1].astype(_bfloat16())
        self._comm.all_reduce(short)
        self._comm.all_reduce(total[-1:])
        total[:-1] = short


def _bfloat16() -> np.dtype[np.generic]:
    """Numpy's bfloat16, which comes with another package. Raises UsageError if that is not installed."""
    try:
        from ml_dtypes import bfloat16  # noqa: PLC0415  (only these jobs need it)
    except ImportError:
        raise UsageError("gradients: bfloat16 needs ml_dtypes; run: pip install ml-dtypes") from None
    kind: np.dtype[np.generic] = np.dtype(bfloat16)
    return kind


@dataclass(frozen=True)
class Outcome:
    """What came of a turn: whether there was an outer step, and which fragments another site has brought up to date.

    `following` is the number of the site's next turn: a site that came too late goes on with a later one.
    """

    stepped: bool
    adopted: tuple[int, ...]
    following: int


class Exchange(Protocol):
    """Exchanges outer gradients with other sites, and takes the outer steps. One turn at a time."""

    def send(self, turn: Turn, gradient: Vector) -> None:
        """Begin a turn with this site's outer gradient; returns at once."""

    def receive(self) -> Outcome:
        """Wait for the end of the turn."""


class Step(NamedTuple):
    """A finished inner step, counted from 1, and the mean loss of the site's batches."""

    number: int
    loss: float


def train(
    replica: Replica, inner_step: Callable[[int], float], plan: Schedule, exchange: Exchange, steps: range
) -> Iterator[Step]:
    """Train after `steps.start` inner steps until there are `steps.stop`. No turn may be under way at the start.

    A site that came too late for a turn leaves out the inner steps that the others are ahead.
    """
    turn = plan.turn(plan.first_after(steps.start))
    number = steps.start
    while number < steps.stop:
        number += 1
        step, late = Step(number, inner_step(number)), False
        if number == turn.sent:
            exchange.send(turn, replica.outer_gradient(turn.fragment))
        if number == turn.received:
            outcome = exchange.receive()
            if outcome.stepped:
                replica.merge(turn.fragment)
            replica.adopt(outcome.adopted)
            late = outcome.following != turn.number + 1
            turn = plan.turn(outcome.following)
        yield step
        if late:
            number = turn.sent - 1
