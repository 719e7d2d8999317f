"""The delay matrix of C4: transfer seconds per byte, rows the sending NICs, columns the receiving ones.

Cells are differences of cumulative counters over a span, so waiting for a peer's credit or for local data does not
count, and a lost window costs nothing but resolution. A slow path is a point, a slow transmitter a row, a slow
receiver a column.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from c4bench.c4d.columns import Ints, Table
from c4bench.c4d.connections import Connections, cell_of
from c4bench.c4d.localise import Cell, Links
from c4bench.c4d.thresholds import (
    BASELINE_MAX_SPANS,
    BASELINE_MIN_SPANS,
    BASELINE_SETTLED_SPANS,
    PEER_RATIO,
    TAIL_POWER,
)
from c4bench.c4d.ways import Measured, Ways
from c4bench.model.diagnosis import Component

# Bytes count when acknowledged, seconds as they pass: a difference taken in the middle of a message is off by up to
# one message, so it is taken when nothing is under way, or when one message in so many does not matter.
_MESSAGES_THAT_DILUTE = 8
# Messages this much smaller than usual take as long as the way is, and tell nothing of how fast it is. What is usual
# follows a job that goes over to small ones, span by span.
_SMALL = 0.25
_FOLLOWS = 0.9
# What has carried nothing in so many spans comes anew when it does.
_ABSENT_SPANS = 8
# Departures below this are a clock's resolution; so many of them tell enough of how healthy cells depart.
_RESOLUTION = 1e-3
_POOL = 4096
# The cells of so many NICs tell how all behave.
_SAMPLED_NICS = 128
# The floor is what one span in so many undercuts: among as many as are kept of a cell, one of the least.
_SPANS_TO_ONE = 10
_LEAST = tuple(f"least_{number}" for number in range(BASELINE_MAX_SPANS // _SPANS_TO_ONE + 1))
_HIGH = 0.8
_MANY = 4


class Span(NamedTuple):
    """Seconds per byte of the cells that moved bytes; cells that connections were moved to; that began to carry."""

    cells: Measured
    rerouted: frozenset[Cell]
    came: frozenset[Cell]


class DelayMatrix:
    """Accumulates transfer time and bytes of each way between two NICs over the current span."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        # By the connection's row: the counters at its mark, and the way it took then.
        self._marks = Table(way=-1, source_port=0.0, messages=0.0, size_bytes=0.0, transfer_s=0.0)
        self._sums = Table(transfer_s=0.0, size_bytes=0.0, messages=0.0)
        # By the way: the usual message, bytes, and the last span that carried any.
        self._past = Table(message_bytes=0.0, carried=-math.inf)
        self._spans = 0
        self._rerouted: set[Cell] = set()

    def add(self, conns: Connections) -> None:
        """Take in connections' newest counters; the first sight of a connection on its way only sets its mark."""
        table, marks = conns.table, self._marks
        marks.add(table.count - marks.count)
        now = {name: table.used(name) for name in ("source_port", "messages", "size_bytes", "transfer_s")}
        known = now["messages"] >= 0
        first = marks.used("way") < 0
        moved = known & (first | (now["source_port"] != marks.used("source_port")))
        for row in np.flatnonzero(moved).tolist():
            marks["way"][row] = self._ways.row(cell_of(table["record"][row]))
        self._rerouted |= {self._ways.cells[row] for row in marks.used("way")[moved & ~first].tolist()}
        fresh = len(self._ways.cells) - self._sums.count
        self._sums.add(fresh)
        self._past.add(fresh)
        messages = now["messages"] - marks.used("messages")
        told = ((table.used("outstanding") == 0) & (messages > 0)) | (messages >= _MESSAGES_THAT_DILUTE)
        told &= known & ~moved & (now["size_bytes"] > marks.used("size_bytes"))
        for name in ("transfer_s", "size_bytes", "messages"):
            np.add.at(self._sums[name], marks.used("way")[told], (now[name] - marks.used(name))[told])
        for name, values in now.items():
            marks[name][: marks.count][moved | told] = values[moved | told]

    def close(self) -> Span:
        """What the span has shown of ways that carried messages of the usual size, and a new span."""
        rows = np.flatnonzero(self._sums.used("size_bytes"))
        message_bytes = self._sums["size_bytes"][rows] / self._sums["messages"][rows]
        usual_bytes = self._past["message_bytes"][rows]
        self._past["message_bytes"][rows] = np.maximum(message_bytes, _FOLLOWS * usual_bytes)
        told = rows[message_bytes > _SMALL * usual_bytes]
        cells = Measured(self._ways, told, self._sums["transfer_s"][told] / self._sums["size_bytes"][told])
        span = Span(cells, frozenset(self._rerouted), self._came(rows))
        for name in ("transfer_s", "size_bytes", "messages"):
            self._sums[name][:] = 0.0
        self._rerouted.clear()
        return span

    def _came(self, rows: Ints) -> frozenset[Cell]:
        """Those that carry now, and have carried nothing for a while."""
        self._spans += 1
        last = self._past["carried"][rows]
        self._past["carried"][rows] = self._spans
        return frozenset(self._ways.cells[row] for row in rows[self._spans - last > _ABSENT_SPANS].tolist())

    def current(self) -> set[Cell]:
        """The cells that connections are in now."""
        rows = np.unique(self._marks.used("way"))
        return {self._ways.cells[row] for row in rows[rows >= 0].tolist()}


