"""Operations summed up to intervals of enough computing: a single small operation is lost in jitter."""

from typing import NamedTuple

import numpy as np

from c4bench.c4d.columns import Bools, Floats, Ints, rounds
from c4bench.c4d.ingest.operations import Finished


class ComputeInterval(NamedTuple):
    """Computing of members (columns) up to an operation of theirs, a row for each communicator that has enough.

    `rows` are those of what was added; by member how long others waited for it at the ends, how much longer than
    `middle_s`, which is usual, it computed, and how long the interval lasted; all in seconds.
    """

    rows: Bools
    awaited_s: Floats
    longer_s: Floats
    middle_s: Floats
    lasted_s: Floats


class ComputeIntervals:
    """The intervals that have not enough computing yet, by communicator row, of `size` members each."""

    def __init__(self, size: int) -> None:
        self._size = size
        # By member (s): how long others waited, how much longer it computed, and since when.
        self._awaited_s, self._longer_s, self._since_s = (np.zeros((0, size)) for _ in range(3))
        # The usual time (s), 0 where an interval begins.
        self._middle_s = np.zeros((0, 1))

    def make_room(self, rows: int) -> None:
        """For so many communicators."""
        more = rows - len(self._middle_s)
        room = np.zeros((more, self._size))
        self._awaited_s, self._longer_s, self._since_s = (
            np.concatenate([sums_s, room]) for sums_s in (self._awaited_s, self._longer_s, self._since_s)
        )
        self._middle_s = np.concatenate([self._middle_s, np.zeros((more, 1))])

    def forget(self, row: int) -> None:
        """Forget what a row had; another communicator may use it."""
        self._clear(np.asarray([row]))

    def _clear(self, rows: Ints) -> None:
        for sums_s in (self._awaited_s, self._longer_s, self._since_s, self._middle_s):
            sums_s[rows] = 0.0

    def add(self, rows: Ints, awaited_s: Floats, ops: Finished, middle_s: Floats, enough_s: float) -> ComputeInterval:
        """Add operations of these rows, in order, after gaps between operations in which their members computed.

        Others waited for its members for `awaited_s`, and `middle_s` is the usual gap of each, shape (rows, 1).
        Intervals that have computed for `enough_s` are returned and start again.
        """
        longer_s = ops.gap_s - middle_s
        if (self._middle_s[rows] == 0).all() and (middle_s >= enough_s).all():  # each operation is one of its own
            return ComputeInterval(np.ones(len(rows), np.bool_), awaited_s, longer_s, middle_s, ops.gap_s)
        full = np.zeros(len(rows), np.bool_)
        ends = ComputeInterval(full, awaited_s.copy(), longer_s, middle_s.copy(), ops.gap_s.copy())
        for turn in rounds(rows):
            self._add(rows[turn], turn, ops, ends, enough_s)
        return ComputeInterval(full, *(values[full] for values in ends[1:]))

    def _add(self, rows: Ints, turn: Ints, ops: Finished, ends: ComputeInterval, enough_s: float) -> None:
        """Add one operation of each of these rows, which `ends` has at `turn`; what it has becomes the interval's."""
        before_s, gap_s, entered_s = self._middle_s[rows], ops.gap_s[turn], ops.entered_s[turn]
        begins, sum_s = before_s == 0, before_s + ends.middle_s[turn]
        since_s = np.where(begins, entered_s - gap_s, self._since_s[rows])
        awaited_s = self._awaited_s[rows] + ends.awaited_s[turn]
        longer_s = self._longer_s[rows] + ends.longer_s[turn]
        self._awaited_s[rows], self._longer_s[rows], self._since_s[rows] = awaited_s, longer_s, since_s
        self._middle_s[rows] = sum_s
        full = sum_s[:, 0] >= enough_s
        self._clear(rows[full])
        lasted_s = np.where(begins, gap_s, entered_s - since_s)
        for values, found in zip(ends, (full, awaited_s, longer_s, sum_s, lasted_s), strict=True):
            values[turn] = found


def usual_s(gap_s: Floats) -> Floats:
    """The median gap of the members of each row; shape (rows, 1). Of an even number the lower one."""
    middle_s: Floats = np.sort(gap_s, axis=1)[:, [(gap_s.shape[1] - 1) // 2]]
    return middle_s
