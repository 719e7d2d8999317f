"""The delay matrix of C4: transfer seconds per byte, rows the sending NICs, columns the receiving ones.

Cells are differences of cumulative counters over a span, so waiting for a peer's credit or for local data does not
count, and a lost window costs nothing but resolution. A slow path is a point, a slow transmitter a row, a slow
receiver a column.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from c4bench.c4d.job_view import ConnKey, cell_of, key
from c4bench.c4d.localise import Cell, Links
from c4bench.c4d.thresholds import (
    BASELINE_MAX_SPANS,
    BASELINE_MIN_SPANS,
    BASELINE_SETTLED_SPANS,
    PEER_RATIO,
    TAIL_POWER,
)
from c4bench.model.diagnosis import Component
from c4bench.model.telemetry import ConnRecord

# Bytes count when acknowledged, seconds as they pass: a difference taken in the middle of a message is off by up to
# one message, so it is taken when nothing is under way, or when one message in so many does not matter.
_MESSAGES_THAT_DILUTE = 8
# Departures below this are a clock's resolution; so many of them tell enough of how healthy cells depart.
_RESOLUTION = 1e-3
_POOL = 4096
# The cells of so many NICs tell how all behave.
_SAMPLED_NICS = 128
_HIGH = 0.8
_MANY = 4


class DelayMatrix:
    """Accumulates transfer time and bytes of each way between two NICs over the current span."""

    def __init__(self) -> None:
        self._marks: dict[ConnKey, ConnRecord] = {}
        self._transfer_s: dict[Cell, float] = {}
        self._bytes: dict[Cell, int] = {}

    def add(self, conns: Iterable[ConnRecord]) -> None:
        """Take in connections' newest counters; the first sight of a connection on its way only sets its mark."""
        marks = self._marks
        for conn in conns:
            name = key(conn)
            mark = marks.get(name)
            if mark is None or mark.source_port != conn.source_port:
                marks[name] = conn
            elif _comparable(mark, conn):
                self._count(mark, conn)
                marks[name] = conn

    def close(self) -> dict[Cell, float]:
        """Seconds per byte of every cell that moved bytes in the span, and a new span."""
        cells = {cell: self._transfer_s[cell] / size for cell, size in self._bytes.items()}
        self._transfer_s.clear()
        self._bytes.clear()
        return cells

    def current(self) -> set[Cell]:
        """The cells that connections are in now."""
        return {cell_of(conn) for conn in self._marks.values()}

    def _count(self, mark: ConnRecord, conn: ConnRecord) -> None:
        cell = cell_of(conn)
        self._transfer_s[cell] = self._transfer_s.get(cell, 0.0) + conn.transfer_s - mark.transfer_s
        self._bytes[cell] = self._bytes.get(cell, 0) + conn.size_bytes - mark.size_bytes


def _comparable(mark: ConnRecord, conn: ConnRecord) -> bool:
    messages = conn.messages - mark.messages
    quiet = conn.outstanding == 0 and messages > 0
    return conn.size_bytes > mark.size_bytes and (quiet or messages >= _MESSAGES_THAT_DILUTE)


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

    def __init__(self) -> None:
        self._sampled: frozenset[str] = frozenset()
        self._samples: list[Mapping[Cell, float]] = []
        self._values: dict[Cell, list[float]] = {}
        self._floor: dict[Cell, float] = {}  # of the cells with enough history
        self._links: Links = {}
        self._healthy: tuple[Healthy, Healthy, Healthy] | None = None

    def learn(self, cells: Mapping[Cell, float], links: Links | None = None) -> None:
        """Remember a healthy span, until so many are known; a way that is new has its own number to go."""
        for cell, value in cells.items():
            if value > 0 and len(values := self._values.setdefault(cell, [])) < BASELINE_MAX_SPANS:
                bisect.insort(values, math.log(value))
                if len(values) >= BASELINE_MIN_SPANS:
                    self._floor[cell] = values[len(values) // 10]
        if cells and len(self._samples) < BASELINE_MAX_SPANS:
            self._sample(cells, links or {})

    def _sample(self, cells: Mapping[Cell, float], links: Links) -> None:
        if not self._sampled:
            self._sampled = frozenset(itertools.islice({cell[0]: None for cell in cells}, _SAMPLED_NICS))
        own = {cell: value for cell, value in cells.items() if value > 0 and not self._sampled.isdisjoint(cell)}
        self._samples.append({cell: math.log(value) for cell, value in own.items()})
        self._links = links
        self._healthy = None

    def departures(self, cells: Mapping[Cell, float]) -> dict[Cell, float]:
        """The log ratio of each known cell to its floor, less what all have slowed by beyond what is usual.

        A way without a history is held against what other ways between its NICs have shown.
        """
        floor = self._floor
        own = {cell: math.log(value) - floor[cell] for cell, value in cells.items() if cell in floor and value > 0}
        if floor and len(own) < len(cells):
            own |= self._of_pairs({cell: value for cell, value in cells.items() if cell not in floor and value > 0})
        if len(own) < 2:
            return own
        common = max(0.0, statistics.median(own.values()) - self._learnt()[0].middle)
        return {cell: departure - common for cell, departure in own.items()}

    def _of_pairs(self, fresh: Mapping[Cell, float]) -> dict[Cell, float]:
        """How far new ways depart from the floors of others between the same NICs."""
        floors = {cell[:2]: floor for cell, floor in self._floor.items()}
        return {cell: math.log(value) - floors[cell[:2]] for cell, value in fresh.items() if cell[:2] in floors}

    def high(self) -> float:
        """How far all but a few healthy cells depart at most."""
        return self._learnt()[0].high

    def _above_floor(self, logs: Mapping[Cell, float]) -> dict[Cell, float]:
        floor = self._floor
        return {cell: value - floor[cell] for cell, value in logs.items() if cell in floor}

    def cell_chance(self, _: Cell, departure: float, spans: int) -> float:
        """The chance that a healthy cell departs by `departure` (> 0) or more in so many spans in a row."""
        return self._learnt()[0].chance(departure, spans)

    def side_chance(self, side: Side, departure: float, spans: int) -> float:
        """The same of a row, column or link, see `sides`; those of few cells are held against their like."""
        cells, few, many = self._learnt()
        return (many if side.many else few or cells).chance(departure, spans)

    def _learnt(self) -> tuple[Healthy, Healthy, Healthy]:
        if self._healthy is None:
            spans = [self._above_floor(span) for span in self._samples]
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

    def strange(self, cells: Mapping[Cell, float]) -> dict[Cell, float]:
        """Cells without history that are far above the median of all, by log ratio: peers are all there is to go by."""
        values = [value for value in cells.values() if value > 0]
        if len(values) < 3:
            return {}
        middle = statistics.median(values)
        far = {cell: value for cell, value in cells.items() if value > PEER_RATIO * middle}
        known = {cell[:2] for cell in self._floor} if far else set()
        return {cell: math.log(value / middle) for cell, value in far.items() if cell[:2] not in known}

    def knows(self, cell: Cell) -> bool:
        """Whether the cell has enough healthy history to be held against."""
        return cell in self._floor

    def settled(self) -> bool:
        """Whether there is so much history that learning can wait until it is sure that a span was healthy."""
        return len(self._samples) >= BASELINE_SETTLED_SPANS

    def known(self) -> list[Cell]:
        """All cells with enough healthy history."""
        return list(self._floor)


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
