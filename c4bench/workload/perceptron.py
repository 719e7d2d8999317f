"""A small model that really learns: a perceptron with one hidden layer, trained by SGD with momentum.

All computation is in float32 and from the seed, so that the same steps give the same bits on processors of one kind. A
step depends only on the seed, the step, the rank and the state.
"""

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

Vector = NDArray[np.float32]

_INPUTS, _HIDDEN = 32, 64
_BATCH = 16
_RATE, _MOMENTUM = np.float32(0.05), np.float32(0.9)
_W1 = _INPUTS * _HIDDEN
PARAMETERS = _W1 + _HIDDEN + _HIDDEN + 1


def initial(seed: int) -> Vector:
    """The state before the first step: parameters, then their velocities."""
    state = np.zeros(2 * PARAMETERS, np.float32)
    state[:PARAMETERS] = default_rng([seed, 0]).normal(0.0, 0.2, PARAMETERS)
    return state


def gradient(state: Vector, seed: int, step: int, rank: int, into: Vector) -> None:
    """Write the gradient of this rank's batch in a step, followed by the batch's loss: PARAMETERS + 1 items."""
    w1, b1, w2, b2 = _split(state[:PARAMETERS])
    x = default_rng([seed, 1, step, rank]).normal(0.0, 1.0, (_BATCH, _INPUTS)).astype(np.float32)
    expected = np.sin(x.sum(axis=1, dtype=np.float32) / np.float32(4))
    hidden = np.tanh(x @ w1 + b1)
    error = hidden @ w2 + b2 - expected
    back = np.outer(error, w2) * (1 - hidden * hidden) / np.float32(_BATCH)
    d_w1, d_b1, d_w2, d_b2 = _split(into[:PARAMETERS])
    np.matmul(x.T, back, out=d_w1)
    np.sum(back, axis=0, out=d_b1)
    np.divide(hidden.T @ error, np.float32(_BATCH), out=d_w2)
    d_b2[0] = error.mean(dtype=np.float32)
    into[PARAMETERS] = np.float32(0.5) * (error * error).mean(dtype=np.float32)


def update(state: Vector, mean_gradient: Vector) -> None:
    """One step of SGD with momentum, in place."""
    parameters, velocity = state[:PARAMETERS], state[PARAMETERS:]
    velocity *= _MOMENTUM
    velocity += mean_gradient
    parameters -= _RATE * velocity


def _split(parameters: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    w1, b1, w2, b2 = np.split(parameters, [_W1, _W1 + _HIDDEN, PARAMETERS - 1])
    return w1.reshape(_INPUTS, _HIDDEN), b1, w2, b2
