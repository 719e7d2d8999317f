"""Which operations tell of computing: those after gaps that are not much shorter than the usual long one."""

import numpy as np

from c4bench.c4d.columns import Bools, Floats, Ints
from c4bench.c4d.straggler.thresholds import BEARING_SHARE, SETTLE_OPS

# Gaps before a communicator's operations that are kept, the latest: several iterations.
_GAPS_KEPT = 64


class UsualGaps:
    """The latest gaps (s) before the operations of communicators, a row each."""

    def __init__(self) -> None:
        self._gaps_s: Floats = np.full((0, _GAPS_KEPT), np.inf)
        self._seen: Ints = np.zeros(0, np.int64)

    def make_room(self, rows: int) -> None:
        """For so many communicators."""
        more = rows - len(self._seen)
        self._gaps_s = np.concatenate([self._gaps_s, np.full((more, _GAPS_KEPT), np.inf)])
        self._seen = np.concatenate([self._seen, np.zeros(more, np.int64)])

    def forget(self, row: int) -> None:
        """Forget what a row had; another communicator may use it."""
        self._gaps_s[row], self._seen[row] = np.inf, 0

    def add(self, rows: Ints, gap_s: Floats) -> Bools:
        """Add a gap before an operation of each of these rows; return which of the operations tell of computing.

        A communicator's first operations, which set it up, do not.
        """
        seen = self._seen[rows]
        self._gaps_s[rows, seen % _GAPS_KEPT] = gap_s
        self._seen[rows] = seen + 1
        # The usual long gap is no longer than the longest.
        kept_s = self._gaps_s[rows]
        telling: Bools = gap_s > BEARING_SHARE * np.where(kept_s < np.inf, kept_s, 0.0).max(axis=1, initial=0.0)
        short = np.flatnonzero(~telling)
        if len(short):
            telling[short] = gap_s[short] > BEARING_SHARE * self._long(rows[short])
        return telling & (seen >= SETTLE_OPS)

    def _long(self, rows: Ints) -> Floats:
        """The usual long gap: nine in ten are no longer."""
        known = np.minimum(self._seen[rows], _GAPS_KEPT)
        longest = int(known.max(initial=1))
        ordered: Floats = np.sort(self._gaps_s[rows, :longest], axis=1)
        usual: Floats = ordered[np.arange(len(rows)), (known - 1) * 9 // 10]
        return usual
