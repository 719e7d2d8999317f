"""The healthy cost of each cell of the delay matrix, and how far a span departs from it."""

import bisect
import itertools
import math
import statistics
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from c4bench.attribution.weigh import Cell, Links
from c4bench.c4d.observe.cell_index import CellIndex, CellValues
from c4bench.c4d.observe.columns import Bools, Ints, Table
from c4bench.c4d.signs.delays import MatrixSlice, slice_departures
from c4bench.c4d.thresholds import (
    BASELINE_MAX_SPANS,
    BASELINE_SETTLED_SPANS,
    NAME_SPANS,
    SAMPLED_NICS,
    SPANS_PER_FLOOR,
    TAIL_POWER,
)

# Departures (log ratio) below this are the resolution of clocks.
_RESOLUTION = 1e-3
# So many departures are enough to know how healthy cells depart, and so many cells to know how all do.
_POOL = 4096
# The share of departures that does not count as high.
_HIGH = 0.8


class HealthyDepartures:
    """How far and for how long healthy suspects depart, learnt from consecutive `spans`."""

    def __init__(self, spans: Sequence[Mapping[Any, float]]) -> None:
        self.spans = spans
        # Of the suspects that were asked for.
        self._own: dict[Any, list[float]] = {}
        self._pool = sorted(itertools.islice((value for span in spans for value in span.values()), _POOL))

    @cached_property
    def _persistence(self) -> float:
        return _persistence(self.spans, self.high)

    @property
    def seen(self) -> int:
        """How many departures are known."""
        return len(self._pool)

    @property
    def high(self) -> float:
        """The departure that four in five do not reach."""
        return self._quantile(_HIGH)

    @property
    def middle(self) -> float:
        """The usual departure."""
        return self._quantile(0.5)

    def _quantile(self, share: float) -> float:
        return self._pool[int(share * (len(self._pool) - 1))] if self._pool else 0.0

    def chance(self, suspect: Hashable, departure: float, spans: int) -> float:
        """The chance to depart by `departure` (> 0) or more `spans` times in a row; 1 before anything is known.

        Beyond all departures seen, the chance falls with a power: a heavy tail, to be safe. Transfers that meet once go
        on meeting, so each further span multiplies the chance by the persistence, or by how often `suspect` departs
        so far if that is more: transfers meet more often on one link than on another.
        """
        if not self._pool:
            return 1.0
        beyond = len(self._pool) - bisect.bisect_left(self._pool, departure)
        rarity = min(1.0, max(self._pool[-1], _RESOLUTION) / departure) ** TAIL_POWER
        begun = (beyond + 1) / (len(self._pool) + 1)
        again = max(begun, self._persistence, self._own_chance(suspect, departure))
        return rarity**spans * begun * again ** (spans - 1)

    def _own_chance(self, suspect: Hashable, departure: float) -> float:
        """How often it departs so far; 0 where nothing is known of it."""
        if suspect not in self._own:
            self._own[suspect] = sorted(span[suspect] for span in self.spans if suspect in span)
        own = self._own[suspect]
        return (len(own) - bisect.bisect_left(own, departure) + 1) / (len(own) + 2) if own else 0.0


def _persistence(spans: Sequence[Mapping[Any, float]], high: float) -> float:
    """How often a departure that was high in one span is high in the next."""
    followed = [
        after[suspect] >= high
        for before, after in itertools.pairwise(spans)
        for suspect, value in before.items()
        if value >= high and suspect in after
    ]
    return min(0.9, (sum(followed) + 1) / (len(followed) + 2)) if followed else 0.5


