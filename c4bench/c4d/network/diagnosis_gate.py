"""When blames last long enough to alarm and to name a component, each once until it heals."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from c4bench.attribution.weigh import Blame, Cell
from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Alarmed, Finding
from c4bench.c4d.network.one_way_delays import OneWayDelays
from c4bench.c4d.thresholds import ALARM_SPANS, NAME_SPANS, POINT_SPANS
from c4bench.model.diagnosis import Cause, Component, Syndrome


class NamingCase(NamedTuple):
    """A blame, since when (s, master's clock), by how much at least (log ratio), and in how many spans."""

    blame: Blame
    onset_s: float
    least: float
    spans: float


class DiagnosisGate:
    """Follows the cases of one job, span by span; one-way delays decide between the sides of a NIC."""

    def __init__(self, oneway: OneWayDelays) -> None:
        self._oneway = oneway
        self._alarmed_s: float | None = None
        self._before: set[Component] = set()
        # Named components, and for how many spans nothing has been to blame.
        self._standing: dict[Component, int] = {}
        # The components that the last sweep found slow.
        self._in_last_sweep: set[Component] = set()

    @property
    def standing(self) -> set[Component]:
        """The components that are named."""
        return set(self._standing)

    @property
    def nics(self) -> set[str]:
        """The NICs that are named, by whichever side."""
        return self._named("nic")

    @property
    def links(self) -> set[str]:
        """The links that are named."""
        return self._named("link")

    def _named(self, kind: str) -> set[str]:
        return {component.name for component in self._standing if component.kind == kind}

    def name(self, cases: list[NamingCase], cells: Mapping[Cell, float], now_s: float) -> list[Alarmed]:
        """New verdicts with the time of their alarm; `cells` are the newest costs, seconds per byte."""
        lasting = [case for case in cases if case.spans >= ALARM_SPANS]
        self._alarmed_s = (self._alarmed_s or now_s) if lasting else None
        before, self._before = self._before, {case.blame.component for case in lasting}
        # Where many slow at once and recover, one is last: a point must have been a point in the span before too.
        steady = [case for case in lasting if not _point(case.blame) or case.blame.component in before]
        seen = [case for case in steady if cells.keys() & set(case.blame.cells)]
        sure = [case for case in seen if case.spans >= _spans_to_name(case.blame)]
        fresh = [case for case in sure if not self._known(case.blame.component)]
        self._set_standing(case.blame.component for case in fresh)
        return [(self._finding(case, cells), self._alarmed_s or now_s) for case in fresh]

    def note_new(self, components: Iterable[Component]) -> set[Component]:
        """Note components that other evidence shows to be slow; return those not named before."""
        named = set(components)
        fresh = named - self._standing.keys()
        self._set_standing(named)
        return fresh

    def new_in_sweep(self, components: Iterable[Component]) -> set[Component]:
        """Note components that a sweep shows to be slow, until the next sweep; return those not known before."""
        named = set(components)
        fresh = {component for component in named if not self._known(component)}
        self._in_last_sweep = named
        return fresh

    def heal(self, blames: list[Blame]) -> None:
        """Heal components after as many clean spans as it took to name them."""
        clean = {component: 0 if blames else spans + 1 for component, spans in self._standing.items()}
        self._standing = {component: spans for component, spans in clean.items() if spans < NAME_SPANS}

    def _set_standing(self, components: Iterable[Component]) -> None:
        self._standing.update(dict.fromkeys(components, 0))

    def _known(self, component: Component) -> bool:
        """Whether it has been named, or a NIC by another of its sides."""
        known = {(one.kind, one.name) for one in (*self._standing, *self._in_last_sweep)}
        return (component.kind, component.name) in known

    def _finding(self, case: NamingCase, cells: Mapping[Cell, float]) -> Finding:
        blame, onset_s, least, _ = case
        worst = max(blame.cells, key=lambda cell: cells.get(cell, 0.0))
        evidence = [f"{len(blame.cells)} cells slow, worst {worst[0]}>{worst[1]}: {cells[worst]:.3g} s/byte"]
        component = self._sided(blame.component, onset_s)
        if component != blame.component:
            evidence.append(f"one-way delays have grown on its {component.side} side only")
        if blame.alternatives:
            evidence.append("this traffic cannot tell it from " + " or ".join(map(str, blame.alternatives)))
        return Finding(
            Syndrome.COMMUNICATION_SLOW,
            Cause.TRANSFER_SLOW,
            component,
            onset_s,
            confidence(Cause.TRANSFER_SLOW, component.kind, len(blame.alternatives)),
            tuple(evidence),
            f"a probe at full rate across {component}",
            {
                "slow_cells": float(len(blame.cells)),
                "worst_s_per_byte": cells[worst],
                "times_as_long": math.exp(least),
            },
            blame.alternatives,
        )

    def _sided(self, component: Component, onset_s: float) -> Component:
        """The side of a NIC that one-way delays accuse: round trips, as in the matrix, show both sides slow."""
        side = self._oneway.side(component.name, onset_s) if component.kind == "nic" else ""
        return Component(component.kind, component.name, side) if side else component


def _point(blame: Blame) -> bool:
    """Whether only a path can be to blame; with alternatives it may be a whole NIC, which no schedule slows."""
    return blame.component.kind == "path" and not blame.alternatives


def _spans_to_name(blame: Blame) -> int:
    """The number of spans in which a component must be to blame before it is named."""
    return POINT_SPANS if _point(blame) else NAME_SPANS
