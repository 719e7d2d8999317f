"""How late the members of a communicator are in health, and which runs of lateness that cannot be."""

import numpy as np

from c4bench.c4d.columns import Bools, Floats, Ints
from c4bench.c4d.thresholds import CHANCE, MATERIAL_SHARE, SIGMAS, TAIL_POWER

_TINY = 1e-9


class Habit:
    """Shares by which members were late (any shape), as far as they were taken for healthy."""

    def __init__(self, shares: Floats) -> None:
        self._sorted = np.sort(shares, axis=None)
        self._sigma = float(self._sorted.std())

    def forbids(self, least: Floats, mean: Floats, ops: Ints) -> Bools:
        """Whether so many operations in a row, by no less and on average by so much, are more than jitter and chance.

        Beyond all that was ever seen the chance is taken to fall with a power (`TAIL_POWER`).
        """
        beyond = len(self._sorted) - np.searchsorted(self._sorted, least, side="left")
        rarity = np.clip(max(self._sorted[-1], _TINY) / np.maximum(least, _TINY), 0.0, 1.0) ** TAIL_POWER
        unlikely = (rarity * (beyond + 1) / (len(self._sorted) + 1)) ** ops < CHANCE
        strong = mean > np.maximum(MATERIAL_SHARE, SIGMAS * self._sigma / np.sqrt(ops))
        return np.asarray(unlikely & strong)