class Side(NamedTuple):
    """A row, a column or the cells of a link; whether they are many."""

    component: Component
    many: bool


class Healthy:
    """How far healthy suspects depart, and for how long, from what they did in consecutive spans."""

    def __init__(self, spans: Sequence[Mapping[Any, float]]) -> None:
        self._pool = sorted(itertools.islice((value for span in spans for value in span.values()), _POOL))
        self._persistence = _persistence(spans, self._quantile(_HIGH))

    def __bool__(self) -> bool:
        return bool(self._pool)

    @property
    def high(self) -> float:
        """What four in five departures do not reach."""
        return self._quantile(_HIGH)

    @property
    def middle(self) -> float:
        """The usual departure."""
        return self._quantile(0.5)

    def _quantile(self, share: float) -> float:
        return self._pool[int(share * (len(self._pool) - 1))] if self._pool else 0.0

    def chance(self, departure: float, spans: int) -> float:
        """The chance to depart by `departure` (> 0) or more `spans` times in a row; 1 before anything is known.

        Beyond all that was seen the chance is taken to fall with a power, a heavy tail, to be safe. Transfers that meet
        once go on meeting, so it is persistence and not the chance to begin that each further span costs.
        """
        if not self._pool:
            return 1.0
        beyond = len(self._pool) - bisect.bisect_left(self._pool, departure)
        rarity = min(1.0, max(self._pool[-1], _RESOLUTION) / departure) ** TAIL_POWER
        begun = (beyond + 1) / (len(self._pool) + 1)
        return rarity**spans * begun * max(begun, self._persistence) ** (spans - 1)


def _persistence(spans: Sequence[Mapping[Any, float]], high: float) -> float:
    """How often what was high in one span is so in the next."""
    followed = [
        after[suspect] >= high
        for before, after in itertools.pairwise(spans)
        for suspect, value in before.items()
        if value >= high and suspect in after
    ]
    return min(0.9, (sum(followed) + 1) / (len(followed) + 2)) if followed else 0.5


