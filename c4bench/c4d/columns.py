"""Many records at once: their numbers as columns, and tables whose rows are found by key."""

import math
from collections.abc import Hashable, Iterable, Iterator
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# The count, or time (s), of what has never happened: below all others.
NEVER = -math.inf
_Number = TypeVar("_Number", np.int64, np.uint64, np.float64)
# Rows that a new table has room for.
_ROOM = 16


def rounds(rows: Ints) -> Iterator[Ints]:
    """Indices of each row's first occurrence, then its second, and so on: no round holds a row twice."""
    order = np.argsort(rows, kind="stable")
    if not len(order):
        return
    firsts = _firsts(rows[order])
    lengths = _lengths(firsts, len(order))
    for number in range(int(lengths.max())):
        yield order[firsts[lengths > number] + number]


def earlier(rows: Ints) -> Ints:
    """How many equal rows come before each."""
    order = np.argsort(rows, kind="stable")
    firsts, count = _firsts(rows[order]), np.arange(len(order))
    found = np.empty_like(count)
    found[order] = count - np.repeat(firsts, _lengths(firsts, len(order)))
    return found


def _firsts(ordered: Ints) -> Ints:
    """Where each value begins."""
    begins = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return np.flatnonzero(begins)


def _lengths(firsts: Ints, count: int) -> Ints:
    """How many values there are from each of these places to the next, of `count` in all."""
    lengths = np.empty_like(firsts)
    np.subtract(firsts[1:], firsts[:-1], out=lengths[:-1])
    lengths[-1:] = count - firsts[-1:]
    return lengths


def distinct(values: Ints) -> Ints:
    """Each of these values once, in order."""
    ordered = np.sort(values)
    return ordered[_firsts(ordered)]


def medians(values: Floats) -> Floats:
    """The median along the last axis, whose values are put into another order.

    The same as `np.median` of numbers, in a fifth of its time: numpy selects one place in a vectorised way, and two
    places one value after the other.
    """
    count = values.shape[-1]
    middle = count // 2
    values.partition(middle, axis=-1)
    upper: Floats = values[..., middle]
    return upper if count % 2 else (values[..., :middle].max(axis=-1) + upper) / 2


def enlarged(array: NDArray[_Number], rows: int) -> NDArray[_Number]:
    """The array with as many rows, the new ones 0; they take no memory before they are written to."""
    larger = np.zeros((rows, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


class Runs:
    """Rows with equal keys, in their order: what came before each of them.

    `last` is the last row of each key.
    """

    def __init__(self, keys: Ints) -> None:
        self._count = len(keys)
        # Those of one key after those of another; None where they are so already.
        self._order = None if (keys[1:] >= keys[:-1]).all() else np.argsort(keys, kind="stable")
        ordered = self._ordered(keys)
        firsts = _firsts(ordered)
        lengths = _lengths(firsts, len(ordered))
        self._longest = int(lengths.max(initial=0))
        # By place in that order: how many rows of the same key come before.
        self._nth = np.arange(len(ordered)) - np.repeat(firsts, lengths)
        ends = firsts + lengths - 1
        self.last: Ints = ends if self._order is None else self._order[ends]

    def _ordered(self, values: NDArray[_Number]) -> NDArray[_Number]:
        return values if self._order is None else values[self._order]

    def _back(self, ordered: NDArray[_Number]) -> NDArray[_Number]:
        """In the order of rows again."""
        if self._order is None:
            return ordered
        found = np.empty_like(ordered)
        found[self._order] = ordered
        return found

    def before(self, values: NDArray[_Number], initial: NDArray[_Number]) -> NDArray[_Number]:
        """The value of the row before each one; of the first row of a key its own `initial`."""
        ordered = self._ordered(values)
        shifted = np.concatenate([ordered[:1], ordered[:-1]])
        return self._back(np.where(self._nth > 0, shifted, self._ordered(initial)))

    def highest(self, values: NDArray[_Number]) -> NDArray[_Number]:
        """The highest value up to each row, and of it."""
        ordered, step = self._ordered(values), 1
        if ((ordered[1:] >= ordered[:-1]) | (self._nth[1:] == 0)).all():
            return values
        while step < self._longest:
            higher = np.maximum(ordered[step:], ordered[:-step])
            ordered = np.concatenate([ordered[:step], np.where(self._nth[step:] >= step, higher, ordered[step:])])
            step *= 2
        return self._back(ordered)

    def latest(self, which: Bools) -> Ints:
        """The latest row up to each one, and it too, that is among these; -1 for none."""
        rows = np.arange(self._count)
        if which.all():
            return rows
        places = self._back(rows)
        places = self.highest(np.where(which, places, -1))
        return np.where(places >= 0, self._ordered(rows)[places], -1)


class Table:
    """Columns of one length; a new row holds the `blanks` until it is written.

    Columns of floats that are read and written `together` are also the rows of `block`.
    """

    def __init__(self, *together: str, **blanks: float | bytes | None) -> None:
        self.count = 0
        self._blanks = blanks
        self._together = together
        self._columns: dict[str, NDArray[Any]] = {}
        self.block: Floats = np.empty((0, 0))
        self._grow(_ROOM)

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
            self._grow(max(2 * room, self.count))
        return first

    def _grow(self, room: int) -> None:
        self.block = np.empty((len(self._together), room))
        side_by_side = dict(zip(self._together, self.block, strict=True))
        for name, blank in self._blanks.items():
            column = side_by_side[name] if name in side_by_side else np.empty(room, _type(blank))
            old = self._columns.get(name, column[:0])
            column[: len(old)], column[len(old) :] = old, blank
            self._columns[name] = column


def _type(blank: float | bytes | None) -> type:
    return object if blank is None or isinstance(blank, bytes) else type(blank)


class Index(dict[Any, int]):
    """Rows by key."""

    def rows(self, keys: Iterable[Hashable], count: int) -> Ints:
        """The row of each of `count` keys, -1 for one that has none."""
        return np.fromiter(map(self.get, keys, repeat(-1)), np.int64, count)
