"""Network slowness of one job: each span of its delay matrix passes once through the steps below.

measure -> missing links -> packet loss -> weigh -> learn -> attribute -> explain -> name
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from c4bench.attribution.weigh import Blame, Cell, Links, attribute_cells
from c4bench.c4d.act.cases import Cases
from c4bench.c4d.act.sweep import slow_nics
from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Alarmed, Finding, rank_component
from c4bench.c4d.observe.cell_index import CellIndex, CellValues
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.columns import Floats, Ints
from c4bench.c4d.observe.delay_baseline import DelayBaseline
from c4bench.c4d.observe.delay_matrix import DelayMatrix, in_flight_costs
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.one_way_delays import OneWayDelays
from c4bench.c4d.observe.round_trips import RoundTrips
from c4bench.c4d.observe.shared_fabric import SharedFabric
from c4bench.c4d.signs.added import AddedSigns, JobSpan
from c4bench.c4d.signs.benign_explanations import BenignExplanations, CongestionDetector
from c4bench.c4d.signs.delays import MatrixEvidence, Weights
from c4bench.c4d.signs.missing_links import MissingLinkDetector
from c4bench.c4d.signs.packet_loss import PacketLossDetector, loss_finding, nic_loss_counts
from c4bench.c4d.thresholds import (
    ALARM_SPANS,
    CLEAN,
    EARLY_S,
    ENOUGH,
    LEANING,
    NAME_SPANS,
    POINT_SPANS,
    UNSURE_SPANS,
    WARM_UP_SPANS,
    benign_stall_s,
)
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Cause, Component, Diagnosis, Syndrome
from c4bench.model.recording import ProbeSweep


class Span(NamedTuple):
    """A closed span: its cells (seconds per byte), its bounds (s, master's clock), the links that cells cross."""

    cells: CellValues
    opened_s: float
    closed_s: float
    links: Links


class SpanLearner:
    """Holds the latest spans back from the baseline until later spans have shown that they were healthy."""

    def __init__(self, baseline: DelayBaseline) -> None:
        self._baseline = baseline
        self._unsure: deque[CellValues] = deque()

    def learn(self, cells: CellValues, doubted: set[Cell], links: Links) -> None:
        """Add a span (seconds per byte) without its `doubted` cells; learn the oldest, at once while few are known."""
        self._unsure.append(cells.pick(~cells.among(doubted)))
        self.forget(doubted)
        while len(self._unsure) > UNSURE_SPANS or (self._unsure and not self._baseline.settled()):
            self._baseline.learn(self._unsure.popleft(), links)

    def forget(self, cells: set[Cell]) -> None:
        """Drop what these cells have shown in the spans held back."""
        if cells:
            self._unsure = deque(unsure.pick(~unsure.among(cells)) for unsure in self._unsure)


# Cells that are kept, beside twice as many as there are connections.
_CELLS_KEPT = 4096


class NetworkSlownessDetector:
    """Follows one job's delay matrix, on a `fabric` with other jobs."""

    def __init__(self, view: JobView, clocks: HostClocks, fabric: SharedFabric) -> None:
        self._view, self._clocks, self._fabric = view, clocks, fabric
        self._index = CellIndex()
        self._matrix = DelayMatrix(self._index)
        self._baseline = DelayBaseline(self._index)
        self._evidence = MatrixEvidence(self._baseline.cell_chance, self._baseline.side_chance)
        self._learner = SpanLearner(self._baseline)
        self._losses = PacketLossDetector()
        self._benign = BenignExplanations(view, fabric, self._index)
        self._congestion = CongestionDetector(view, clocks, fabric)
        self.slowdowns: list[BenignSlowdown] = []
        self._missing = MissingLinkDetector()
        self._added = AddedSigns()
        # In how many spans a path alone was to blame for losses.
        self._lossy_paths: Counter[str] = Counter()
        self._one_way = OneWayDelays(view.pairs)
        self._round_trips = RoundTrips(view.conns, self._one_way, self._index)
        self.cases = Cases()
        self._newest: Floats = np.empty(0)
        self._opened_s: float | None = None
        self._spans = 0
        # What was to blame in the newest span.
        self._blamed: set[Component] = set()

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
        findings = slow_nics(sweep, self.cases.of_kind("nic"))
        fresh = self.cases.new_in_sweep(finding.component for finding in findings)
        return [finding for finding in findings if finding.component in fresh]

    def note_named(self, diagnoses: Iterable[Diagnosis], now_s: float) -> None:
        """Note what any stage, or probes, have named: links among it are not reported again as missing or lossy."""
        for one in diagnoses:
            self._missing.note_named(one.suspects, now_s)
            self._losses.note_named(one.suspects, one.cause)

    def refute(self, finding: Finding) -> None:
        """Learn again what the cells behind a finding cost: probes have shown that nothing is wrong."""
        self.cases.drop(finding.component)
        flows = finding.posterior.flows if finding.posterior else ()
        self._learn_again({cell for cell in self._baseline.known() if cell in flows})

    def evaluate(self, now_s: float, span_s: float, *, disturbed: bool, late: bool = False) -> list[Alarmed]:
        """New findings with the time of their alarm, once every `span_s`; `late`: a rank is known to be late.

        In a `disturbed` span (a rank has just become late, an operation stood still) transfers collide that otherwise
        do not: it is neither evaluated nor learnt from.
        """
        span = self._measure(now_s, span_s, late=late or disturbed)
        if span is None:
            return []
        missing = self._report_missing_links(span)
        self._spans += bool(span.cells)
        if not span.cells or disturbed or self._spans <= WARM_UP_SPANS:
            return missing
        self._keep_newest(span.cells)
        departures = self._baseline.departures(span.cells)
        lost, suspected = self._find_losses(span, departures)
        weights = self._weigh(span, departures)
        self._learn(span, weights, suspected)
        blames, lacking = self._explain(self._attribute(weights), weights, departures, span)
        blames = [blame for blame in blames if self._supported(blame, weights)]
        blames = [blame for blame in blames if suspected.isdisjoint(blame.cells)]
        added = self._find_added(span)
        self.cases.heal(clean=not blames and not added)
        return missing + lost + lacking + self._name(blames, weights, span) + self._name_added(added, span)

    def _measure(self, now_s: float, span_s: float, *, late: bool) -> Span | None:
        """Close the span if it has lasted `span_s`, and note the traffic that moved or arrived in it."""
        self._matrix.add(self._view.conns)
        if self._opened_s is None:
            self._opened_s = now_s
        if not self.closes_span(now_s, span_s):
            return None
        opened_s, self._opened_s = self._opened_s, now_s
        cells, sizes, rerouted, arrived = self._matrix.close_span()
        cells, fresh = self._round_trips.costs(cells, opened_s, self._matrix.message_bytes(), late=late)
        self._start_again(fresh)
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
        self._start_again(rows)
        self._round_trips.forget(self._index.forget(rows))

    def _start_again(self, rows: Ints) -> None:
        """Know nothing of what these cells cost: they are used no more, or will be measured in another way."""
        if len(rows):
            self._baseline.remove(rows)
            names = {self._index.cells[row] for row in rows.tolist()}
            self._evidence.forget(names)
            self._learner.forget(names)

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
        current = self._matrix.current() if counts else set[Cell]()
        waiting = self._waiting(span.cells) if counts else {}
        self._losses.add(departures, self._baseline.high(), counts, span.opened_s, current, waiting)
        suspected = self._losses.concerned()
        if not suspected:
            return [], suspected
        losses = self._losses.find(self._matrix.current(), self._view.suspect_links)
        losses = [loss for loss in losses if self._lasts(loss.blame)]
        fresh = [loss for loss in losses if loss.blame.component not in self.cases.standing]
        self.cases.name((loss.blame.component for loss in losses), span.closed_s)
        return [(loss_finding(loss), span.closed_s) for loss in fresh], suspected

    def _lasts(self, loss: Blame) -> bool:
        """Whether a loss lasts long enough to be named: others that cross the same link may lose packets soon."""
        path = loss.component.name if loss.component.kind == "path" else ""
        self._lossy_paths[path] += 1
        return not path or self._lossy_paths[path] >= POINT_SPANS

    def _waiting(self, measured: CellValues) -> dict[Cell, float]:
        """How far cells that were not measured depart at least, by their transfers in flight (log ratio)."""
        least = in_flight_costs(self._view, self._clocks, self._matrix.message_bytes())
        waiting = {cell: cost for cell, cost in least.items() if cell not in measured}
        departures = self._baseline.departures(self._index.values_of({**measured, **waiting}))
        return {cell: value for cell, value in departures.items() if cell in waiting}

    def _weigh(self, span: Span, departures: CellValues) -> Weights:
        """The evidence against cells."""
        if not self._baseline.settled():
            # Few spans make no floor: a cell above it from the first on would stay above it for good.
            departures = departures.pick(np.zeros(len(departures), np.bool_))
        weights = self._evidence.add(departures, span.opened_s, span.links)
        self._benign.note_judged(span.cells, span.closed_s)
        return weights

    def _learn(self, span: Span, weights: Weights, suspected: set[Cell]) -> None:
        doubted = {cell for cell, weight in weights.cells.items() if weight.of_enough >= CLEAN} | suspected
        self._learner.learn(span.cells, doubted, span.links)

    def _attribute(self, weights: Weights) -> list[Blame]:
        """The components to blame; of cells no longer in use nothing can be said."""
        leaning = weights.above(LEANING)
        if not leaning:
            return []
        current = self._matrix.current()
        known = {**dict.fromkeys(self._baseline.known(), 0.0), **leaning}
        excess = {cell: value for cell, value in known.items() if cell in current}
        return attribute_cells(excess, self._view.suspect_links(leaning))

    def _explain(
        self, blames: list[Blame], weights: Weights, departures: Mapping[Cell, float], span: Span
    ) -> tuple[list[Blame], list[Alarmed]]:
        """The blames without a benign explanation; findings on the missing links that explain others.

        The costs of explained cells are learnt again, except where congestion explains them.
        """
        blames = [blame for blame in blames if not self._congested(blame, weights, departures, span)]
        explained, lacking = self._benign.explain(blames, weights, span.links)
        self._learn_again({cell for blame in explained for cell in blame.cells})
        onset_s = min((weights.onset_s(blame) for blame in lacking), default=span.closed_s)
        findings = self._missing.explaining(lacking, onset_s)
        return [blame for blame in blames if blame not in explained], [(finding, span.closed_s) for finding in findings]

    def _learn_again(self, cells: set[Cell]) -> None:
        for cell in cells:
            self._baseline.forget(cell)
        self._evidence.forget(cells)
        self._learner.forget(cells)

    def _congested(self, blame: Blame, weights: Weights, departures: Mapping[Cell, float], span: Span) -> bool:
        """Whether congestion explains a lasting blame, which is noted once. What its cells cost in health stays."""
        if weights.spans(blame) < ALARM_SPANS:
            return False
        slowdown = self._congestion.explain(blame, weights.onset_s(blame), span.links, departures)
        if slowdown is None:
            return False
        self._evidence.forget(set(blame.cells))
        if self._congestion.is_new(slowdown):
            self.slowdowns.append(slowdown)
        return True

    def _supported(self, blame: Blame, weights: Weights) -> bool:
        """Whether the evidence against a component as a whole is enough, and each of its cells has a history."""
        if not all(map(self._baseline.knows, blame.cells)):
            return False
        cells = min(weight.of_enough for weight in weights.of(blame))
        if blame.component.kind == "path":
            return cells >= ENOUGH
        whole = blame.component.kind == "nic" and not blame.component.side
        parts = [Component("nic", blame.component.name, side) for side in ("tx", "rx")] if whole else [blame.component]
        slices = self._evidence.slices()
        as_a_whole = [slices[part] for part in parts if part in slices]
        # A side that is a single cell, as in a ring, has no evidence but that cell's.
        return max(as_a_whole, default=cells) >= ENOUGH

    def _find_added(self, span: Span) -> list[Finding]:
        """What signs of others find."""
        if not self._added:
            return []
        nics = {name: nic.newest for name, nic in self._view.devices.items() if nic.newest}
        return self._added.find(JobSpan(span.opened_s, span.closed_s, dict(span.cells), span.links, nics))

    def _name_added(self, findings: Iterable[Finding], span: Span) -> list[Alarmed]:
        fresh = [finding for finding in findings if not self.cases.knows(finding.component)]
        self.cases.name((finding.component for finding in fresh), span.closed_s)
        return [(finding, span.closed_s) for finding in fresh]

    def _name(self, blames: list[Blame], weights: Weights, span: Span) -> list[Alarmed]:
        """New findings with the time of their alarm."""
        # Where many are slow at once and recover, one is last: it must have been alone in the span before too.
        before, self._blamed = self._blamed, {blame.component for blame in blames}
        steady = [blame for blame in blames if blame.component.kind != "path" or blame.component in before]
        lasting = [blame for blame in steady if weights.spans(blame) >= ALARM_SPANS]
        self.cases.alarm([blame.component for blame in lasting], span.closed_s)
        sure = [blame for blame in lasting if weights.spans(blame) >= _spans_to_name(blame)]
        seen = [blame for blame in sure if not span.cells.keys().isdisjoint(blame.cells)]
        fresh = [blame for blame in seen if not self.cases.knows(blame.component)]
        found = [(blame, self.cases.alarmed_s(blame.component, span.closed_s)) for blame in fresh]
        self.cases.name((blame.component for blame in fresh), span.closed_s)
        return [(self._finding(blame, weights, span.cells), alarmed_s) for blame, alarmed_s in found]

    def _finding(self, blame: Blame, weights: Weights, cells: Mapping[Cell, float]) -> Finding:
        onset_s, least = weights.onset_s(blame), weights.least(blame)
        worst = max(blame.cells, key=lambda cell: cells.get(cell, 0.0))
        evidence = [f"{len(blame.cells)} cells slow, worst {worst[0]}>{worst[1]}: {cells[worst]:.3g} s/byte"]
        component = self._sided(blame.component, onset_s)
        if component != blame.component:
            evidence.append(f"one-way delays have grown on its {component.side} side only")
        others = (*blame.alternatives, *self._receivers(blame))
        if others:
            evidence.append("this traffic cannot tell it from " + " or ".join(map(str, others)))
        return Finding(
            Syndrome.COMMUNICATION_SLOW,
            Cause.TRANSFER_SLOW,
            component,
            onset_s,
            confidence(share=blame.posterior.share),
            tuple(evidence),
            f"a probe at full rate across {component}",
            {
                "slow_cells": float(len(blame.cells)),
                "worst_s_per_byte": cells[worst],
                "times_as_long": math.exp(least),
            },
            others,
            posterior=blame.posterior,
        )

    def _receivers(self, blame: Blame) -> list[Component]:
        """The ranks that may only look late for what comes by the cells of a blame."""
        users, nics = self._view.users(), self._round_trips.receivers(blame.cells)
        ranks = {rank for nic in nics for rank in users.get(nic, ())}
        return [rank_component(self._view.job, rank) for rank in sorted(ranks)]

    def _sided(self, component: Component, onset_s: float) -> Component:
        """The side of a NIC that one-way delays accuse: round trips, as in the matrix, show both sides slow."""
        side = self._one_way.side(component.name, onset_s) if component.kind == "nic" else ""
        return Component(component.kind, component.name, side) if side else component


def _spans_to_name(blame: Blame) -> int:
    """The number of spans in which a component must be to blame before it is named.

    One cell whose NICs send others well may be a chance meeting of two schedules.
    """
    alone = len({cell[:2] for cell in blame.cells}) == 1
    return POINT_SPANS if alone and all(one.kind != "nic" for one in blame.suspects) else NAME_SPANS
