"""Network slowness of one job: each span of its delay matrix passes once through the steps below.

measure -> missing links -> packet loss -> weigh -> learn -> localise -> explain -> select -> name
"""

import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from c4bench.attribution.localise import Blame, Cell, Links, localise
from c4bench.c4d.columns import Floats
from c4bench.c4d.diagnosis import Alarmed, Finding
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.c4d.network.benign_explanations import BenignExplanations, CongestionDetector
from c4bench.c4d.network.cell_index import CellIndex, CellValues
from c4bench.c4d.network.delay_baseline import DelayBaseline
from c4bench.c4d.network.delay_matrix import DelayMatrix, in_flight_costs
from c4bench.c4d.network.diagnosis_gate import DiagnosisGate, NamingCase
from c4bench.c4d.network.evidence import MatrixEvidence, Weights
from c4bench.c4d.network.missing_links import MissingLinkDetector
from c4bench.c4d.network.nic_utilisation import NicUtilisation
from c4bench.c4d.network.one_way_delays import OneWayDelays
from c4bench.c4d.network.packet_loss import AckLossDetector, PacketLossDetector, loss_finding, nic_loss_counts
from c4bench.c4d.network.span_evidence import Judged, Span, SpanEvidence
from c4bench.c4d.probing.sweep import slow_nics
from c4bench.c4d.thresholds import (
    ALARM_SPANS,
    BEYOND_SHARING,
    CLEAN,
    EARLY_S,
    ENOUGH,
    LEANING,
    UNSURE_SPANS,
    WARM_UP_SPANS,
    benign_stall_s,
)
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Component, Diagnosis
from c4bench.model.recording import ProbeSweep

# Of more points at once none can be told to share one link.
_POINTS = 2


def shared_links(points: Sequence[Blame], links: Links, returning: Callable[[Cell], Collection[str]]) -> Blame | None:
    """The links that two bad paths may share: they carry data of one and possibly acknowledgements of the other.

    `returning` are the links that acknowledgements of a cell may take. None where there is no such link, where their
    data share one, or where they are no slower than transfers that run into a few others: nothing is wrong with that.
    """
    if len(points) != _POINTS or any(point.excess < BEYOND_SHARING for point in points):
        return None
    first, second = (point.cells[0] for point in points)
    if not set(links.get(first, ())).isdisjoint(links.get(second, ())):
        return None
    elsewhere = {hop for cell, hops in links.items() if cell not in (first, second) for hop in hops}
    shared = [
        Component("link", hop)
        for sent, answered in ((first, returning(second)), (second, returning(first)))
        for hop in links.get(sent, ())
        if hop in answered and hop not in elsewhere
    ]
    excess = min(point.excess for point in points)
    return Blame(shared[0], (first, second), excess, tuple(shared[1:])) if shared else None


# A row or column of this many cells needs no history: it is not just a longer path.
_WHOLE_CELLS = 3
# This many points at once are rivals: a skewed schedule makes several where transfers run into each other.
_RIVALS = 2
# The strongest evidence against two cells may begin a span later for one of them.
_AT_ONCE_SPANS = 1.5


