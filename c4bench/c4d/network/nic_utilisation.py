"""Slow NICs, by how long each is busy per byte, whatever the order of transfers.

Where a rank sends to several peers, which transfers meet changes from span to span, and for good when a rank becomes
late. The shares of a NIC's time still add up to how long it was busy, and a slow NIC is busy longer in any order:
sending and, as its acknowledgements wait with its data, receiving. Other NICs are busy longer only with what they
exchange with it.
"""

import math
import statistics
from collections import deque
from typing import NamedTuple

import numpy as np

from c4bench.attribution.localise import Blame, Cell, Links
from c4bench.c4d.columns import Bools, Floats
from c4bench.c4d.network.cell_index import CellIndex, CellValues
from c4bench.c4d.network.delay_baseline import HealthyDepartures
from c4bench.c4d.network.diagnosis_gate import NamingCase
from c4bench.c4d.network.evidence import Evidence, Weight
from c4bench.c4d.thresholds import (
    BASELINE_MAX_SPANS,
    BASELINE_SETTLED_SPANS,
    ENOUGH,
    SAMPLED_NICS,
    SLIGHT,
    SPANS_PER_FLOOR,
)
from c4bench.model.diagnosis import Component

# With fewer cells a side's cost may be a single path's; the worst cell of more is left out for the same reason.
_CELLS = 3
# Without a slow NIC's cells, the excess of others is below this share of the NIC's; so is that of its healthy side.
_SPILL = 0.5
# Spans over which it is averaged how far cells depart: in one span they vary with the order of transfers.
_LATEST_SPANS = 4
# The busiest NICs, for which it is remembered how long they have been busy.
_FOLLOWED = 16


class _Usual(NamedTuple):
    """The floor of each side, how far NICs departed from theirs in even spans, and how far at most."""

    floors: Floats
    healthy: HealthyDepartures
    highest: float


class _Slow(NamedTuple):
    """A NIC by its number, how far its sides are beyond their floors together, and how far each slow side is."""

    nic: int
    total: float
    beyond: Floats

    @property
    def slow_sides(self) -> int:
        """The number of slow sides."""
        return int(np.count_nonzero(self.beyond))


