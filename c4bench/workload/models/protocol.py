"""What a model offers to the jobs that train it.

Parameters and gradients are flat float32 vectors, so that optimisers, collectives and checkpoints know nothing else of
a model.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
# Shape (sequences, length + 1): each token but the last is an input, each but the first is to be predicted.
Tokens = NDArray[np.uint8]


@dataclass(frozen=True)
class Layer:
    """A layer's name, and where its parameters begin and end in the flat vector."""

    name: str
    begin: int
    end: int


class Model(Protocol):
    """A language model over byte tokens. All results depend on the arguments alone."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The embedding, then the blocks in order; together they are the whole vector, without gaps."""
        ...

    def initial(self, seed: int) -> Vector:
        """The parameters before the first step."""
        ...

    def gradient(self, parameters: Vector, tokens: Tokens, into: Vector) -> float:
        """Write the gradient of the mean loss over `tokens` to `into`, which is as long; returns the loss in nats."""
        ...

    def loss(self, parameters: Vector, tokens: Tokens) -> float:
        """The mean cross-entropy over `tokens`, in nats per token."""
        ...
