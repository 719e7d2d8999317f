"""A site's copy of the model: inner steps, outer gradients, outer steps. It knows nothing of how sites communicate."""

from collections.abc import Collection, Sequence

import numpy as np

from c4bench.errors import UnhealthyError
from c4bench.workload.diloco.fragments import Fragment
from c4bench.workload.diloco.quantisation import Bytes, Codec
from c4bench.workload.models.optimisers import AdamW, Nesterov
from c4bench.workload.models.protocol import Vector


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