class BlameSelection:
    """Selects among the blames of one span, which lasted `span_s`.

    `slices` returns the evidence against rows, columns and links; `knows` whether a cell has a history;
    `return_links` the links that acknowledgements of a cell may cross.
    """

    def __init__(
        self,
        weights: Weights,
        span_s: float,
        slices: Callable[[], Mapping[Component, float]],
        knows: Callable[[Cell], bool],
        return_links: Callable[[Cell], frozenset[str]],
    ) -> None:
        self._weights = weights
        self._span_s = span_s
        self._read_slices = slices
        self._knows = knows
        self._return_links = return_links

    @cached_property
    def _slices(self) -> Mapping[Component, float]:
        return self._read_slices()

    def select(self, blames: list[Blame], leaning: Mapping[Cell, float], links: Links) -> list[Blame]:
        """The blames that the evidence supports; `leaning` are the cells with any evidence against them."""
        blames = [blame for blame in self._merge_rivals(blames, links) if self._supported(blame)]
        return [blame for blame in blames if not _crosses_leaning(blame, leaning)]

    def _merge_rivals(self, blames: list[Blame], links: Links) -> list[Blame]:
        """Replace two rival points by the link they share; drop points that share none.

        A point whose acknowledgements may cross another supported blame belongs to that blame.
        """
        others = [blame for blame in blames if blame.component.kind != "path"]
        supported = [blame for blame in others if self._supported(blame)]
        points = [
            blame
            for blame in blames
            if blame not in others and not any(self._delayed_by(blame, other) for other in supported)
        ]
        if len(points) < _RIVALS:
            return [blame for blame in blames if blame in others or blame in points]
        common = shared_links(points, links, self._return_links) if self._at_once(points) else None
        return others + ([common] if common else [])

    def _delayed_by(self, point: Blame, other: Blame) -> bool:
        """Whether a point's acknowledgements may cross a link that is, or may be, to blame since the same moment."""
        hops = {one.name for one in other.suspects if one.kind == "link"}
        back = frozenset[str]().union(*map(self._return_links, point.cells)) if hops else hops
        return not hops.isdisjoint(back) and self._at_once((point, other))

    def _at_once(self, blames: Iterable[Blame]) -> bool:
        onsets_s = [self._weights.onset_s(blame) for blame in blames]
        return max(onsets_s) - min(onsets_s) <= _AT_ONCE_SPANS * self._span_s

    def _supported(self, blame: Blame) -> bool:
        """Whether the evidence against a component as a whole is enough.

        A cell or a path also needs a history: without one it may just be a longer path.
        """
        cells = [weight.of_enough for weight in self._weights.of(blame)]
        if not all(self._knows(cell) for cell in blame.cells):
            return len(cells) >= _WHOLE_CELLS and statistics.median(cells) >= ENOUGH
        if blame.component.kind == "path":
            return min(cells) >= ENOUGH
        whole = blame.component.kind == "nic" and not blame.component.side
        parts = [Component("nic", blame.component.name, side) for side in ("tx", "rx")] if whole else [blame.component]
        as_a_whole = [self._slices[part] for part in parts if part in self._slices]
        # A side that is a single cell, as in a ring, has no evidence but that cell's.
        return (max(as_a_whole) if as_a_whole else min(cells)) >= ENOUGH


def _crosses_leaning(blame: Blame, leaning: Collection[Cell]) -> bool:
    """Whether other cells of a point's row or column lean too: the point is then only where they meet most."""
    if len(blame.cells) != 1:
        return False
    (point,) = blame.cells
    return any((cell[0] == point[0]) != (cell[1] == point[1]) for cell in leaning)


class SpanLearner:
    """Holds the latest spans back from the baselines until later spans have shown that they were healthy."""

    def __init__(self, baseline: DelayBaseline, utilisation: NicUtilisation) -> None:
        self._baseline = baseline
        self._utilisation = utilisation
        self._unsure: deque[CellValues] = deque()

    def learn(self, cells: CellValues, doubted: set[Cell], links: Links) -> None:
        """Add a span (seconds per byte) without its `doubted` cells; learn the oldest, at once while few are known."""
        self._unsure.append(cells.pick(~cells.among(doubted)))
        self.forget(doubted)
        while len(self._unsure) > UNSURE_SPANS or (self._unsure and not self._baseline.settled()):
            clean = self._unsure.popleft()
            self._baseline.learn(clean, links)
            self._utilisation.learn(clean)

    def forget(self, cells: set[Cell]) -> None:
        """Drop what these cells have shown in the spans held back."""
        if cells:
            self._unsure = deque(unsure.pick(~unsure.among(cells)) for unsure in self._unsure)


# Cells that are kept, beside twice as many as there are connections.
_CELLS_KEPT = 4096


