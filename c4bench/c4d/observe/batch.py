"""The tables of one round of windows: at most one window per host."""

from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from c4bench.c4d.observe.columns import Floats, Ints
from c4bench.model.window import Window
from c4bench.model.window_columns import ARRIVAL_ROW, CONN_ROW, OP_ROW, Rows, rows

# In place of a row: the communicator has no such member; there is no such communicator.
FOREIGN, UNKNOWN = -1, -2


class Layer(NamedTuple):
    """The rows of one layer, window after window, and which window each is of."""

    table: Rows
    windows: Ints


class Batch:
    """Windows, and all rows of each of their tables."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self.windows = windows
        self.hosts = [window.host for window in windows]
        self._ends_s = np.array([window.end_s for window in windows])
        self.ops = _layer([window.op_table for window in windows], OP_ROW)
        self.conns = _layer([window.conn_table for window in windows], CONN_ROW)
        self.arrivals = _layer([window.arrival_table for window in windows], ARRIVAL_ROW)

    def ends_s(self, windows: Ints) -> Floats:
        """When these windows ended, on their hosts' clocks."""
        return self._ends_s[windows]

    def awaits(self) -> "np.ndarray[tuple[int], np.dtype[np.object_]]":
        """The awaited ranks of each operation, a bit each."""
        lengths, windows = self.ops.table["awaits"], self.ops.windows
        awaits = np.full(len(lengths), b"", object)
        if not lengths.any():
            return awaits
        ends = np.cumsum(lengths)
        firsts = np.searchsorted(windows, np.arange(len(self.windows)))
        before = np.concatenate([[0], ends])[firsts][windows]
        for index in np.flatnonzero(lengths > 0).tolist():
            end = int(ends[index] - before[index])
            awaits[index] = self.windows[windows[index]].awaits[end - int(lengths[index]) : end]
        return awaits


def _layer(tables: Sequence[bytes], row: "np.dtype[np.void]") -> Layer:
    counts = [len(table) // row.itemsize for table in tables]
    return Layer(rows(tables, row), np.repeat(np.arange(len(tables)), counts))


class HostRows:
    """Which rows of a job's table the numbers of a host stand for; they are looked up when its names change."""

    def __init__(self, sort: str, row: Callable[[Any], int]) -> None:
        self._sort, self._row = sort, row
        self._known: dict[str, tuple[Sequence[object], Ints]] = {}
        # The hosts of the latest batch and their names. Their rows, of one host after the other, with UNKNOWN at the
        # end; where those of each host begin, and how many it has.
        self._hosts: Sequence[str] = ()
        self._names: Sequence[Sequence[object]] = ()
        self._rows = self._firsts = self._counts = np.empty(0, np.int64)

    def rows(self, batch: Batch, numbers: Ints, windows: Ints) -> Ints:
        """The row of each number in these windows; UNKNOWN for one that stands for nothing."""
        names = [getattr(window.names, self._sort) for window in batch.windows]
        if self._hosts != batch.hosts or not all(map(is_, self._names, names)):
            known = [self._of(host, sent) for host, sent in zip(batch.hosts, names, strict=True)]
            self._hosts, self._names = batch.hosts, names
            self._rows, self._counts = np.concatenate([*known, [UNKNOWN]]), np.array([len(rows) for rows in known])
            self._firsts = np.cumsum(self._counts) - self._counts
        named = (numbers >= 0) & (numbers < self._counts[windows])
        return self._rows.take(np.where(named, self._firsts[windows] + numbers, -1))

    def forget(self, hosts: Iterable[str]) -> None:
        """Look up the names of these hosts again: communicators have come or gone there."""
        self._hosts = ()
        for host in hosts:
            self._known.pop(host, None)

    def _of(self, host: str, names: Sequence[object]) -> Ints:
        known, rows = self._known.get(host, (None, None))
        if rows is None or known is not names:
            found = (UNKNOWN if name is None else self._row(name) for name in names)
            rows = np.fromiter(found, np.int64, len(names))
            self._known[host] = names, rows
        return rows