class Baseline:
    """What each cell costs in health: its floor over the job's first healthy spans, and how far all depart from theirs.

    The floor, which one span in ten undercuts, is what a transfer takes that meets no other. Departures are log ratios
    to it; those of all cells in all healthy spans tell how often a healthy cell departs by how much, and those of whole
    rows and columns, whose cells meet in the same queue, how often a healthy NIC does.
    """

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        # By the cell's number: how many healthy spans it has, the least of their logs, the floor (nan: none yet);
        # whether it is held against no past, not of other ways either.
        self._costs = Table(spans=0, floor=math.nan, sampled=False, anew=False, **dict.fromkeys(_LEAST, math.inf))
        self._sampled: frozenset[str] = frozenset()
        self._samples: list[Mapping[Cell, float]] = []
        self._links: Links = {}
        self._healthy: tuple[Healthy, Healthy, Healthy] | None = None

    def learn(self, cells: Measured, links: Links | None = None) -> None:
        """Remember a healthy span, until so many are known; a way that is new has its own number to go."""
        costs = self._of_all()
        young = cells.pick((cells.figures > 0) & (costs["spans"][cells.rows] < BASELINE_MAX_SPANS))
        rows = young.rows
        least = np.sort(np.stack([np.log(young.figures), *(costs[name][rows] for name in _LEAST)]), axis=0)
        for name, values in zip(_LEAST, least, strict=False):
            costs[name][rows] = values
        spans = costs["spans"][rows] = costs["spans"][rows] + 1
        floors = least[spans // _SPANS_TO_ONE, np.arange(len(rows))]
        costs["floor"][rows] = np.where(spans >= BASELINE_MIN_SPANS, floors, math.nan)
        if len(cells) and len(self._samples) < BASELINE_MAX_SPANS:
            self._sample(cells, links or {})

    def _of_all(self) -> Table:
        """What is known of all ways, with rows for those that are new."""
        names = self._ways.cells
        first = self._costs.add(len(names) - self._costs.count)
        self._costs["sampled"][first : len(names)] = [not self._sampled.isdisjoint(cell) for cell in names[first:]]
        return self._costs

    def _sample(self, cells: Measured, links: Links) -> None:
        if not self._sampled:
            sources = (self._ways.cells[row][0] for row in cells.rows.tolist())
            self._sampled = frozenset(itertools.islice(dict.fromkeys(sources), _SAMPLED_NICS))
            self._costs["sampled"][: self._costs.count] = [not self._sampled.isdisjoint(c) for c in self._ways.cells]
        own = cells.pick((cells.figures > 0) & self._costs["sampled"][cells.rows])
        self._samples.append({cell: math.log(value) for cell, value in own.items()})
        self._links = links
        self._healthy = None

    def departures(self, cells: Measured) -> Measured:
        """The log ratio of each known cell to its floor, less what all have slowed by beyond what is usual.

        A way without a history is held against what other ways between its NICs have shown.
        """
        cells = cells.pick(cells.figures > 0)
        floors = self._of_all()["floor"][cells.rows]
        lacking = np.flatnonzero(np.isnan(floors) & ~self._costs["anew"][cells.rows])
        if len(lacking):
            floors[lacking] = self._of_pairs(cells.rows[lacking])
        logs = np.log(cells.figures) - floors
        known = ~np.isnan(logs)
        own = Measured(self._ways, cells.rows[known], logs[known])
        if len(own) < 2:
            return own
        common = max(0.0, float(np.median(own.figures)) - self._learnt()[0].middle)
        return Measured(self._ways, own.rows, own.figures - common)

    def _of_pairs(self, fresh: Ints) -> list[float]:
        """The floors of other ways between the NICs of new ones, nan where there are none."""
        names, floor = self._ways.cells, self._costs["floor"]
        floors = {names[row][:2]: float(floor[row]) for row in self._known().tolist()}
        return [floors.get(names[row][:2], math.nan) for row in fresh.tolist()]

    def _known(self) -> Ints:
        return np.flatnonzero(~np.isnan(self._costs.used("floor")))

    def high(self) -> float:
        """How far all but a few healthy cells depart at most."""
        return self._learnt()[0].high

    def _above_floor(self, logs: Mapping[Cell, float]) -> dict[Cell, float]:
        floors = self._costs["floor"][self._ways.rows(logs)].tolist()
        above = {cell: value - floor for (cell, value), floor in zip(logs.items(), floors, strict=True)}
        return {cell: value for cell, value in above.items() if not math.isnan(value)}

    def cell_chance(self, _: Cell, departure: float, spans: int) -> float:
        """The chance that a healthy cell departs by `departure` (> 0) or more in so many spans in a row."""
        return self._learnt()[0].chance(departure, spans)

    def side_chance(self, side: Side, departure: float, spans: int) -> float:
        """The same of a row, column or link, see `sides`; those of few cells are held against their like."""
        cells, few, many = self._learnt()
        return (many if side.many else few or cells).chance(departure, spans)

    def _learnt(self) -> tuple[Healthy, Healthy, Healthy]:
        if self._healthy is None:
            spans = _beside_all([self._above_floor(span) for span in self._samples])
            whole = [self._whole(span) for span in spans]
            few = [{side: value for side, value in span.items() if not side.many} for span in whole]
            many = [{side: value for side, value in span.items() if side.many} for span in whole]
            self._healthy = Healthy(spans), Healthy(few), Healthy(many)
        return self._healthy

    def _whole(self, span: Mapping[Cell, float]) -> dict[Side, float]:
        """The links, and the sampled NICs' rows and columns: of the others not all cells are kept."""
        found = sides(span, self._links)
        return {
            s: value for s, value in found.items() if s.component.kind == "link" or s.component.name in self._sampled
        }

    def strange(self, cells: Measured) -> dict[Cell, float]:
        """Cells without history that are far above the median of all, by log ratio: peers are all there is to go by."""
        cells = cells.pick(cells.figures > 0)
        if len(cells) < 3:
            return {}
        middle = float(np.median(cells.figures))
        far = cells.pick(cells.figures > PEER_RATIO * middle)
        known = {cell[:2] for cell in self.known()} if far else set()
        return {cell: math.log(value / middle) for cell, value in far.items() if cell[:2] not in known}

    def forget(self, cell: Cell) -> None:
        """The cell shows anew what it costs: the plan around it has changed."""
        row = self._ways.row(cell)
        blanks = {"spans": 0, "floor": math.nan, "anew": True} | dict.fromkeys(_LEAST, math.inf)
        for name, blank in blanks.items():
            self._of_all()[name][row] = blank
        self._healthy = None

    def knows(self, cell: Cell) -> bool:
        """Whether the cell has enough healthy history to be held against."""
        return not math.isnan(self._of_all()["floor"][self._ways.row(cell)])

    def settled(self) -> bool:
        """Whether there is so much history that learning can wait until it is sure that a span was healthy."""
        return len(self._samples) >= BASELINE_SETTLED_SPANS

    def known(self) -> list[Cell]:
        """All cells with enough healthy history."""
        return [self._ways.cells[row] for row in self._known().tolist()]


def _beside_all(spans: Sequence[Mapping[Cell, float]]) -> list[dict[Cell, float]]:
    """What cells did in these spans, less what all had slowed by beyond what is usual, as in `Baseline.departures`."""
    middles = [statistics.median(span.values()) if len(span) > 1 else 0.0 for span in spans]
    usual = statistics.median(middles) if middles else 0.0
    return [
        {cell: value - max(0.0, middle - usual) for cell, value in span.items()}
        for span, middle in zip(spans, middles, strict=True)
    ]


def sides(departures: Mapping[Cell, float], links: Links) -> dict[Side, float]:
    """How far rows, columns and links with several cells depart as a whole: all but a quarter of their cells."""
    found: dict[Component, list[float]] = {}
    for cell, departure in departures.items():
        for side in (Component("nic", cell[0], "tx"), Component("nic", cell[1], "rx")):
            found.setdefault(side, []).append(departure)
        for hop in links.get(cell, ()):
            found.setdefault(Component("link", hop), []).append(departure)
    return {
        Side(side, len(values) >= _MANY): sorted(values)[len(values) // 4]
        for side, values in found.items()
        if len(values) > 1
    }


class MatrixTable(msgspec.Struct, frozen=True):
    """The delay matrix as plain data: `cells[i][j]` is seconds per byte from `nics[i]` to `nics[j]`, or null."""

    nics: list[str]
    cells: list[list[float | None]]


def matrix_table(cells: Mapping[Cell, float]) -> MatrixTable:
    """The matrix for a report: every NIC that sends or receives, in name order, rows source, columns destination."""
    nics = sorted({nic for cell in cells for nic in cell[:2]})
    return MatrixTable(nics, [[cells.get((source, destination)) for destination in nics] for source in nics])
