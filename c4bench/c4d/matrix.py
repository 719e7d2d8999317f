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


class Baseline:
    """What each cell costs in health: its median and scatter (log ratio) over the job's first healthy spans."""

    def __init__(self) -> None:
        self._learning: dict[Cell, list[float]] = {}

    def learn(self, cells: Mapping[Cell, float]) -> None:
        """Remember the cells of a healthy span, up to the first twenty of each cell."""
        for cell, value in cells.items():
            history = self._learning.setdefault(cell, [])
            if len(history) < BASELINE_MAX_SPANS and value > 0:
                history.append(value)

    def excess(self, cells: Mapping[Cell, float]) -> dict[Cell, float]:
        """How far each cell is beyond its bar: log ratio over the log bar, so above 1 is slow and 0 is normal.

        A cell is held against its own history; what all cells share (another message size, a job that now overlaps)
        is taken out by the median. A cell without history is held against the median of its peers, more leniently.
        """
        own = self.departures(cells)
        excess = {cell: max(0.0, departure) / self._bar(cell) for cell, departure in own.items()}
        return excess | self._against_peers(cells, own)

    def departures(self, cells: Mapping[Cell, float]) -> dict[Cell, float]:
        """The log ratio of each cell to its own history, less what all cells have slowed by."""
        ratios = {cell: self._log_ratio(cell, value) for cell, value in cells.items() if value > 0}
        own = {cell: ratio for cell, ratio in ratios.items() if ratio is not None}
        common = statistics.median(own.values()) if len(own) > 1 else 0.0
        return {cell: ratio - max(0.0, common) for cell, ratio in own.items()}

    def steady_bar(self, cell: Cell) -> float:
        """The log ratio that a lasting departure of the cell must exceed in every span; infinite without history."""
        history = self._learning.get(cell, ())
        if len(history) < STEADY_MIN_HISTORY:
            return math.inf
        worst = math.log(max(history) / statistics.median(history))
        return max(math.log(STEADY_RATIO), STEADY_FACTOR * worst)

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
        return len(self._learning.get(cell, ())) >= BASELINE_MIN_SPANS

    def settled(self) -> bool:
        """Whether some cell has all the history that lasting departures are held against."""
        return any(len(history) >= STEADY_MIN_HISTORY for history in self._learning.values())

    def known(self) -> list[Cell]:
        """All cells with enough healthy history."""
        return [cell for cell in self._learning if self.knows(cell)]

    def _log_ratio(self, cell: Cell, value: float) -> float | None:
        return math.log(value / statistics.median(self._learning[cell])) if self.knows(cell) else None

    def _bar(self, cell: Cell) -> float:
        history = self._learning[cell]
        middle = statistics.median(history)
        scatter = max(abs(math.log(value / middle)) for value in history)
        return max(math.log(SLOW_RATIO), SCATTER_FACTOR * scatter)


class MatrixTable(msgspec.Struct, frozen=True):
    """The delay matrix as plain data: `cells[i][j]` is seconds per byte from `nics[i]` to `nics[j]`, or null."""

    nics: list[str]
    cells: list[list[float | None]]


def matrix_table(cells: Mapping[Cell, float]) -> MatrixTable:
    """The matrix for a report: every NIC that sends or receives, in name order, rows source, columns destination."""
    nics = sorted({nic for cell in cells for nic in cell})
    return MatrixTable(nics, [[cells.get((source, destination)) for destination in nics] for source in nics])
