"""The delay matrix of C4: transfer seconds per byte, rows the sending NICs, columns the receiving ones.

Cells are differences of cumulative counters over a span, so waiting for a peer's credit or for local data does not
count, and a lost window costs nothing but resolution. A slow path is a point, a slow transmitter a row, a slow
receiver a column.
"""

import math
import statistics
from collections.abc import Iterable, Mapping

import msgspec

from c4bench.c4d.ledger import ConnKey, key
from c4bench.c4d.localise import Cell
from c4bench.c4d.thresholds import (
    BASELINE_MAX_SPANS,
    BASELINE_MIN_SPANS,
    PEER_RATIO,
    SCATTER_FACTOR,
    SLOW_RATIO,
    STEADY_FACTOR,
    STEADY_MIN_HISTORY,
    STEADY_RATIO,
)
from c4bench.model.telemetry import ConnRecord

# Bytes count when acknowledged, seconds as they pass: a difference taken in the middle of a message is off by up to
# one message, so it is taken when nothing is under way, or when one message in so many does not matter.
_MESSAGES_THAT_DILUTE = 8


class DelayMatrix:
    """Accumulates transfer time and bytes per (source NIC, destination NIC) over the current span."""

    def __init__(self) -> None:
        self._marks: dict[ConnKey, ConnRecord] = {}
        self._transfer_s: dict[Cell, float] = {}
        self._bytes: dict[Cell, int] = {}

    def add(self, conns: Iterable[ConnRecord]) -> None:
        """Take in connections' newest counters; the first sight of a connection only sets its mark."""
        for conn in conns:
            mark = self._marks.get(key(conn))
            if mark is None:
                self._marks[key(conn)] = conn
            elif _comparable(mark, conn):
                self._count(mark, conn)
                self._marks[key(conn)] = conn

    def close(self) -> dict[Cell, float]:
        """Seconds per byte of every cell that moved bytes in the span, and a new span."""
        cells = {cell: self._transfer_s[cell] / size for cell, size in self._bytes.items()}
        self._transfer_s.clear()
        self._bytes.clear()
        return cells

    def _count(self, mark: ConnRecord, conn: ConnRecord) -> None:
        cell = (conn.source, conn.destination)
        self._transfer_s[cell] = self._transfer_s.get(cell, 0.0) + conn.transfer_s - mark.transfer_s
        self._bytes[cell] = self._bytes.get(cell, 0) + conn.size_bytes - mark.size_bytes


def _comparable(mark: ConnRecord, conn: ConnRecord) -> bool:
    messages = conn.messages - mark.messages
    quiet = conn.outstanding == 0 and messages > 0
    return conn.size_bytes > mark.size_bytes and (quiet or messages >= _MESSAGES_THAT_DILUTE)


class _Usual(msgspec.Struct):
    """A cell's healthy values; from them, as logs, the median, the bar of a span, and that of a lasting departure."""

    values: list[float]
    middle: float = 0.0
    bar: float = math.inf
    steady_bar: float = math.inf

    def learn(self, value: float) -> None:
        """Take in one more value."""
        self.values.append(value)
        self.middle = math.log(statistics.median(self.values))
        highest, lowest = math.log(max(self.values)) - self.middle, self.middle - math.log(min(self.values))
        self.bar = max(math.log(SLOW_RATIO), SCATTER_FACTOR * max(highest, lowest))
        if len(self.values) >= STEADY_MIN_HISTORY:
            self.steady_bar = max(math.log(STEADY_RATIO), STEADY_FACTOR * highest)


class Baseline:
    """What each cell costs in health: its median and scatter (log ratio) over the job's first healthy spans."""

    def __init__(self) -> None:
        self._usual: dict[Cell, _Usual] = {}

    def learn(self, cells: Mapping[Cell, float]) -> None:
        """Remember the cells of a healthy span, up to the first twenty of each cell."""
        for cell, value in cells.items():
            usual = self._usual.setdefault(cell, _Usual([]))
            if len(usual.values) < BASELINE_MAX_SPANS and value > 0:
                usual.learn(value)

    def excess(self, cells: Mapping[Cell, float], departures: Mapping[Cell, float] | None = None) -> dict[Cell, float]:
        """How far each cell is beyond its bar: log ratio over the log bar, so above 1 is slow and 0 is normal.

        A cell is held against its own history; what all cells share (another message size, a job that now overlaps)
        is taken out by the median. A cell without history is held against the median of its peers, more leniently.
        `departures` are those of `cells`, if they are known already.
        """
        own = self.departures(cells) if departures is None else departures
        excess = {cell: departure / self._usual[cell].bar if departure > 0 else 0.0 for cell, departure in own.items()}
        return excess | self._against_peers(cells, own) if len(own) < len(cells) else excess

    def departures(self, cells: Mapping[Cell, float]) -> dict[Cell, float]:
        """The log ratio of each cell to its own history, less what all cells have slowed by."""
        known = {cell: value for cell, value in cells.items() if value > 0 and self.knows(cell)}
        own = {cell: math.log(value) - self._usual[cell].middle for cell, value in known.items()}
        common = max(0.0, statistics.median(own.values())) if len(own) > 1 else 0.0
        return {cell: ratio - common for cell, ratio in own.items()}

    def steady_bar(self, cell: Cell) -> float:
        """The log ratio that a lasting departure of the cell must exceed in every span; infinite without history."""
        usual = self._usual.get(cell)
        return math.inf if usual is None else usual.steady_bar

    def _against_peers(self, cells: Mapping[Cell, float], own: Mapping[Cell, float]) -> dict[Cell, float]:
        values = [value for value in cells.values() if value > 0]
        if len(values) < 3:
            return {}
        peers = statistics.median(values)
        bar = math.log(SLOW_RATIO * PEER_RATIO)
        return {
            cell: max(0.0, math.log(value / peers)) / bar
            for cell, value in cells.items()
            if cell not in own and value > 0
        }

    def knows(self, cell: Cell) -> bool:
        """Whether the cell has enough healthy history to be held against."""
        usual = self._usual.get(cell)
        return usual is not None and len(usual.values) >= BASELINE_MIN_SPANS

    def settled(self) -> bool:
        """Whether some cell has all the history that lasting departures are held against."""
        return any(len(usual.values) >= STEADY_MIN_HISTORY for usual in self._usual.values())

    def known(self) -> list[Cell]:
        """All cells with enough healthy history."""
        return [cell for cell in self._usual if self.knows(cell)]


class MatrixTable(msgspec.Struct, frozen=True):
    """The delay matrix as plain data: `cells[i][j]` is seconds per byte from `nics[i]` to `nics[j]`, or null."""

    nics: list[str]
    cells: list[list[float | None]]


def matrix_table(cells: Mapping[Cell, float]) -> MatrixTable:
    """The matrix for a report: every NIC that sends or receives, in name order, rows source, columns destination."""
    nics = sorted({nic for cell in cells for nic in cell})
    return MatrixTable(nics, [[cells.get((source, destination)) for destination in nics] for source in nics])
