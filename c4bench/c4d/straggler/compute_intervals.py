"""Operations summed up to intervals of enough computing: a single small operation is lost in jitter."""

from typing import NamedTuple

import numpy as np

from c4bench.c4d.columns import Bools, Floats, Ints
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
        # Awaited, longer and start times by member (s); and the usual time (s), 0 where an interval begins.
        self._sums_s = np.zeros((3, 0, size))
        self._middle_s = np.zeros((0, 1))

    def make_room(self, rows: int) -> None:
        """For so many communicators."""
        more = rows - len(self._middle_s)
        self._sums_s = np.concatenate([self._sums_s, np.zeros((3, more, self._size))], axis=1)
        self._middle_s = np.concatenate([self._middle_s, np.zeros((more, 1))])

    def forget(self, row: int) -> None:
        """Forget what a row had; another communicator may use it."""
        self._sums_s[:, row], self._middle_s[row] = 0.0, 0.0

    def add(self, rows: Ints, awaited_s: Floats, ops: Finished, middle_s: Floats, enough_s: float) -> ComputeInterval:
        """Add an operation of each of these rows, after gaps between operations in which its members computed.

        Others waited for its members for `awaited_s`, and `middle_s` is the usual gap of each, shape (rows, 1).
        Intervals that have computed for `enough_s` are returned and start again.
        """
        gap_s, entered_s = ops.gap_s, ops.entered_s
        begins = self._middle_s[rows] == 0
        since_s = np.where(begins, entered_s - gap_s, self._sums_s[2, rows])
        self._sums_s[:, rows] += [awaited_s, gap_s - middle_s, since_s - self._sums_s[2, rows]]
        self._middle_s[rows] += middle_s
        full = self._middle_s[rows, 0] >= enough_s
        complete = rows[full]
        awaited, longer, _ = self._sums_s[:, complete]
        lasted_s = np.where(begins, gap_s, entered_s - since_s)[full]
        interval = ComputeInterval(full, awaited, longer, self._middle_s[complete], lasted_s)
        self._sums_s[:, complete], self._middle_s[complete] = 0.0, 0.0
        return interval


def usual_s(gap_s: Floats) -> Floats:
    """The median gap of the members of each row; shape (rows, 1). Of an even number the lower one."""
    middle_s: Floats = np.sort(gap_s, axis=1)[:, [(gap_s.shape[1] - 1) // 2]]
    return middle_s
