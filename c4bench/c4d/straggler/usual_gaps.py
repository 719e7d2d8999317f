"""Which operations tell of computing: those after gaps that are not much shorter than the usual long one."""

import numpy as np

from c4bench.c4d.columns import Bools, Floats, Ints, earlier, rounds
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
        """Add gaps before operations of these rows, in order; return which of the operations tell of computing.

        A communicator's first operations, which set it up, do not. No row may be there more often than gaps are kept.
        """
        nth = earlier(rows)
        seen = self._seen[rows] + nth
        telling = gap_s > BEARING_SHARE * self._longest(rows, nth, gap_s)
        if telling.all():
            self._gaps_s[rows, seen % _GAPS_KEPT], self._seen[rows] = gap_s, seen + 1
        else:
            for turn in rounds(rows):
                telling[turn] = self._add(rows[turn], gap_s[turn])
        return telling & (seen >= SETTLE_OPS)

    def _longest(self, rows: Ints, nth: Ints, gap_s: Floats) -> Floats:
        """The longest gap of each row, among those kept and those that are added: no usual one is longer."""
        longest_s, each = np.zeros(len(self._seen)), rows[nth == 0]
        kept_s = self._gaps_s.take(each, axis=0)
        longest_s[each] = np.where(kept_s < np.inf, kept_s, 0.0).max(axis=1, initial=0.0)
        np.maximum.at(longest_s, rows, gap_s)
        found: Floats = longest_s[rows]
        return found

    def _add(self, rows: Ints, gap_s: Floats) -> Bools:
        """Add a gap of each of these rows; return which are not much shorter than the usual long one."""
        seen = self._seen[rows]
        self._gaps_s[rows, seen % _GAPS_KEPT], self._seen[rows] = gap_s, seen + 1
        telling: Bools = gap_s > BEARING_SHARE * self._long(rows)
        return telling

    def _long(self, rows: Ints) -> Floats:
        """The usual long gap: nine in ten are no longer."""
        known = np.minimum(self._seen[rows], _GAPS_KEPT)
        longest = int(known.max(initial=1))
        ordered: Floats = np.sort(self._gaps_s[rows, :longest], axis=1)
        usual: Floats = ordered[np.arange(len(rows)), (known - 1) * 9 // 10]
        return usual
