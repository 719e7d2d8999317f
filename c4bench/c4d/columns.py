"""Many records at once: their numbers as columns, and tables whose rows are found by key."""

import math
from collections.abc import Hashable, Iterable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# The count, or time (s), of what has never happened: below all others.
NEVER = -math.inf
# Rows that a new table has room for.
_ROOM = 16


def rounds(rows: Ints, order: Ints | None = None) -> Iterator[Ints]:
    """Indices of each row's first occurrence, then its second, and so on: no round holds a row twice.

    `order` sorts them and keeps equal rows together; the default is the order of `rows`.
    """
    if order is None:
        order = np.argsort(rows, kind="stable")
    if not len(order):
        return
    firsts = np.flatnonzero(np.diff(rows[order], prepend=rows[order[0]] - 1))
    lengths = np.diff(firsts, append=len(order))
    for number in range(int(lengths.max())):
        yield order[firsts[lengths > number] + number]


class Table:
    """Columns of one length; a new row holds the `blanks` until it is written."""

    def __init__(self, **blanks: float | bytes | None) -> None:
        self.count = 0
        self._blanks = blanks
        self._columns: dict[str, NDArray[Any]] = {}
        for name, blank in blanks.items():
            self._columns[name] = np.full(_ROOM, blank, _type(blank))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A column, with room to spare behind its last row."""
        return self._columns[name]

    def used(self, name: str) -> NDArray[Any]:
        """A column, without the room to spare."""
        return self._columns[name][: self.count]

    def add(self, rows: int = 1) -> int:
        """Add so many rows, and say which is the first."""
        first, self.count = self.count, self.count + rows
        room = len(next(iter(self._columns.values())))
        if self.count > room:
            for name, old in self._columns.items():
                grown = np.full(max(2 * room, self.count), self._blanks[name], old.dtype)
                grown[:room] = old
                self._columns[name] = grown
        return first


def _type(blank: float | bytes | None) -> type:
    return object if blank is None or isinstance(blank, bytes) else type(blank)


class Index(dict[Any, int]):
    """Rows by key."""

    def rows(self, keys: Iterable[Hashable], count: int) -> Ints:
        """The row of each of `count` keys, -1 for one that has none."""
        return np.fromiter(map(self.get, keys, repeat(-1)), np.int64, count)
