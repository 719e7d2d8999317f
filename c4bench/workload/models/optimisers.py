"""Optimisers over flat float32 vectors. They work in place, and their state is one vector, as checkpoints need it.

Temporary vectors are made once. Scalars are computed in double precision, and rounded to float32 when they are applied.
"""

import numpy as np

from c4bench.workload.models.protocol import Vector


class AdamW:
    """Adam with decoupled weight decay (Loshchilov, Hutter 2019, algorithm 2): the inner optimiser of DiLoCo.

    `state` has the first moments of all parameters, then the second ones. `rate` may be changed between steps.
    """

    def __init__(
        self,
        parameters: int,
        rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        decay: float = 0.1,
    ) -> None:
        self.state = np.zeros(2 * parameters, np.float32)
        self._first, self._second = self.state[:parameters], self.state[parameters:]
        self.rate, self._betas, self._epsilon, self._decay = rate, betas, np.float32(epsilon), decay
        self._change, self._scale = np.empty((2, parameters), np.float32)

    def step(self, number: int, parameters: Vector, gradient: Vector) -> None:
        """Step `number`, counted from 1: change `parameters` by the gradient of their loss."""
        (beta1, beta2), change, scale = self._betas, self._change, self._scale
        _average(self._first, beta1, gradient, change)
        np.multiply(gradient, gradient, out=scale)
        _average(self._second, beta2, scale, change)
        np.divide(self._second, np.float32(1 - beta2**number), out=scale)
        np.sqrt(scale, out=scale)
        scale += self._epsilon
        np.divide(self._first, scale, out=change)
        change *= np.float32(self.rate / (1 - beta1**number))
        parameters *= np.float32(1 - self.rate * self._decay)
        parameters -= change


class Nesterov:
    """SGD with Nesterov momentum (Sutskever et al. 2013, as PyTorch writes it): the outer optimiser of DiLoCo.

    `state` is the velocity of each parameter.
    """

    def __init__(self, parameters: int, rate: float, momentum: float) -> None:
        self.state = np.zeros(parameters, np.float32)
        self._rate, self._momentum = np.float32(rate), np.float32(momentum)
        self._change = np.empty(parameters, np.float32)

    def step(self, parameters: Vector, gradient: Vector) -> None:
        """Change `parameters` by a gradient, such as the mean outer gradient of all replicas."""
        velocity, change = self.state, self._change
        velocity *= self._momentum
        velocity += gradient
        np.multiply(velocity, self._momentum, out=change)
        change += gradient
        change *= self._rate
        parameters -= change


def _average(moment: Vector, beta: float, value: Vector, scratch: Vector) -> None:
    """Move a moment towards a value: `beta * moment + (1 - beta) * value`."""
    moment *= np.float32(beta)
    np.multiply(value, np.float32(1 - beta), out=scratch)
    moment += scratch
