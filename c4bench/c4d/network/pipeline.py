"""Network slowness of one job: each span of its delay matrix passes once through the steps below.

measure -> missing links -> packet loss -> weigh -> learn -> localise -> explain -> select -> name
"""

from collections.abc import Collection, Iterable

import numpy as np

from c4bench.attribution.localise import Blame, Cell, localise
from c4bench.c4d.columns import Floats
from c4bench.c4d.diagnosis import Alarmed, Finding
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.c4d.network.ack_losses import AckLossDetector
from c4bench.c4d.network.benign_explanations import BenignExplanations
from c4bench.c4d.network.cell_index import CellIndex, CellValues
from c4bench.c4d.network.congestion import CongestionDetector
from c4bench.c4d.network.delay_baseline import DelayBaseline
from c4bench.c4d.network.delay_matrix import DelayMatrix, in_flight_costs
from c4bench.c4d.network.diagnosis_gate import Case, DiagnosisGate
from c4bench.c4d.network.evidence import MatrixEvidence, Weights
from c4bench.c4d.network.learning import SpanLearner
from c4bench.c4d.network.loss_counts import nic_loss_counts
from c4bench.c4d.network.missing_links import MissingLinkDetector
from c4bench.c4d.network.nic_utilisation import NicUtilisation
from c4bench.c4d.network.one_way_delays import OneWayDelays
from c4bench.c4d.network.packet_loss import PacketLossDetector, loss_finding
from c4bench.c4d.network.selection import BlameSelection
from c4bench.c4d.network.span_evidence import Judged, Span, SpanEvidence
from c4bench.c4d.network.thresholds import ALARM_SPANS, CLEAN, EARLY_S, LEANING, WARM_UP_SPANS
from c4bench.c4d.probing.sweep import slow_nics
from c4bench.c4d.thresholds import benign_stall_s
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.recording import ProbeSweep

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
        cases = [Case(blame, weights.onset_s(blame), weights.least(blame), weights.spans(blame)) for blame in blames]
        return self.gate.name([*busy, *cases], span.cells, span.closed_s)

    def _busy_nics(self, blames: list[Blame], suspected: set[Cell], departures: CellValues, span: Span) -> list[Case]:
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