class NicUtilisation:
    """Learns in even spans how long each side of each NIC is busy per byte, and evaluates spans by it.

    Costs are logs of seconds per byte, of shape (2, NICs): sending and receiving; nan for sides of few cells.
    """

    def __init__(self, index: CellIndex) -> None:
        self._index = index
        self._learnt: list[Floats] = []
        self._usual: _Usual | None = None
        self._evidence: Evidence[int] = Evidence(self._chance)
        self._runs: dict[int, NamingCase] = {}
        self._latest: deque[CellValues] = deque(maxlen=_LATEST_SPANS)

    def learn(self, cells: CellValues) -> None:
        """Learn an even span (seconds per byte), up to `BASELINE_MAX_SPANS`."""
        if len(cells) and len(self._learnt) < BASELINE_MAX_SPANS:
            self._learnt.append(self._costs(cells))
            self._usual = None

    def forget(self) -> None:
        """Drop all that was learnt, and learn again how long NICs are busy."""
        self._learnt.clear()
        self._latest.clear()
        self._evidence.clear()
        self._runs.clear()

    def excuse(self, nic: str) -> None:
        """Drop the evidence against a NIC: it is explained."""
        self._evidence.forget(self._index.nic_numbers[nic])

    def weight(self, nic: str) -> Weight | None:
        """The evidence against a NIC by how long it is busy; None if there is none."""
        return self._evidence.weights().get(self._index.nic_numbers[nic]) if nic in self._index.nic_numbers else None

    def evaluates(self, cells: CellValues) -> bool:
        """Whether some side of a NIC has so many cells that its transfers may meet in one order or another."""
        return bool((~np.isnan(self._costs(cells))).any())

    def evaluate(self, cells: CellValues, departures: CellValues, opened_s: float, links: Links) -> list[NamingCase]:
        """The NICs that the spans up to the one opened at `opened_s` show to be slow, the worst first.

        `departures` are how far cells are beyond their own floors (log ratios).
        """
        self._runs.clear()
        self._latest.append(departures)
        slow, left = self._slow(cells, links)
        # The worst NIC makes all others busy, too: only what one has beyond most of them speaks against it.
        worst, spill = slow[:1], float(np.median(left)) if slow else 0.0
        near = np.argsort(-left, kind="stable")[:_FOLLOWED]
        beyond = dict.fromkeys(self._evidence.departing(), 0.0) | dict(
            zip(near.tolist(), (left[near] - spill).tolist(), strict=True)
        )
        beyond |= {slowed.nic: slowed.total - spill for slowed in slow} | {slowed.nic: slowed.total for slowed in worst}
        self._evidence.add(beyond, {}, opened_s)
        weights, cases = self._evidence.weights(), []
        for slowed in slow:
            # Nothing is held against one that is hardly beyond most others.
            weight = weights.get(slowed.nic)
            if weight is not None and weight.of_enough >= ENOUGH:
                least = weight.least / slowed.slow_sides
                cases.append(NamingCase(self._blame(slowed, cells, links), weight.onset_s, least, weight.spans))
        return cases

    def evaluate_uneven(self, cells: CellValues, opened_s: float, links: Links) -> list[NamingCase]:
        """The same for spans while a rank is late, in which the order of transfers does not vary.

        A NIC must be busier than any NIC was in even spans.
        """
        self._latest.clear()
        self._evidence.clear()
        before, self._runs = self._runs, {}
        for slowed in self._slow(cells, links)[0]:
            if slowed.total <= self._known().highest:
                break
            blame = self._blame(slowed, cells, links)
            _, onset_s, least, spans = before.get(slowed.nic, NamingCase(blame, opened_s, math.inf, 0))
            self._runs[slowed.nic] = NamingCase(blame, onset_s, min(least, slowed.total / slowed.slow_sides), spans + 1)
        return list(self._runs.values())

    def _slow(self, cells: CellValues, links: Links) -> tuple[list[_Slow], Floats]:
        """Greedily remove the busiest NIC; it is slow if every other NIC's excess then falls to half its own or less.

        A side whose cells over one link are slow, and the others hardly, is not: that link may be. Returns the slow
        NICs, the worst first, and how far all others are beyond their floors.
        """
        slow: list[_Slow] = []
        if len(self._learnt) < BASELINE_SETTLED_SPANS:
            return slow, np.empty(0)
        beyond = self._beyond(cells)
        while beyond.size and (total := beyond.sum(axis=0)).max() > SLIGHT:
            nic = int(np.argmax(total))
            cells = cells.pick(~self._touching(cells, nic))
            without = self._beyond(cells)
            if without.sum(axis=0).max() > _SPILL * total[nic]:
                break
            sides, beyond = np.where(self._by_one_link(nic, links), 0.0, beyond[:, nic]), without
            if sides.sum() <= max(SLIGHT, without.sum(axis=0).max() / _SPILL):
                break
            slow.append(_Slow(nic, float(sides.sum()), np.where(sides < _SPILL * sides.max(), 0.0, sides)))
        return slow, beyond.sum(axis=0)

    def _by_one_link(self, nic: int, links: Links) -> list[bool]:
        """For each side of a NIC, whether a slow link explains how its cells have departed lately."""
        values: dict[int, list[float]] = {}
        for span in self._latest:
            own = span.pick(self._touching(span, nic))
            for row, value in zip(own.rows.tolist(), own.figures.tolist(), strict=True):
                values.setdefault(row, []).append(value)
        rows = np.array(list(values), np.int64)
        typical = CellValues(self._index, rows, np.array([statistics.fmean(each) for each in values.values()]))
        return [_crosses_slow_link(typical.pick(side), links) for side in self._index.ends[:, rows] == nic]

    def _blame(self, slow: _Slow, cells: CellValues, links: Links) -> Blame:
        """The NIC, or its slow side if the other is healthy; with the links that only this side crosses."""
        side = {(True, False): "tx", (False, True): "rx"}.get(tuple((slow.beyond > 0).tolist()), "")
        end = dict(zip(("tx", "rx"), self._index.ends, strict=True)).get(side)
        which = self._touching(cells, slow.nic) if end is None else end[cells.rows] == slow.nic
        own = tuple(sorted(cells.pick(which)))
        hops = set.intersection(*(set(links.get(cell, ())) for cell in own)) if side else set()
        elsewhere = {hop for cell in cells.pick(~which) for hop in links.get(cell, ())} if hops else set()
        others = tuple(Component("link", hop) for hop in sorted(hops - elsewhere))
        return Blame(Component("nic", self._index.nics[slow.nic], side), own, float(slow.beyond.max()), others)

    def _chance(self, nic: int, beyond: float, spans: int) -> float:
        return self._known().healthy.chance(nic, beyond, spans)

    def _known(self) -> _Usual:
        if self._usual is None:
            count = len(self._index.nics)
            wide = [np.pad(span, ((0, 0), (0, count - span.shape[1])), constant_values=np.nan) for span in self._learnt]
            costs = np.sort(np.stack(wide), axis=0)  # nan comes last
            spans = (~np.isnan(costs)).sum(axis=0)
            floors = np.take_along_axis(costs, (spans // SPANS_PER_FLOOR)[np.newaxis], axis=0)[0]
            totals = [_above(span, floors).sum(axis=0) for span in wide]
            healthy = HealthyDepartures([dict(enumerate(span[:SAMPLED_NICS].tolist())) for span in totals])
            self._usual = _Usual(floors, healthy, float(max(span.max(initial=0.0) for span in totals)))
        return self._usual

    def _beyond(self, cells: CellValues) -> Floats:
        """How far both sides of each NIC are beyond their floors (log ratios)."""
        return _above(self._costs(cells), self._known().floors)

    def _costs(self, cells: CellValues) -> Floats:
        """The log of each side's mean cost without its worst cell."""
        every = self._index.ends
        count = len(self._index.nics)
        costs = np.full((2, count), np.nan)
        for side, ends in enumerate(every[:, cells.rows]):
            number = np.bincount(ends, minlength=count) - 1
            worst = np.zeros(count)
            np.maximum.at(worst, ends, cells.figures)
            sums = np.bincount(ends, cells.figures, minlength=count) - worst
            many = (number >= _CELLS - 1) & (sums > 0)
            costs[side, many] = np.log(sums[many] / number[many])
        return costs

    def _touching(self, cells: CellValues, nic: int) -> Bools:
        touching: Bools = (self._index.ends[:, cells.rows] == nic).any(axis=0)
        return touching


def _crosses_slow_link(departures: CellValues, links: Links) -> bool:
    """Whether cells of several paths that cross one link depart (log ratios), and the others hardly."""
    crossing: dict[str, set[Cell]] = {}
    for cell in departures:
        for hop in links.get(cell, ()):
            crossing.setdefault(hop, set()).add(cell)
    for crossed in crossing.values():
        others = [value for cell, value in departures.items() if cell not in crossed]
        if others and len({cell[:2] for cell in crossed}) > 1:
            typical = statistics.fmean(departures[cell] for cell in crossed)
            if typical > SLIGHT and statistics.fmean(others) <= _SPILL * typical:
                return True
    return False


def _above(costs: Floats, floors: Floats) -> Floats:
    """How far sides are beyond their floors, as far as both are known."""
    above: Floats = np.nan_to_num(np.maximum(costs[:, : floors.shape[1]] - floors[:, : costs.shape[1]], 0.0))
    return above
