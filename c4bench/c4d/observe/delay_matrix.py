"""The delay matrix of C4: transfer seconds per byte, rows the sending NICs, columns the receiving ones.

The seconds are a connection's share of its NIC's time, so that transfers which share a NIC look no slower.
Cells are differences of cumulative counters over a span, so waiting for a peer's credit or for local data does not
count, and a lost window costs nothing but resolution. A slow path is a point, a slow transmitter a row, a slow
receiver a column.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from c4bench.attribution.weigh import Cell
from c4bench.c4d.observe.cell_index import CellIndex, CellValues
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.columns import Ints, Table
from c4bench.c4d.observe.connections import Connections, cell_of
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.thresholds import KEPT, RECENT_SPANS

# Bytes count when acknowledged, seconds as they pass: a difference taken in the middle of a message is off by up to
# one message, so it is taken when nothing is in flight, or when one message in so many does not matter.
_MESSAGES_THAT_DILUTE = 8
# Messages below this share of the usual size measure latency, not rate. The usual size follows a job that turns to
# smaller messages by this factor a span.
SMALL = 0.25
_FOLLOWS = 0.9


class Span(NamedTuple):
    """Seconds per byte of the cells that moved messages of the usual size, and the bytes of all that moved any.

    With them the cells that connections moved to, and those that began to carry.
    """

    cells: CellValues
    sizes: CellValues
    rerouted: frozenset[Cell]
    arrived: frozenset[Cell]


class DelayMatrix:
    """Accumulates transfer time and bytes of each cell over the current span."""

    def __init__(self, index: CellIndex) -> None:
        self._index = index
        # By the connection's row: the counters at its mark, and the cell it was in then.
        self._marks = Table(cell=-1, life=0, source_port=0.0, messages=0.0, size_bytes=0.0, shared_s=0.0)
        self._sums = Table(shared_s=0.0, size_bytes=0.0, messages=0.0)
        # By cell: the usual message (bytes), and the last span that carried any.
        self._past = Table(message_bytes=0.0, carried=-math.inf)
        self._spans = 0
        self._rerouted: set[Cell] = set()

    def add(self, conns: Connections) -> None:
        """Add connections' newest counters; the first sight of a connection on a path only sets its mark."""
        table, marks = conns.table, self._marks
        marks.add(table.count - marks.count)
        now = {name: table.used(name) for name in ("source_port", "messages", "size_bytes", "shared_s")}
        known = now["messages"] >= 0
        marks["cell"][: marks.count][(table.used("life") != marks.used("life")) | ~known] = -1
        marks["life"][: marks.count] = table.used("life")
        first = marks.used("cell") < 0
        moved = known & (first | (now["source_port"] != marks.used("source_port")))
        for row in np.flatnonzero(moved).tolist():
            marks["cell"][row] = self._index.row(conns.cells[row])
        self._rerouted |= {self._index.cells[row] for row in marks.used("cell")[moved & ~first].tolist()}
        fresh = len(self._index.cells) - self._sums.count
        self._sums.add(fresh)
        self._past.add(fresh)
        messages = now["messages"] - marks.used("messages")
        usable = ((table.used("outstanding") == 0) & (messages > 0)) | (messages >= _MESSAGES_THAT_DILUTE)
        usable &= known & ~moved & (now["size_bytes"] > marks.used("size_bytes"))
        for name in ("shared_s", "size_bytes", "messages"):
            np.add.at(self._sums[name], marks.used("cell")[usable], (now[name] - marks.used(name))[usable])
        for name, values in now.items():
            marks[name][: marks.count][moved | usable] = values[moved | usable]

    def close_span(self) -> Span:
        """Close the span: return the cells that carried messages of the usual size, and open a new one."""
        rows = np.flatnonzero(self._sums.used("size_bytes"))
        message_bytes = self._sums["size_bytes"][rows] / self._sums["messages"][rows]
        usual_bytes = self._past["message_bytes"][rows]
        self._past["message_bytes"][rows] = np.maximum(message_bytes, _FOLLOWS * usual_bytes)
        usable = rows[message_bytes > SMALL * usual_bytes]
        cells = CellValues(self._index, usable, self._sums["shared_s"][usable] / self._sums["size_bytes"][usable])
        sizes = CellValues(self._index, rows, self._sums["size_bytes"][rows])
        span = Span(cells, sizes, frozenset(self._rerouted), self._arrived(rows))
        for name in ("shared_s", "size_bytes", "messages"):
            self._sums[name][:] = 0.0
        self._rerouted.clear()
        return span

    def _arrived(self, rows: Ints) -> frozenset[Cell]:
        """The cells that carry now and have carried nothing for a while."""
        self._spans += 1
        last = self._past["carried"][rows]
        self._past["carried"][rows] = self._spans
        return frozenset(self._index.cells[row] for row in rows[self._spans - last > RECENT_SPANS].tolist())

    def unused(self) -> Ints:
        """The cells that no connection is in and that have carried nothing for longer than any stage looks back."""
        current = self._marks.used("cell")
        unused = self._index.known() & (self._spans - self._past.used("carried") > KEPT)
        unused[current[current >= 0]] = False
        return np.flatnonzero(unused)

    def forget(self, rows: Ints) -> None:
        """Forget cells, which nothing uses."""
        self._past["message_bytes"][rows], self._past["carried"][rows] = 0.0, -math.inf

    def message_bytes(self) -> dict[Cell, float]:
        """The usual message of each cell that has carried any."""
        sizes = self._past.used("message_bytes").tolist()
        return {cell: size for cell, size in zip(self._index.cells, sizes, strict=False) if size > 0}

    def current(self) -> set[Cell]:
        """The cells that connections are in now and that have carried something."""
        current = self._marks.used("cell")
        rows = np.unique(current[current >= 0])
        return {self._index.cells[row] for row in rows[self._past["carried"][rows] > 0].tolist()}


class MatrixTable(msgspec.Struct, frozen=True):
    """The delay matrix as plain data: `cells[i][j]` is seconds per byte from `nics[i]` to `nics[j]`, or null."""

    nics: list[str]
    cells: list[list[float | None]]


def matrix_table(cells: Mapping[Cell, float]) -> MatrixTable:
    """The matrix for a report: every NIC that sends or receives, in name order, rows source, columns destination."""
    nics = sorted({nic for cell in cells for nic in cell[:2]})
    return MatrixTable(nics, [[cells.get((source, destination)) for destination in nics] for source in nics])


def in_flight_costs(job: JobView, clocks: HostClocks, message_bytes: Mapping[Cell, float]) -> dict[Cell, float]:
    """The least seconds per byte of each cell with messages in flight of which none has been acknowledged for a while.

    `message_bytes` are a cell's usual message. All connections that a rank has on the NIC may share its time.
    """
    views = list(job.conns.values())
    sharing = Counter((view.record.comm, view.record.rank, view.record.source) for view in views)
    costs: dict[Cell, float] = {}
    for view in views:
        conn, cell = view.record, cell_of(view.record)
        size = conn.outstanding * message_bytes.get(cell, 0.0)
        if size > 0:
            reported_s = clocks.last_heard_s(view.host) - clocks.offset_s(view.host)
            lasted_s = reported_s - max(conn.state_since_s, conn.last_progress_s)
            least = lasted_s / sharing[conn.comm, conn.rank, conn.source] / size
            costs[cell] = max(least, costs.get(cell, 0.0))
    return costs
