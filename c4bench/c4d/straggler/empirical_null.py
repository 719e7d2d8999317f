"""The healthy lateness of a communicator's members, and runs of lateness that it cannot explain."""

import numpy as np

from c4bench.c4d.columns import Bools, Floats, Ints
from c4bench.c4d.straggler.thresholds import ITERATION_SHARE, MATERIAL_SHARE, SIGMAS
from c4bench.c4d.thresholds import CHANCE, TAIL_POWER

# A share of lateness in place of 0, to divide by.
_TINY = 1e-9


class EmpiricalNull:
    """The distribution of shares (any shape) by which healthy members were late, by each of these samples."""

    def __init__(self, *samples: Floats) -> None:
        self._samples = [np.sort(shares, axis=None) for shares in samples]

    def forbids(self, least: Floats, mean: Floats, ops: Ints) -> Bools:
        """Whether runs of `ops` operations, late by `least` at least and `mean` on average, exceed jitter and chance.

        They do by every sample. Beyond all that a sample has the chance is taken to fall with a power (`TAIL_POWER`).
        """
        return np.asarray(np.all([_forbids(healthy, least, mean, ops) for healthy in self._samples], axis=0))

    def longest(self, runs: Ints, shares: Floats, iteration: int) -> int:
        """The longest of `runs` (of so many operations, newest first) that tells without its worst iteration, or 0.

        One uneven iteration, which is benign, makes several operations late: beside a few that are late by chance it
        would pass for a run. An `iteration` has so many operations.
        """
        for run in runs[::-1].tolist():
            rest = _but_worst(shares[:run], iteration)
            if self.forbids(rest.min(), rest.mean(), np.asarray(len(rest))):
                return int(run)
        return 0


def _forbids(healthy: Floats, least: Floats, mean: Floats, ops: Ints) -> Bools:
    """The same by one sorted sample."""
    beyond = len(healthy) - np.searchsorted(healthy, least, side="left")
    rarity = np.clip(max(healthy[-1], _TINY) / np.maximum(least, _TINY), 0.0, 1.0) ** TAIL_POWER
    unlikely = (rarity * (beyond + 1) / (len(healthy) + 1)) ** ops < CHANCE
    strong = mean > np.maximum(MATERIAL_SHARE, SIGMAS * float(healthy.std()) / np.sqrt(ops))
    return np.asarray(unlikely & strong)


def operations_per_iteration(entered_s: Floats, period_s: float) -> int:
    """How many operations (newest first) an iteration has: so many come in most periods, however long some are."""
    enough_s = ITERATION_SHARE * period_s
    counts = range(1, len(entered_s))
    return next((n for n in counts if np.median(entered_s[:-n] - entered_s[n:]) >= enough_s), len(entered_s))


def _but_worst(shares: Floats, ops: int) -> Floats:
    """All but the so many operations in a row that have most."""
    worst = int(np.argmax(np.convolve(shares, np.ones(ops), "valid")))
    rest: Floats = np.delete(shares, slice(worst, worst + ops))
    return rest