# From so many departures of sides with few cells it is known how often these depart.
_TELLING = 64
# Columns for the least costs of a cell; the largest of them is its floor.
_LEAST = tuple(f"least_{number}" for number in range(BASELINE_MAX_SPANS // SPANS_PER_FLOOR + 1))
_BLANKS: dict[str, float] = {"spans": 0, "floor": math.nan, "forgotten": False} | dict.fromkeys(_LEAST, math.inf)


class DelayBaseline:
    """The healthy cost of each cell: its floor over the job's first healthy spans, and how far all depart from theirs.

    The floor, which one span in ten undercuts, is what a transfer takes that meets no other. Departures are log ratios
    to it. Those of all cells in all healthy spans show how often a healthy cell departs by how much; those of whole
    rows and columns, whose cells meet in the same queue, show the same of a healthy NIC.
    """

    def __init__(self, index: CellIndex) -> None:
        self._index = index
        # By the cell's number: how many healthy spans it has, the least of their logs, the floor (nan: none yet);
        # whether its cost was forgotten, so that no earlier cost may replace it.
        self._costs = Table(**_BLANKS)
        self._sampled: frozenset[str] = frozenset()
        # Logs of costs.
        self._samples: deque[CellValues] = deque(maxlen=BASELINE_MAX_SPANS)
        self._links: Links = {}
        # Derived from the samples when they are asked for: of cells, and of slices of few and of many cells.
        self._of_cells: HealthyDepartures | None = None
        self._of_slices: tuple[HealthyDepartures, HealthyDepartures] | None = None

    def learn(self, cells: CellValues, links: Links | None = None) -> None:
        """Learn a healthy span, up to `BASELINE_MAX_SPANS` of each cell."""
        costs = self._all_costs()
        young = cells.pick((cells.figures > 0) & (costs["spans"][cells.rows] < BASELINE_MAX_SPANS))
        rows = young.rows
        least = np.sort(np.stack([np.log(young.figures), *(costs[name][rows] for name in _LEAST)]), axis=0)
        for name, values in zip(_LEAST, least, strict=False):
            costs[name][rows] = values
        spans = costs["spans"][rows] = costs["spans"][rows] + 1
        floors = least[spans // SPANS_PER_FLOOR, np.arange(len(rows))]
        # A floor needs as many spans as name a component. A forgotten cell now shares its path: in a span in which
        # little was sent it may meet others less.
        enough = np.where(costs["forgotten"][rows], BASELINE_MAX_SPANS, NAME_SPANS)
        costs["floor"][rows] = np.where(spans >= enough, floors, math.nan)
        # The new samples of a forgotten cell replace its earlier ones.
        if len(cells) and (len(self._samples) < BASELINE_MAX_SPANS or self._are_sampled(rows).any()):
            self._sample(cells, links or {})

    def _all_costs(self) -> Table:
        """The costs of all cells, with rows for those that are new."""
        self._costs.add(len(self._index.cells) - self._costs.count)
        return self._costs

    def _are_sampled(self, rows: Ints) -> Bools:
        """Which of these cells are of sampled NICs."""
        sampled = np.zeros(len(self._index.nics), np.bool_)
        ends = self._index.ends[:, rows]
        sampled[self._index.nic_numbers.rows(self._sampled, len(self._sampled))] = True
        return np.asarray(sampled[ends].any(axis=0))

    def _sample(self, cells: CellValues, links: Links) -> None:
        self._sample_nics(cells)
        own = cells.pick((cells.figures > 0) & self._are_sampled(cells.rows))
        self._samples.append(CellValues(self._index, own.rows, np.log(own.figures)))
        self._links = links
        self._derive_again()

    def _derive_again(self) -> None:
        self._of_cells = self._of_slices = None

    def _sample_nics(self, cells: CellValues) -> None:
        """Sample enough NICs to know how all behave; not all need to send in the first span."""
        names, ends = self._index.nics, self._index.ends
        sampled = self._are_sampled(np.arange(ends.shape[1]))
        for nic in dict.fromkeys(ends[0, cells.rows].tolist()):
            if len(self._sampled) == SAMPLED_NICS or np.count_nonzero(sampled) >= _POOL:
                return
            if names[nic] not in self._sampled:
                self._sampled |= {names[nic]}
                sampled |= (ends == nic).any(axis=0)

    def departures(self, cells: CellValues) -> CellValues:
        """The log ratio of each known cell to its floor, less the unusual part of what all have slowed by.

        A path without history is compared with other paths between its NICs.
        """
        cells = cells.pick(cells.figures > 0)
        floors = self._all_costs()["floor"][cells.rows]
        lacking = np.flatnonzero(np.isnan(floors) & ~self._costs["forgotten"][cells.rows])
        if len(lacking):
            floors[lacking] = self._pair_floors(cells.rows[lacking])
        logs = np.log(cells.figures) - floors
        known = ~np.isnan(logs)
        own = CellValues(self._index, cells.rows[known], logs[known])
        if len(own) < 2:
            return own
        common = max(0.0, float(np.median(own.figures)) - self._healthy_cells().middle)
        return CellValues(self._index, own.rows, own.figures - common)

    def _pair_floors(self, fresh: Ints) -> list[float]:
        """The floors of other paths between the same NICs, nan where there are none."""
        names, floor = self._index.cells, self._costs["floor"]
        floors = {names[row][:2]: float(floor[row]) for row in self._known().tolist()}
        return [floors.get(names[row][:2], math.nan) for row in fresh.tolist()]

    def _known(self) -> Ints:
        return np.flatnonzero(~np.isnan(self._costs.used("floor")))

    def high(self) -> float:
        """The departure that all but a few healthy cells stay below (log ratio)."""
        return self._healthy_cells().high

    def _above_floor(self, logs: CellValues) -> CellValues:
        above = CellValues(self._index, logs.rows, logs.figures - self._costs["floor"][logs.rows])
        return above.pick(~np.isnan(above.figures))

    def cell_chance(self, cell: Cell, departure: float, spans: int) -> float:
        """The chance that a healthy cell departs by `departure` (> 0) or more in so many spans in a row."""
        return self._healthy_cells().chance(cell, departure, spans)

    def side_chance(self, side: MatrixSlice, departure: float, spans: int) -> float:
        """The same of a row, column or link, see `MatrixSlice`; slices of few cells are compared with each other.

        While few of these are known, they are compared with single cells, which depart more often.
        """
        few, many = self._healthy_slices()
        few = few if few.seen >= _TELLING else self._healthy_cells()
        return (many if side.many else few).chance(side, departure, spans)

    def _healthy_cells(self) -> HealthyDepartures:
        if self._of_cells is None:
            self._of_cells = HealthyDepartures(_beside_all([self._above_floor(span) for span in self._samples]))
        return self._of_cells

    def _healthy_slices(self) -> tuple[HealthyDepartures, HealthyDepartures]:
        if self._of_slices is None:
            whole = [self._whole(span) for span in self._healthy_cells().spans]
            few = [{side: value for side, value in span.items() if not side.many} for span in whole]
            many = [{side: value for side, value in span.items() if side.many} for span in whole]
            self._of_slices = HealthyDepartures(few), HealthyDepartures(many)
        return self._of_slices

    def _whole(self, span: Mapping[Cell, float]) -> dict[MatrixSlice, float]:
        """The links, and the sampled NICs' rows and columns: of the others not all cells are kept."""
        slices = slice_departures(span, self._links)
        return {
            s: value for s, value in slices.items() if s.component.kind == "link" or s.component.name in self._sampled
        }

    def forget(self, cell: Cell) -> None:
        """Learn again what a cell costs: the traffic around it has changed."""
        row = self._index.row(cell)
        self._blank(np.asarray([row]))
        self._costs["forgotten"][row] = True
        self._derive_again()

    def remove(self, rows: Ints) -> None:
        """Forget cells that are not used any more."""
        self._blank(rows)
        spans = [span.pick(~np.isin(span.rows, rows)) for span in self._samples]
        self._samples = deque(spans, maxlen=BASELINE_MAX_SPANS)
        self._derive_again()

    def _blank(self, rows: Ints) -> None:
        costs = self._all_costs()
        for name, blank in _BLANKS.items():
            costs[name][rows] = blank

    def knows(self, cell: Cell) -> bool:
        """Whether the cell has enough healthy history to be held against."""
        return not math.isnan(self._all_costs()["floor"][self._index.row(cell)])

    def settled(self) -> bool:
        """Whether enough is known to learn a span only after it has proved healthy."""
        return len(self._samples) >= BASELINE_SETTLED_SPANS

    def known(self) -> list[Cell]:
        """All cells with enough healthy history."""
        return [self._index.cells[row] for row in self._known().tolist()]


def _beside_all(spans: Sequence[CellValues]) -> list[CellValues]:
    """Departures of these spans less the unusual part of what all had slowed by: see `DelayBaseline.departures`."""
    middles = [float(np.median(span.figures)) if len(span) > 1 else 0.0 for span in spans]
    usual = statistics.median(middles) if middles else 0.0
    return [
        CellValues(span.index, span.rows, span.figures - max(0.0, middle - usual))
        for span, middle in zip(spans, middles, strict=True)
    ]
