"""A site's copy of the model: inner steps, outer gradients, outer steps. It knows nothing of how sites communicate."""

from collections.abc import Collection, Sequence

import numpy as np

from c4bench.errors import UnhealthyError
from c4bench.workload.diloco.fragments import Fragment
from c4bench.workload.diloco.quantisation import Bytes, Codec
from c4bench.workload.models.optimisers import AdamW, Nesterov
from c4bench.workload.models.protocol import Vector


class OuterState:
    """The parameters that sites share, and the outer optimiser's velocity, by fragment."""

    def __init__(self, initial: Vector, fragments: Sequence[Fragment], rate: float, momentum: float) -> None:
        self._fragments = tuple(fragments)
        self._parts = [part.gather(initial) for part in fragments]
        self._optimisers = [Nesterov(part.size, rate, momentum) for part in fragments]

    def part(self, number: int) -> Vector:
        """The outer parameters of a fragment."""
        return self._parts[number]

    def step(self, number: int, mean: Vector) -> None:
        """Take an outer step of a fragment by the mean outer gradient of the sites."""
        self._optimisers[number].step(self._parts[number], mean)

    def copy(self, number: int) -> Vector:
        """A fragment's parameters, then its velocity, to bring another site up to date."""
        return np.concatenate([self._parts[number], self._optimisers[number].state])

    def restore(self, number: int, state: Vector) -> None:
        """Take over what `copy` returned at another site."""
        self._parts[number][:], self._optimisers[number].state[:] = np.split(state, 2)

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
        parts = [self.outer.copy(number) for number in range(len(self._fragments))]
        return np.concatenate([self.parameters, self.inner.state, *parts])

    @state.setter
    def state(self, state: Vector) -> None:
        if state.size != self.state.size:
            raise UnhealthyError(f"a checkpoint of {state.size} items for a state of {self.state.size}: other model")
        ends = np.cumsum([self.parameters.size, self.inner.state.size, *(2 * part.size for part in self._fragments)])
        parameters, inner, *parts = np.split(state, ends[:-1])
        self.parameters[:], self.inner.state[:] = parameters, inner
        for number, part in enumerate(parts):
            self.outer.restore(number, part)


def mean_of(contributions: Sequence[Bytes], codec: Codec, count: int) -> Vector:
    """The mean of encoded outer gradients, summed in float32 in the order given, so that all sites get equal bits."""
    total = np.zeros(count, np.float32)
    for contribution in contributions:
        total += codec.decode(contribution, count)
    total /= np.float32(len(contributions))
    return total