class NetworkSlownessDetector:
    """Follows one job's delay matrix, on a `fabric` with other jobs."""

    def __init__(self, view: JobView, clocks: HostClocks, fabric: SharedFabric) -> None:
        self._view = view
        self._clocks = clocks
        self._fabric = fabric
        self._index = CellIndex()
        self._matrix = DelayMatrix(self._index)
        self._baseline = DelayBaseline(self._index)
        self._evidence = MatrixEvidence(self._baseline.cell_chance, self._baseline.side_chance)
        self._utilisation = NicUtilisation(self._index)
        self._learner = SpanLearner(self._baseline, self._utilisation)
        self._losses = PacketLossDetector()
        self._ack_losses = AckLossDetector(self._baseline.cell_chance)
        self._benign = BenignExplanations(view, fabric, self._index)
        self._congestion = CongestionDetector(view, clocks, fabric)
        self.slowdowns: list[BenignSlowdown] = []
        self._missing = MissingLinkDetector()
        self._one_way = OneWayDelays(view.pairs)
        self.gate = DiagnosisGate(self._one_way)
        self._newest: Floats = np.empty(0)
        self._opened_s: float | None = None
        self._spans = 0
        # The newest span that was judged, and what was blamed in it.
        self._judged: Judged | None = None
        self._blamed: list[Blame] = []

    @property
    def cells(self) -> dict[Cell, float]:
        """The newest delay matrix, seconds per byte."""
        rows = np.flatnonzero(~np.isnan(self._newest))
        return dict(CellValues(self._index, rows, self._newest[rows]))

    @property
    def has_baseline(self) -> bool:
        """Whether there is enough healthy history of every cell of the newest delay matrix for faults to stand out."""
        return self._baseline.settled() and all(map(self._baseline.knows, self.cells))

    def poll_benign(self) -> list[BenignSlowdown]:
        """Return what was explained since the last call."""
        slowdowns, self.slowdowns = self.slowdowns, []
        return slowdowns

    def evidence(self) -> SpanEvidence | None:
        """What the newest span that was judged shows; None before the first."""
        if self._judged is None:
            return None
        return SpanEvidence(
            self._view, self._judged._replace(blames=tuple(self._blamed)), self._evidence.slices(), self._utilisation,
            self._benign, self._congestion, self._one_way, self._losses.counted(), self._fabric.missing,
        )  # fmt: skip

    def ingest_delays(self, now_s: float) -> None:
        """Add the newest one-way delays, whether or not they will be needed."""
        self._one_way.add(self._view.conns.take_new(), self._view.arrivals.take_new(), now_s)

    def closes_span(self, now_s: float, span_s: float) -> bool:
        """Whether the open span has lasted `span_s`; true before the first."""
        return self._opened_s is None or now_s - self._opened_s >= span_s - EARLY_S

    def forget(self, comms: Collection[str]) -> None:
        """Forget communicators that have ended."""
        self._one_way.forget(comms)

    def ingest_sweep(self, sweep: ProbeSweep) -> list[Finding]:
        """New findings on NICs after all have been probed, except NICs that are named already."""
        findings = slow_nics(sweep, self.gate.nics)
        fresh = self.gate.new_in_sweep(finding.component for finding in findings)
        return [finding for finding in findings if finding.component in fresh]

    def note_named(self, diagnoses: Iterable[Diagnosis], now_s: float) -> None:
        """Note what any stage, or probes, have named: links among it are not reported again as missing or lossy."""
        for one in diagnoses:
            self._missing.note_named(one.suspects, now_s)
            self._losses.note_named(one.suspects, one.cause)

    def evaluate(self, now_s: float, span_s: float, *, disturbed: bool, uneven: bool = False) -> list[Alarmed]:
        """New findings with the time of their alarm, once every `span_s`.

        In a `disturbed` span (a rank has just become late, an operation stood still) transfers collide that otherwise
        do not: it is neither evaluated nor learnt from. While a known straggler makes all spans `uneven`, only NICs
        are evaluated, as wholes; but where each NIC exchanges data with few others, as in a ring, no order changes.
        """
        span = self._measure(now_s, span_s)
        if span is None:
            return []
        missing = self._report_missing_links(span)
        self._spans += bool(span.cells)
        if not span.cells or disturbed or self._spans <= WARM_UP_SPANS:
            return missing
        self._keep_newest(span.cells)
        departures = self._baseline.departures(span.cells)
        self._judged, self._blamed = Judged(span, departures), []
        lost, suspected = self._find_losses(span, departures)
        if uneven and self._utilisation.evaluates(span.cells):
            return missing + lost + self._evaluate_uneven(span)
        weights, without_history = self._weigh(span, departures)
        self._judged = self._judged._replace(weights=weights)
        self._learn(span, weights, without_history.keys() | suspected)
        blames, lacking = self._explain(self._localise(weights), weights, span)
        blames = self._select(blames, weights, suspected, span)
        return missing + lost + lacking + self._name(blames, weights, suspected, departures, span)

    def _measure(self, now_s: float, span_s: float) -> Span | None:
        """Close the span if it has lasted `span_s`, and note the traffic that moved or arrived in it."""
        self._matrix.add(self._view.conns)
        if self._opened_s is None:
            self._opened_s = now_s
        if not self.closes_span(now_s, span_s):
            return None
        opened_s, self._opened_s = self._opened_s, now_s
        cells, sizes, rerouted, arrived = self._matrix.close_span()
        if len(self._index) > _CELLS_KEPT + 2 * len(self._view.conns):
            self._forget_unused()
        links = self._view.links()
        self._benign.add_span(opened_s, now_s, rerouted, arrived, links)
        self._congestion.add_span(opened_s, now_s, cells, sizes, links)
        return Span(cells, opened_s, now_s, links)

    def _forget_unused(self) -> None:
        """Forget cells that connections have left for good: source ports change with every connection."""
        rows = self._matrix.unused()
        self._newest[rows[rows < len(self._newest)]] = np.nan
        self._matrix.forget(rows)
        self._baseline.remove(rows)
        self._evidence.forget(self._index.forget(rows))

    def _report_missing_links(self, span: Span) -> list[Alarmed]:
        """Findings on links that the job's paths crossed and that are missing for longer than a benign stall."""
        self._missing.update(self._fabric.missing, span.links)
        findings = self._missing.lasting(span.closed_s, benign_stall_s(self._view.period_s()))
        return [(finding, span.closed_s) for finding in findings]

    def _keep_newest(self, cells: CellValues) -> None:
        self._newest = np.concatenate([self._newest, np.full(len(self._index.cells) - len(self._newest), np.nan)])
        self._newest[cells.rows] = cells.figures

    def _find_losses(self, span: Span, departures: CellValues) -> tuple[list[Alarmed], set[Cell]]:
        """Findings on what loses packets, each once until it heals; the cells that losses may have made slow."""
        counts = nic_loss_counts(self._view, self._clocks, span.opened_s)
        current = self._matrix.current() if counts else ()
        waiting = self._waiting(span.cells) if counts else {}
        self._losses.add(departures, self._baseline.high(), counts, span.opened_s, current, waiting)
        self._ack_losses.add(departures, self._losses.unanswered(), span.opened_s)
        suspected = self._losses.concerned()
        if not (suspected or self._ack_losses):
            return [], suspected
        losses = self._losses.find(self._matrix.current(), self._view.suspect_links)
        losses = losses or self._ack_losses.find(self._view.return_links)
        fresh = self.gate.note_new(loss.blame.component for loss in losses)
        lost = [(loss_finding(loss), span.closed_s) for loss in losses if loss.blame.component in fresh]
        return lost, suspected

    def _waiting(self, measured: CellValues) -> dict[Cell, float]:
        """How far cells that were not measured depart at least, by their transfers in flight (log ratio)."""
        least = in_flight_costs(self._view, self._clocks, self._matrix.message_bytes())
        waiting = {cell: cost for cell, cost in least.items() if cell not in measured}
        departures = self._baseline.departures(self._index.values_of({**measured, **waiting}))
        return {cell: value for cell, value in departures.items() if cell in waiting}

    def _evaluate_uneven(self, span: Span) -> list[Alarmed]:
        """Evaluate NICs as wholes: with another order of transfers the cells' past in even spans does not apply."""
        self._evidence.clear()
        return self.gate.name(
            self._utilisation.evaluate_uneven(span.cells, span.opened_s, span.links), span.cells, span.closed_s
        )

    def _weigh(self, span: Span, departures: CellValues) -> tuple[Weights, dict[Cell, float]]:
        """The evidence against cells; how far those without history depart from their peers (log ratio)."""
        if not self._baseline.settled():
            # Few spans make no floor: a cell above it from the first on would stay above it for good.
            departures = departures.pick(np.zeros(len(departures), np.bool_))
        without_history = self._baseline.without_history(span.cells)
        weights = self._evidence.add(departures, without_history, span.opened_s, span.links)
        self._benign.note_judged(span.cells, span.closed_s)
        return weights, without_history

    def _learn(self, span: Span, weights: Weights, suspected: set[Cell]) -> None:
        doubted = {cell for cell, weight in weights.cells.items() if weight.of_enough >= CLEAN} | suspected
        self._learner.learn(span.cells, doubted, span.links)

    def _localise(self, weights: Weights) -> list[Blame]:
        """The components to blame; of cells no longer in use nothing can be said."""
        leaning = weights.above(LEANING)
        if not leaning:
            return []
        current = self._matrix.current()
        known = {**dict.fromkeys(self._baseline.known(), 0.0), **leaning}
        excess = {cell: value for cell, value in known.items() if cell in current}
        return localise(excess, links=self._view.suspect_links(leaning))

    def _explain(self, blames: list[Blame], weights: Weights, span: Span) -> tuple[list[Blame], list[Alarmed]]:
        """The blames without a benign explanation; findings on the missing links that explain others.

        The costs of explained cells are learnt again, except where congestion explains them.
        """
        blames = self._without_congestion(blames, weights, span)
        explained, lacking = self._benign.explain(blames, weights, span.links)
        cells = {cell for blame in explained for cell in blame.cells}
        for cell in cells:
            self._baseline.forget(cell)
        self._evidence.forget(cells)
        self._learner.forget(cells)
        onset_s = min((weights.onset_s(blame) for blame in lacking), default=span.closed_s)
        findings = self._missing.explaining(lacking, onset_s)
        return [blame for blame in blames if blame not in explained], [(finding, span.closed_s) for finding in findings]

    def _without_congestion(self, blames: list[Blame], weights: Weights, span: Span) -> list[Blame]:
        """The blames that congestion does not explain. What explained cells cost in health is as it was."""
        left = []
        for blame in blames:
            if weights.spans(blame) >= ALARM_SPANS and self._congested(blame, weights.onset_s(blame), span):
                self._evidence.forget(set(blame.cells))
            else:
                left.append(blame)
        return left

    def _congested(self, blame: Blame, onset_s: float, span: Span) -> bool:
        """Whether congestion explains a blame, which is noted once."""
        assert self._judged is not None
        slowdown = self._congestion.explain(blame, onset_s, span.links, self._judged.departures)
        self._blamed.append(blame)
        if slowdown is not None and self._congestion.is_new(slowdown):
            self.slowdowns.append(slowdown)
        return slowdown is not None

    def _select(self, blames: list[Blame], weights: Weights, suspected: set[Cell], span: Span) -> list[Blame]:
        """The blames that the evidence supports, except those that lost packets may be behind."""
        lasted_s, evidence, knows = span.closed_s - span.opened_s, self._evidence, self._baseline.knows
        selection = BlameSelection(weights, lasted_s, evidence.slices, knows, self._view.return_links)
        blames = selection.select(blames, weights.above(LEANING), span.links)
        return [blame for blame in blames if suspected.isdisjoint(blame.cells)]

    def _name(
        self, blames: list[Blame], weights: Weights, suspected: set[Cell], departures: CellValues, span: Span
    ) -> list[Alarmed]:
        """New findings; of a busy NIC more is known than what its cells show one by one."""
        busy = self._busy_nics(blames, suspected, departures, span)
        nics = {case.blame.component.name for case in busy}
        blames = [blame for blame in blames if any(nics.isdisjoint(cell) for cell in blame.cells)]
        self.gate.heal([*blames, *(case.blame for case in busy)])
        cases = [
            NamingCase(blame, weights.onset_s(blame), weights.least(blame), weights.spans(blame)) for blame in blames
        ]
        return self.gate.name([*busy, *cases], span.cells, span.closed_s)

    def _busy_nics(
        self, blames: list[Blame], suspected: set[Cell], departures: CellValues, span: Span
    ) -> list[NamingCase]:
        """NICs that are busy longer with what crosses no slow link, unless another job has just arrived there."""
        slow = self.gate.links | {blame.component.name for blame in blames if blame.component.kind == "link"}
        cells = span.cells
        if slow:
            cells = cells.pick(~cells.among(self._benign.blocked_cells(cells, slow, span.links)))
        cases = []
        for case in self._utilisation.evaluate(cells, departures, span.opened_s, span.links):
            if self._congested(case.blame, case.onset_s, span):
                self._utilisation.excuse(case.blame.component.name)
            else:
                cases.append(case)
        if any(self._benign.met_other_job(case.blame, case.onset_s, span.links) for case in cases):
            self._utilisation.forget()
            return []
        return [case for case in cases if suspected.isdisjoint(case.blame.cells)]
