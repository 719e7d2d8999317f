"""Communication slowness: which component makes transfers longer per byte than they were, span after span."""

import statistics
from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np

from c4bench.c4d.columns import Floats
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.c4d.localise import Blame, Cell, Links, localise, neighbouring_cells, parts_of, shared_links
from c4bench.c4d.network.ack_losses import AckLossDetector
from c4bench.c4d.network.benign_explanations import BenignExplanations
from c4bench.c4d.network.cell_index import CellIndex, CellValues
from c4bench.c4d.network.delay_baseline import DelayBaseline
from c4bench.c4d.network.delay_matrix import DelayMatrix
from c4bench.c4d.network.diagnosis_gate import Case, DiagnosisGate
from c4bench.c4d.network.evidence import SLIGHT, Evidence, Weight
from c4bench.c4d.network.in_flight import in_flight_costs
from c4bench.c4d.network.matrix_slices import MatrixSlice, slice_departures
from c4bench.c4d.network.missing_links import MissingLinkDetector
from c4bench.c4d.network.nic_utilisation import NicUtilisation
from c4bench.c4d.network.one_way_delays import OneWayDelays
from c4bench.c4d.network.packet_loss import PacketLossDetector, loss_finding, nic_loss_counts
from c4bench.c4d.probing.sweep import slow_nics
from c4bench.c4d.thresholds import ALARM_SPANS, UNSURE_SPANS, WARM_UP_SPANS, benign_stall_s
from c4bench.model.diagnosis import Component
from c4bench.model.fabric import MissingLink
from c4bench.model.recording import ProbeSweep

# What must speak against a component in all, on the scale of `Evidence`, and against each of its cells.
_ENOUGH = 1.0
_LEANING = 0.15
# A cell against which less speaks still teaches what is normal.
_CLEAN = 0.5
_WHOLE_CELLS = 3
_RIVALS = 2
# Judgements are a tenth of a second apart, give or take so much: a span is not to wait for one more because of it.
_EARLY_S = 0.005
# What speaks most against two cells may begin a span later for one of them.
_AT_ONCE_SPANS = 1.5


