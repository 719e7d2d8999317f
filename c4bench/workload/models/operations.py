"""Operations of a transformer with their derivatives, for autograd.

Each is one step of autograd's tape where numpy's functions would be many. Everything is float32.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from autograd.extend import defvjp, primitive
from numpy.typing import NDArray

from c4bench.workload.models.protocol import Vector

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
