"""Benign disturbances of healthy jobs that could look like faults, drawn from a seed equally on every rank."""

import random

import msgspec


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
