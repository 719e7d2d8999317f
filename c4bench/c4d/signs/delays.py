"""How unlikely the departures of healthy cells, rows, columns and links would be, span after span."""

import math
import statistics
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from c4bench.attribution.weigh import CHANCE, Blame, Cell, Links, neighbouring_cells, parts_of
from c4bench.c4d.observe.cell_index import CellValues
from c4bench.c4d.thresholds import BASELINE_MAX_SPANS, SLIGHT
from c4bench.model.diagnosis import Component

# Enough evidence is a departure that a healthy suspect has with `CHANCE`: its negative log.
_ENOUGH_LOG = -math.log(CHANCE)
# A slice of this many cells is compared with slices of many cells, a smaller one with small ones.
_MANY_CELLS = 4

Suspect = TypeVar("Suspect")


class Weight(NamedTuple):
    """The evidence against a suspect: 1 is enough.

    `least`: how far it departed at least (log ratio) in the last `spans` spans, since `onset_s` (master's clock).
    """

    of_enough: float
    least: float
    onset_s: float
    spans: int


class Evidence(Generic[Suspect]):
    """The cells, or the rows and columns, that departed from their floors in each of their last spans.

    A slow component raises the least that a transfer takes; chance meetings of transfers do not. One span near its
    floor clears a suspect. `chance` returns how likely a healthy suspect departs this far in this many spans in a row.
    """

    def __init__(self, chance: Callable[[Suspect, float, int], float]) -> None:
        self._chance = chance
        self._runs: dict[Suspect, deque[tuple[float, float]]] = {}

    def add(self, departures: Mapping[Suspect, float], opened_s: float) -> None:
        """Add the departures (log ratios) of a span that opened at `opened_s`."""
        for suspect, departure in departures.items():
            if departure > SLIGHT:
                self._runs.setdefault(suspect, deque(maxlen=BASELINE_MAX_SPANS)).append((departure, opened_s))
            else:
                self._runs.pop(suspect, None)

    def forget(self, suspect: Suspect) -> None:
        """Drop the evidence against a suspect: it is explained."""
        self._runs.pop(suspect, None)

    def departing(self) -> set[Suspect]:
        """The suspects that departed when last measured."""
        return set(self._runs)

    def weights(self) -> dict[Suspect, Weight]:
        """The evidence against each suspect that departs."""
        return {suspect: self._weigh(suspect, run) for suspect, run in self._runs.items()}

    def _weigh(self, suspect: Suspect, run: deque[tuple[float, float]]) -> Weight:
        """Weigh the last few spans that are strongest: earlier ones may be chance."""
        best, least = Weight(0.0, 0.0, math.inf, 0), math.inf
        for spans, (departure, opened_s) in enumerate(reversed(run), start=1):
            least = min(least, departure)
            of_enough = -math.log(max(self._chance(suspect, least, spans), sys.float_info.min)) / _ENOUGH_LOG
            if of_enough > best.of_enough:
                best = Weight(of_enough, least, opened_s, spans)
        return best


class MatrixSlice(NamedTuple):
    """A row, a column or the cells of a link, which meet in one queue; whether they are many."""

    component: Component
    many: bool


def slice_departures(departures: Mapping[Cell, float], links: Links) -> dict[MatrixSlice, float]:
    """How far each row, column and link of several cells departs as a whole: the lower quartile of its cells."""
    by_part: dict[tuple[str, ...], list[float]] = {}
    for cell, departure in departures.items():
        for part in (("nic", cell[0], "tx"), ("nic", cell[1], "rx")):
            by_part.setdefault(part, []).append(departure)
        for hop in links.get(cell, ()):
            by_part.setdefault(("link", hop), []).append(departure)
    return {
        MatrixSlice(Component(*part), len(values) >= _MANY_CELLS): sorted(values)[len(values) // 4]
        for part, values in by_part.items()
        if len(values) > 1
    }


class Weights(NamedTuple):
    """The evidence against each cell that departs."""

    cells: Mapping[Cell, Weight]

    def above(self, bar: float) -> dict[Cell, float]:
        """Cells with more evidence than `bar` (1 is enough), and how far they departed at least (log ratio)."""
        return {cell: weight.least for cell, weight in self.cells.items() if weight.of_enough > bar}

    def spans(self, blame: Blame) -> float:
        """The number of spans that speak against a blame: the median of its cells."""
        return statistics.median(self.cells[cell].spans if cell in self.cells else 0 for cell in blame.cells)

    def onset_s(self, blame: Blame) -> float:
        """When a blame began (s, master's clock): the lower median of its cells."""
        return statistics.median_low(weight.onset_s for weight in self.of(blame))

    def least(self, blame: Blame) -> float:
        """How far a blame departed at least (log ratio): the lower median of its cells."""
        return statistics.median_low(weight.least for weight in self.of(blame))

    def of(self, blame: Blame) -> list[Weight]:
        """The weights of a blame's cells that depart."""
        return [self.cells[cell] for cell in blame.cells if cell in self.cells]


class MatrixEvidence:
    """The evidence against the cells of one job's delay matrix and against its slices.

    `cell_chance` and `slice_chance`: see `Evidence`.
    """

    def __init__(
        self,
        cell_chance: Callable[[Cell, float, int], float],
        slice_chance: Callable[[MatrixSlice, float, int], float],
    ) -> None:
        self._cells: Evidence[Cell] = Evidence(cell_chance)
        self._slices: Evidence[MatrixSlice] = Evidence(slice_chance)

    def add(self, departures: CellValues, opened_s: float, links: Links) -> Weights:
        """Add a span's departures; return the evidence against each cell that departs."""
        # Most cells neither depart now nor did before; nothing is kept of them.
        relevant = (departures.figures > SLIGHT) | departures.among(self._cells.departing())
        self._cells.add(departures.pick(relevant), opened_s)
        self._slices.add(self._departing_slices(departures, links), opened_s)
        return Weights(self._cells.weights())

    def slices(self) -> dict[Component, float]:
        """The evidence against each slice that departs; 1 is enough."""
        return {part.component: weight.of_enough for part, weight in self._slices.weights().items()}

    def forget(self, cells: set[Cell]) -> None:
        """Drop the evidence against cells: they are explained."""
        for cell in cells:
            self._cells.forget(cell)

    def _departing_slices(self, departures: Mapping[Cell, float], links: Links) -> dict[MatrixSlice, float]:
        """Departures of the slices that any departing cell is part of, and of those that departed before."""
        shared = {part for cell in self._cells.departing() for part in parts_of(cell, links)}
        shared |= {part.component.name for part in self._slices.departing()}
        if not shared:
            return {}
        slices = slice_departures(neighbouring_cells(departures, shared, links), links)
        return {part: value for part, value in slices.items() if part.component.name in shared}
