"""What transfers cost whose completions say little: a program that asks for one in many finds late what came long ago.

UCX is such a program. Where both ends count messages, their one-way delays say it. The clocks' offset is in each of
these, and drops out of the sum of both directions: so only that says how much slower they have become, and the delays
since it was last as usual, a moment ago, say which of them.
"""

import statistics
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from c4bench.attribution.weigh import Cell
from c4bench.c4d.observe.cell_index import CellIndex, CellValues
from c4bench.c4d.observe.columns import Ints
from c4bench.c4d.observe.connections import Connections
from c4bench.c4d.observe.delay_matrix import SMALL
from c4bench.c4d.observe.one_way_delays import OneWayDelays
from c4bench.c4d.thresholds import SLIGHT_RATIO
from c4bench.model.window import STATES

_IDLE = STATES.index("idle")


class _Usual(NamedTuple):
    """The least that a message has taken there and back (s), and the way there when it last took about as long."""

    both_s: float
    there_s: float


class RoundTrips:
    """Follows the connections of one job that have messages outstanding for which nobody waits."""

    def __init__(self, conns: Connections, delays: OneWayDelays, index: CellIndex) -> None:
        self._conns, self._delays, self._index = conns, delays, index
        self._sparse: set[Cell] = set()
        # The cells that cost what their messages take.
        self._usual: dict[Cell, _Usual] = {}

    def costs(
        self, cells: CellValues, opened_s: float, message_bytes: Mapping[Cell, float], *, late: bool
    ) -> tuple[CellValues, Ints]:
        """The costs of a span (s per byte) that opened at `opened_s`, and the cells that cost something else before.

        `message_bytes` are the cells' usual messages. A message waits for a receiver that computes: so cells of far
        smaller messages than others have are left out, and all of this kind while a rank is `late`; so is one that has
        been measured before and of which the span shows nothing.
        """
        rows = self._conns.known()
        idle = (self._conns.table["state"][rows] == _IDLE) & (self._conns.table["outstanding"][rows] > 0)
        self._sparse |= {self._conns.cells[row] for row in rows[idle].tolist()}
        if not self._sparse:
            return cells, rows[:0]
        sizes = {cell: size for cell, size in message_bytes.items() if cell in self._sparse}
        large = {cell for cell, size in sizes.items() if size > SMALL * max(sizes.values())}
        known_s = {} if late else self._delays_s(rows, opened_s)
        delays_s = {cell: taken for cell, taken in known_s.items() if cell in large}
        fresh = self._index.rows(delays_s.keys() - self._usual.keys())
        own = {cell: self._taken_s(cell, *taken) / sizes[cell] for cell, taken in delays_s.items()}
        others = {
            cell: cost
            for cell, cost in cells.items()
            if cell not in self._usual and (cell in large or cell not in sizes)
        }
        return self._index.values_of(others | own), fresh

    def _delays_s(self, rows: Ints, opened_s: float) -> dict[Cell, tuple[float, float]]:
        """The delays of these connections' cells since then, there and back, where both are known."""
        means_s = self._delays.means_s(self._conns.table["pair"][rows], opened_s)
        there: dict[Cell, list[float]] = {}
        between: dict[Cell, list[float]] = {}
        for place in np.flatnonzero(~np.isnan(means_s)).tolist():
            cell, mean_s = self._conns.cells[rows[place]], float(means_s[place])
            there.setdefault(cell, []).append(mean_s)
            between.setdefault(cell[:2], []).append(mean_s)
        both = ((cell, there[cell], between.get((cell[1], cell[0]))) for cell in there)
        return {cell: (statistics.fmean(to_s), statistics.fmean(back_s)) for cell, to_s, back_s in both if back_s}

    def _taken_s(self, cell: Cell, there_s: float, back_s: float) -> float:
        """What a message takes one way: half of the least both ways, and what of the rest is not the way back's."""
        both_s = there_s + back_s
        usual = self._usual.get(cell, _Usual(both_s, there_s))
        least_s = min(both_s, usual.both_s)
        self._usual[cell] = _Usual(least_s, there_s if both_s <= SLIGHT_RATIO * least_s else usual.there_s)
        return least_s / 2 + min(max(0.0, there_s - usual.there_s), both_s - least_s)

    def receivers(self, cells: Collection[Cell]) -> set[str]:
        """The NICs to which all cells of this kind are among these: their programs may only look late for messages."""
        others = {cell[1] for cell in self._usual if cell not in cells}
        return {cell[1] for cell in self._usual if cell in cells} - others

    def forget(self, cells: set[Cell]) -> None:
        """Forget cells that no connection uses."""
        self._sparse -= cells
        self._usual = {cell: usual for cell, usual in self._usual.items() if cell not in cells}
