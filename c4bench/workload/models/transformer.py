"""A small decoder-only transformer in numpy, differentiated by autograd.

Pre-norm blocks of causal attention and an MLP, with RMS norms and no biases. Queries and keys are normalised in each
head (QK-norm, as in Streaming DiLoCo's models). Positions are learned, and the embedding's matrix is also the output's
(tied). All is float32, and one thread computes it: the same arguments give the same bits on processors of one kind.
Operations with their derivatives are each one step of autograd's tape, where numpy's functions would be many.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import autograd.numpy as traced
import numpy as np
from autograd import make_vjp
from autograd.extend import defvjp, primitive
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from c4bench.workload.models.protocol import Tokens, Vector
from c4bench.workload.models.size import LaidOut, Size

_EPSILON = np.float32(1e-6)
_CUBE, _SCALE = np.float32(0.044715), np.float32(math.sqrt(2 / math.pi))
_HALF, _ONE, _THREE = np.float32(0.5), np.float32(1), np.float32(3)
Indices = NDArray[np.intp]


def _step(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function one step of the tape."""
    return cast("Callable[..., Any]", primitive(function))


@_step
def rms_norm(x: Vector, gain: Vector) -> Vector:
    """Divide by the root mean square over the last axis and multiply by `gain` (Zhang, Sennrich 2019)."""
    return x * _inverse_rms(x) * gain


@_step
def gelu(x: Vector) -> Vector:
    """GELU in its tanh form (Hendrycks, Gimpel 2016)."""
    bent: Vector = np.tanh(_SCALE * (x + _CUBE * x * x * x))
    return _HALF * x * (_ONE + bent)


@_step
def causal_softmax(scores: Vector, mask: Vector) -> Vector:
    """The softmax over the last axis of `scores + mask`."""
    return _softmax(scores + mask)


@_step
def lookup(table: Vector, rows: Indices) -> Vector:
    """The rows of a table with these numbers."""
    return table[rows]


@_step
def cross_entropy(logits: Vector, targets: Indices) -> np.float32:
    """The mean over rows of minus the logarithm of the softmax at the target, in nats."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=-1))
    return np.mean(total - shifted[np.arange(targets.size), targets], dtype=np.float32)


def _inverse_rms(x: Vector) -> Vector:
    result: Vector = _ONE / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + _EPSILON)
    return result


def _softmax(x: Vector) -> Vector:
    result: Vector = np.exp(x - x.max(axis=-1, keepdims=True))
    result /= result.sum(axis=-1, keepdims=True)
    return result


def _rms_norm_by_x(up: Vector, x: Vector, gain: Vector) -> Vector:
    inverse, scaled = _inverse_rms(x), up * gain
    result: Vector = inverse * (scaled - x * (inverse * inverse * np.mean(scaled * x, axis=-1, keepdims=True)))
    return result


def _rms_norm_by_gain(up: Vector, x: Vector, gain: Vector) -> Vector:
    result: Vector = (up * x * _inverse_rms(x)).reshape(-1, gain.size).sum(axis=0)
    return result


def _gelu_by_x(up: Vector, x: Vector) -> Vector:
    square = x * x
    bent = np.tanh(_SCALE * (x + _CUBE * square * x))
    slope = _SCALE * (_ONE + _THREE * _CUBE * square)
    return up * _HALF * (_ONE + bent + x * (_ONE - bent * bent) * slope)


def _softmax_by_scores(up: Vector, result: Vector) -> Vector:
    slope: Vector = result * (up - (up * result).sum(axis=-1, keepdims=True))
    return slope


def _lookup_by_table(up: Vector, table: Vector, rows: Indices) -> Vector:
    total = np.zeros_like(table)
    np.add.at(total, rows, up)
    return total


def _cross_entropy_by_logits(up: np.float32, logits: Vector, targets: Indices) -> Vector:
    result = _softmax(logits)
    result[np.arange(targets.size), targets] -= _ONE
    result *= np.float32(up / targets.size)
    return result


defvjp(
    rms_norm,
    lambda _, x, gain: lambda up: _rms_norm_by_x(up, x, gain),
    lambda _, x, gain: lambda up: _rms_norm_by_gain(up, x, gain),
)
defvjp(gelu, lambda _, x: lambda up: _gelu_by_x(up, x))
defvjp(causal_softmax, lambda result, _scores, _mask: lambda up: _softmax_by_scores(up, result), None)
defvjp(lookup, lambda _, table, rows: lambda up: _lookup_by_table(up, table, rows), None)
defvjp(cross_entropy, lambda _, logits, targets: lambda up: _cross_entropy_by_logits(up, logits, targets), None)


_HIDDEN_SCORE = np.float32(-1e9)


class Transformer(LaidOut):
    """The model. From then on this process's BLAS has one thread: with several, the bits depend on their number."""

    def __init__(self, size: Size) -> None:
        ThreadpoolController().limit(limits=1, user_api="blas")
        super().__init__(size)
        later = np.triu(np.ones((size.context, size.context), bool), 1)
        self._mask = np.where(later, _HIDDEN_SCORE, np.float32(0))

    def gradient(self, parameters: Vector, tokens: Tokens, into: Vector) -> float:
        """See `protocol.Model`."""
        pull_back, loss = make_vjp(lambda tensors: self._loss(tensors, tokens))(self._layout.split(parameters))
        for view, slope in zip(self._layout.split(into), pull_back(np.float32(1)), strict=True):
            view[:] = slope
        return float(loss)

    def loss(self, parameters: Vector, tokens: Tokens) -> float:
        """See `protocol.Model`."""
        return float(self._loss(self._layout.split(parameters), tokens))

    def _loss(self, tensors: Any, tokens: Tokens) -> Any:  # noqa: ANN401  (arrays, or autograd's boxes of arrays)
        size, length = self._layout.size, tokens.shape[1] - 1
        embedding, positions, norm, *rest = tensors
        rows = tokens.astype(np.intp)
        x = lookup(embedding, rows[:, :-1]) + positions[:length]
        x = traced.reshape(x, (-1, size.width))
        each = len(rest) // size.layers
        for first in range(0, len(rest), each):
            x = self._block(x, length, *rest[first : first + each])
        logits = traced.dot(rms_norm(x, norm), traced.transpose(embedding))
        return cross_entropy(logits, rows[:, 1:].reshape(-1))

    def _block(self, x: Any, length: int, *tensors: Any) -> Any:  # noqa: ANN401
        """One block; `x` has the shape (sequences * length, width)."""
        before, inputs, query_norm, key_norm, output, between, hidden, back = tensors
        mixed = self._attend(traced.dot(rms_norm(x, before), inputs), length, query_norm, key_norm)
        x = x + traced.dot(mixed, output)
        return x + traced.dot(gelu(traced.dot(rms_norm(x, between), hidden)), back)

    def _attend(self, x: Any, length: int, query_norm: Any, key_norm: Any) -> Any:  # noqa: ANN401
        """Causal attention; `x` has the shape (sequences * length, 3 * width): queries, keys and values."""
        size = self._layout.size
        heads = traced.reshape(x, (-1, length, 3, size.heads, size.head_width))
        query, key, value = traced.transpose(heads, (2, 0, 3, 1, 4))
        query, key = rms_norm(query, query_norm), rms_norm(key, key_norm)
        scores = traced.matmul(query, traced.swapaxes(key, -1, -2)) * np.float32(size.head_width**-0.5)
        mixed = traced.matmul(causal_softmax(scores, self._mask[:length, :length]), value)
        return traced.reshape(traced.transpose(mixed, (0, 2, 1, 3)), (-1, size.width))