class NetworkSlownessDetector:
    """Follows one job's delay matrix, on a `fabric` with other jobs."""

    def __init__(self, view: JobView, clocks: HostClocks, fabric: SharedFabric) -> None:
        self._view = view
        self._clocks = clocks
        self._fabric = fabric
        self._index = CellIndex()
        self._matrix = DelayMatrix(self._index)
        self._baseline = DelayBaseline(self._index)
        self._newest: Floats = np.empty(0)
        self._evidence: Evidence[Cell] = Evidence(self._baseline.cell_chance)
        self._sides: Evidence[MatrixSlice] = Evidence(self._baseline.side_chance)
        self._opened_s: float | None = None
        self._lasted_s = 0.0
        self._spans = 0
        self._oneway = OneWayDelays()
        self._naming = DiagnosisGate(self._oneway)
        self._unsure: deque[CellValues] = deque()
        self._losses = PacketLossDetector()
        self._answers = AckLossDetector(self._baseline.cell_chance)
        self._busy = NicUtilisation(self._index)
        self._explained = BenignExplanations(view, fabric)
        self._missing = MissingLinkDetector()

    def ingest_delays(self, now_s: float) -> None:
        """Take in the newest one-way delays, whether or not they will be needed."""
        self._oneway.add(self._view.conns.records(), self._view.arrivals.records(), now_s)

    @property
    def cells(self) -> dict[Cell, float]:
        """The newest delay matrix, seconds per byte."""
        rows = np.flatnonzero(~np.isnan(self._newest))
        return dict(CellValues(self._index, rows, self._newest[rows]))

    def ingest_sweep(self, swept: ProbeSweep) -> list[Finding]:
        """New verdicts on NICs after all have been probed; those that are named already are left out of it."""
        verdicts = slow_nics(swept, self._naming.nics)
        fresh = self._naming.new_in_sweep(verdict.component for verdict in verdicts)
        return [verdict for verdict in verdicts if verdict.component in fresh]

    def note_named(self, components: Iterable[Component], now_s: float) -> None:
        """These have been found, by whichever judgement of the job: links among them are not said to be missing."""
        self._missing.note_named(components, now_s)

    def evaluate(
        self, now_s: float, span_s: float, *, disturbed: bool, uneven: bool = False
    ) -> list[tuple[Finding, float]]:
        """New verdicts with the time of their alarm, once every `span_s`.

        A `disturbed` span (a rank has just become late, an operation stood still) makes transfers collide that
        otherwise do not: it is neither judged nor learned from. While a known late rank makes all spans `uneven`, only
        NICs are judged, as wholes.
        """
        self._matrix.add(self._view.conns)
        if self._opened_s is None:
            self._opened_s = now_s
        if now_s - self._opened_s < span_s - _EARLY_S:
            return []
        opened_s, self._opened_s = self._opened_s, now_s
        self._lasted_s = now_s - opened_s
        cells, rerouted, came = self._matrix.close_span()
        links = self._view.links()
        self._explained.add_span(opened_s, now_s, rerouted, came, links)
        missing = self._lasting(now_s, links)
        self._spans += bool(cells)
        if not cells or disturbed or self._spans <= WARM_UP_SPANS:
            return missing
        self._newest = np.concatenate([self._newest, np.full(len(self._index.cells) - len(self._newest), np.nan)])
        self._newest[cells.rows] = cells.figures
        departures = self._baseline.departures(cells)
        counts = nic_loss_counts(self._view, self._clocks, opened_s)
        current = self._matrix.current() if counts else ()
        waiting = self._waiting(cells) if counts else {}
        self._losses.add(departures, self._baseline.high(), counts, opened_s, current, waiting)
        self._answers.add(departures, self._losses.unanswered(), opened_s)
        lost = self._lost(now_s) if self._losses.concerned() or self._answers else []
        found = missing + lost
        if uneven:
            return found + self._judge_uneven(cells, opened_s, now_s, links)
        return found + self._judge_span(cells, departures, opened_s, now_s, links)

    def _judge_span(
        self,
        fresh: CellValues,
        departures: CellValues,
        opened_s: float,
        now_s: float,
        links: Links,
    ) -> list[tuple[Finding, float]]:
        if not self._baseline.settled():
            # Few spans make no floor: who is beyond that from the first on would be so for good.
            departures = departures.pick(np.zeros(len(departures), np.bool_))
        strange = self._baseline.without_history(fresh)
        # Of the many that neither depart nor did, nothing is to be remembered.
        telling = (departures.figures > SLIGHT) | departures.among(self._evidence.departing())
        self._evidence.add(departures.pick(telling), strange, opened_s)
        self._sides.add(self._departing_sides(departures, links), {}, opened_s)
        weights = self._evidence.weights()
        leaning = {cell: weight.least for cell, weight in weights.items() if weight.of_enough > _LEANING}
        concerned = self._losses.concerned()
        doubted = {cell for cell, weight in weights.items() if weight.of_enough >= _CLEAN} | strange.keys() | concerned
        self._learn(fresh.pick(~fresh.among(doubted)), doubted, links)
        blames = localise(self._excess(leaning), links=self._view.suspect_links(leaning)) if leaning else []
        blames, wanting = self._unexplained(blames, weights, links)
        onset_s = min((_onset_s(weights, blame) for blame in wanting), default=now_s)
        missing = [(verdict, now_s) for verdict in self._missing.explaining(wanting, onset_s)]
        blames = [blame for blame in self._together(blames, weights, links) if self._founded(blame, weights)]
        blames = [blame for blame in blames if not _with_mates(blame, leaning)]
        blames = [blame for blame in blames if concerned.isdisjoint(blame.cells)]
        busy = self._busy_nics(fresh, opened_s, links, blames)
        nics = {one.blame.component.name for one in busy}
        # Of a busy NIC is known more than what its cells show one by one.
        blames = [blame for blame in blames if any(nics.isdisjoint(cell) for cell in blame.cells)]
        self._naming.heal([*blames, *(one.blame for one in busy)])
        return missing + self._naming.name([*busy, *(_case(blame, weights) for blame in blames)], fresh, now_s)

    def _judge_uneven(
        self, fresh: CellValues, opened_s: float, now_s: float, links: Links
    ) -> list[tuple[Finding, float]]:
        """The order of transfers is another, so that what cells have shown in even spans is none of their past."""
        self._evidence.clear()
        self._sides.clear()
        return self._naming.name(self._busy.evaluate_uneven(fresh, opened_s, links), fresh, now_s)

    def _waiting(self, measured: CellValues) -> dict[Cell, float]:
        """How far cells depart at least of which nothing was measured, by transfers that have not ended."""
        least = in_flight_costs(self._view, self._clocks, self._matrix.message_bytes())
        waiting = {cell: cost for cell, cost in least.items() if cell not in measured}
        departures = self._baseline.departures(self._index.values_of({**measured, **waiting}))
        return {cell: value for cell, value in departures.items() if cell in waiting}

    def _busy_nics(self, fresh: CellValues, opened_s: float, links: Links, blames: Iterable[Blame]) -> list[Case]:
        """The NICs that are busy longer by what crosses no slow link, but for those another job has just come upon."""
        slow = self._naming.links | {blame.component.name for blame in blames if blame.component.kind == "link"}
        if slow:
            fresh = fresh.pick(~fresh.among(self._explained.blocked_cells(fresh, slow, links)))
        found = self._busy.evaluate(fresh, opened_s, links)
        if any(self._explained.met_other_job(one.blame, one.onset_s, links) for one in found):
            self._busy.forget()
            return []
        return [one for one in found if self._losses.concerned().isdisjoint(one.blame.cells)]

    def _lost(self, now_s: float) -> list[tuple[Finding, float]]:
        """Verdicts on what loses packets, each once until it heals."""
        found = self._losses.find(self._matrix.current(), self._view.suspect_links) or self._answers.find(
            self._view.return_links
        )
        fresh = self._naming.note_new(loss.blame.component for loss in found)
        return [(loss_finding(loss), now_s) for loss in found if loss.blame.component in fresh]

    def _departing_sides(self, departures: Mapping[Cell, float], links: Links) -> dict[MatrixSlice, float]:
        """How far the sides depart that any departing cell is part of, and those that did before; no other can."""
        shared = {part for cell in self._evidence.departing() for part in parts_of(cell, links)}
        shared |= {side.component.name for side in self._sides.departing()}
        if not shared:
            return {}
        found = slice_departures(neighbouring_cells(departures, shared, links), links)
        return {side: value for side, value in found.items() if side.component.name in shared}

    def _excess(self, leaning: Mapping[Cell, float]) -> dict[Cell, float]:
        """How far the cells in use depart; ways that were left say nothing of now."""
        current = self._matrix.current()
        known = {**dict.fromkeys(self._baseline.known(), 0.0), **leaning}
        return {cell: value for cell, value in known.items() if cell in current}

    def _learn(self, fresh: CellValues, doubted: set[Cell], links: Links) -> None:
        """Learn from a span once it has shown not to open a departure; at once from the first few."""
        self._unsure.append(fresh)
        self._unlearn(doubted)
        while len(self._unsure) > UNSURE_SPANS or (self._unsure and not self._baseline.settled()):
            clean = self._unsure.popleft()
            self._baseline.learn(clean, links)
            self._busy.learn(clean)

    def _unlearn(self, cells: set[Cell]) -> None:
        """What these have shown in the last few spans is not to be learnt."""
        if cells:
            self._unsure = deque(unsure.pick(~unsure.among(cells)) for unsure in self._unsure)

    def _unexplained(
        self, blames: list[Blame], weights: Mapping[Cell, Weight], links: Links
    ) -> tuple[list[Blame], dict[Blame, list[MissingLink]]]:
        """Without what shares its way with something that has just come, and shows anew what it costs.

        Some of that comes for want of links that are missing.
        """
        lasting = [blame for blame in blames if _spans(weights, blame) >= ALARM_SPANS]
        onsets_s = {blame: _onset_s(weights, blame) for blame in lasting}
        lacked = {blame: self._explained.missing_links(blame, onset_s) for blame, onset_s in onsets_s.items()}
        explained = [one for one in lasting if lacked[one] or self._explained.met_traffic(one, onsets_s[one], links)]
        anew = {cell for blame in explained for cell in blame.cells}
        for cell in anew:
            self._baseline.forget(cell)
            self._evidence.forget(cell)
        self._unlearn(anew)
        wanting = {blame: found for blame, found in lacked.items() if found}
        return [blame for blame in blames if blame not in explained], wanting

    def _lasting(self, now_s: float, links: Links) -> list[tuple[Finding, float]]:
        """Verdicts on links that the job's ways led over, and that are missing for longer than what is benign."""
        self._missing.update(self._fabric.missing, links)
        return [(verdict, now_s) for verdict in self._missing.lasting(now_s, benign_stall_s(self._view.period_s()))]

    def _together(self, blames: list[Blame], weights: Mapping[Cell, Weight], links: Links) -> list[Blame]:
        """With the link that two points have in common instead of these, and without points where there is no such.

        A skewed schedule makes several comparable points where transfers run into each other. A point that something
        else of enough weight may be behind, by its acknowledgements, is that one's.
        """
        others = [blame for blame in blames if blame.component.kind != "path"]
        founded = [blame for blame in others if self._founded(blame, weights)]
        points = [
            blame
            for blame in blames
            if blame not in others and not any(self._held_up(blame, other, weights) for other in founded)
        ]
        if len(points) < _RIVALS:
            return [blame for blame in blames if blame in others or blame in points]
        common = shared_links(points, links, self._view.return_links) if self._at_once(points, weights) else None
        return others + ([common] if common else [])

    def _held_up(self, point: Blame, other: Blame, weights: Mapping[Cell, Weight]) -> bool:
        """Whether a point's acknowledgements may cross a link that is, or may be, to blame since the same moment."""
        hops = {one.name for one in (other.component, *other.alternatives) if one.kind == "link"}
        back = frozenset[str]().union(*map(self._view.return_links, point.cells)) if hops else hops
        return not hops.isdisjoint(back) and self._at_once((point, other), weights)

    def _at_once(self, blames: Iterable[Blame], weights: Mapping[Cell, Weight]) -> bool:
        onsets_s = [_onset_s(weights, blame) for blame in blames]
        return max(onsets_s) - min(onsets_s) <= _AT_ONCE_SPANS * self._lasted_s

    def _founded(self, blame: Blame, weights: Mapping[Cell, Weight]) -> bool:
        """Whether enough speaks against a component as a whole; a point or a pair also needs a history of its own.

        Without one it may just be a longer way; a whole row or column is not.
        """
        cells = [weights[cell].of_enough for cell in blame.cells if cell in weights]
        if not all(self._baseline.knows(cell) for cell in blame.cells):
            return len(cells) >= _WHOLE_CELLS and statistics.median(cells) >= _ENOUGH
        if blame.component.kind == "path":
            return min(cells) >= _ENOUGH
        known = {side.component: weight.of_enough for side, weight in self._sides.weights().items()}
        whole = blame.component.kind == "nic" and not blame.component.side
        parts = [Component("nic", blame.component.name, side) for side in ("tx", "rx")] if whole else [blame.component]
        as_a_whole = [known[part] for part in parts if part in known]
        # A side that is a single cell, as in a ring, has no other evidence than that cell's.
        return (max(as_a_whole) if as_a_whole else min(cells)) >= _ENOUGH


def _spans(weights: Mapping[Cell, Weight], blame: Blame) -> float:
    """How many spans speak against a blame, by half of its cells."""
    return statistics.median(weights[cell].spans if cell in weights else 0 for cell in blame.cells)


def _onset_s(weights: Mapping[Cell, Weight], blame: Blame) -> float:
    """When it began, by the most of the blame's cells."""
    return statistics.median_low([weights[cell].onset_s for cell in blame.cells if cell in weights])


def _with_mates(blame: Blame, leaning: Mapping[Cell, float]) -> bool:
    """Whether something speaks against a point's row or column too: then the point is where that meets most."""
    if len(blame.cells) != 1:
        return False
    (point,) = blame.cells
    return any((cell[0] == point[0]) != (cell[1] == point[1]) for cell in leaning)


def _case(blame: Blame, weights: Mapping[Cell, Weight]) -> Case:
    least = statistics.median_low([weights[cell].least for cell in blame.cells if cell in weights])
    return Case(blame, _onset_s(weights, blame), least, _spans(weights, blame))
