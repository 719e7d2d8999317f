"""How large a transformer is, and where each of its tensors lies in the flat vector of parameters."""

import math
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.random import default_rng

from c4bench.workload.models.protocol import Layer, Vector

TOKENS = 256  # every byte is a token
EXPANSION = 4  # the MLP's width, in widths of the model
# Those of GPT-2: most parameters are far from saturating anything, and the first loss is near that of guessing.
_DEVIATION = 0.02


class Size(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decoder-only transformer: blocks (`layers`), width of the residual stream, heads, and context in tokens."""

    layers: int = 2
    width: int = 32
    heads: int = 2
    context: int = 32

    def __post_init__(self) -> None:
        """Raise ValueError where no model has such a size; msgspec names the key."""
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 1")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")

    @property
    def head_width(self) -> int:
        """What a head has of the width."""
        return self.width // self.heads


@dataclass(frozen=True)
class Tensor:
    """One array of parameters; normally distributed before the first step with `deviation`, or all 1 where it is 0."""

    name: str
    shape: tuple[int, ...]
    begin: int
    deviation: float

    @property
    def end(self) -> int:
        """Where the next tensor begins."""
        return self.begin + math.prod(self.shape)


class Layout:
    """The tensors of a transformer of some size, in the order of the vector."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.tensors: list[Tensor] = []
        self.layers: list[Layer] = []
        self._add("embedding", _embedding(size))
        for number in range(size.layers):
            self._add(f"block {number}", _block(size))

    @property
    def parameters(self) -> int:
        """The length of the vector."""
        return self.tensors[-1].end

    def split(self, vector: Vector) -> list[Vector]:
        """Views of a vector of parameters, one for each tensor in its shape."""
        return [vector[tensor.begin : tensor.end].reshape(tensor.shape) for tensor in self.tensors]

    def initial(self, seed: int) -> Vector:
        """The parameters before the first step: gains are 1, the others normally distributed."""
        vector = np.ones(self.parameters, np.float32)
        for number, (tensor, view) in enumerate(zip(self.tensors, self.split(vector), strict=True)):
            if tensor.deviation:
                view[:] = default_rng([seed, number]).normal(0.0, tensor.deviation, tensor.shape)
        return vector

    def _add(self, layer: str, tensors: list[tuple[str, tuple[int, ...], float]]) -> None:
        begin = self.tensors[-1].end if self.tensors else 0
        for name, shape, deviation in tensors:
            at = self.tensors[-1].end if self.tensors else 0
            self.tensors.append(Tensor(f"{layer}: {name}", shape, at, deviation))
        self.layers.append(Layer(layer, begin, self.tensors[-1].end))


class LaidOut:
    """What models whose parameters have a `Layout` share."""

    def __init__(self, size: Size) -> None:
        self._layout = Layout(size)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """See `protocol.Model`."""
        return tuple(self._layout.layers)

    def initial(self, seed: int) -> Vector:
        """See `protocol.Model`."""
        return self._layout.initial(seed)


def _embedding(size: Size) -> list[tuple[str, tuple[int, ...], float]]:
    """What is shared by all blocks. The matrix of tokens also turns the last block's output into logits (tied)."""
    return [
        ("tokens", (TOKENS, size.width), _DEVIATION),
        ("positions", (size.context, size.width), _DEVIATION),
        ("final norm", (size.width,), 0.0),
    ]


def _block(size: Size) -> list[tuple[str, tuple[int, ...], float]]:
    """One block. What it adds to the residual stream is scaled down by the number of blocks, as in GPT-2."""
    width, hidden = size.width, EXPANSION * size.width
    scale = (2 * size.layers) ** -0.5
    return [
        ("attention norm", (width,), 0.0),
        ("query, key, value", (width, 3 * width), width**-0.5),
        ("query norm", (size.head_width,), 0.0),
        ("key norm", (size.head_width,), 0.0),
        ("attention out", (width, width), scale * width**-0.5),
        ("mlp norm", (width,), 0.0),
        ("mlp in", (width, hidden), width**-0.5),
        ("mlp out", (hidden, width), scale * hidden**-0.5),
    ]
