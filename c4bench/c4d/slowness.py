"""Communication slowness: which component makes transfers longer per byte than they were, span after span."""

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from c4bench.c4d.localise import Blame, Cell, localise
from c4bench.c4d.matrix import Baseline, DelayMatrix
from c4bench.c4d.oneway import OneWay
from c4bench.c4d.probes import crossing, plan_probes
from c4bench.c4d.steady import Steady
from c4bench.c4d.thresholds import ALARM_SPANS, NAME_SPANS, POINT_SPANS, STEADY_SPANS, WARM_UP_SPANS
from c4bench.c4d.verdict import Verdict
from c4bench.model.diagnosis import Cause, Component, ProbeFlow, Syndrome
from c4bench.model.telemetry import ArrivalRecord, ConnRecord

# The bar on the scale of `Baseline.excess`.
_SLOW = 1.0
_WHOLE_CELLS = 3
# Well below the bar: such a cell still teaches what is normal.
_CLEAN = 0.5


class Suspicion(msgspec.Struct):
    """A run of spans with something slow: since when, what was measured, how often each component was to blame."""

    onset_s: float
    cells: dict[Cell, float] = {}
    alarmed_s: float | None = None
    spans: int = 0
    blamed: dict[Component, int] = {}


class SlowNetwork:
    """Follows one job's delay matrix."""

    def __init__(self) -> None:
        self.cells: dict[Cell, float] = {}
        self._matrix = DelayMatrix()
        self._baseline = Baseline()
        self._opened_s: float | None = None
        self._spans = 0
        self._suspicion: Suspicion | None = None
        self._standing: dict[Component, int] = {}
        self._oneway = OneWay()
        self._steady = Steady()
        self._unsure: deque[dict[Cell, float]] = deque()

    def follow(self, conns: Iterable[ConnRecord], arrivals: Iterable[ArrivalRecord], now_s: float) -> None:
        """Take in the newest one-way delays, whether or not they will be needed."""
        self._oneway.add(conns, arrivals, now_s)

    @property
    def alarmed_s(self) -> float | None:
        """When this became sure that something is slow; None while nothing is."""
        return self._suspicion.alarmed_s if self._suspicion else None

    def judge(
        self, conns: Iterable[ConnRecord], now_s: float, span_s: float, *, disturbed: bool, uneven: bool = False
    ) -> list[tuple[Verdict, float]]:
        """New verdicts with the time of their alarm, once every `span_s`.

        A `disturbed` span (a rank has just become late, an operation stood still) makes transfers collide that
        otherwise do not: it is neither judged nor learned from. While a known late rank makes all spans `uneven`, only
        whole NICs are judged.
        """
        self._matrix.add(conns)
        if self._opened_s is None:
            self._opened_s = now_s
        if now_s - self._opened_s < span_s:
            return []
        opened_s, self._opened_s = self._opened_s, now_s
        cells = self._matrix.close()
        self._spans += bool(cells)
        if not cells or disturbed or self._spans <= WARM_UP_SPANS:
            return []
        self.cells = {**self.cells, **cells}
        return self._judge_span(cells, opened_s, now_s, uneven=uneven)

    def _judge_span(
        self, fresh: Mapping[Cell, float], opened_s: float, now_s: float, *, uneven: bool
    ) -> list[tuple[Verdict, float]]:
        """Judge the newest value of every cell measured since something became slow: a span may hold half a job."""
        cells = {**self._suspicion.cells, **fresh} if self._suspicion else dict(fresh)
        departures = self._baseline.departures(fresh)
        self._steady.add(departures, opened_s)
        excess = self._baseline.excess(cells, departures if len(cells) == len(fresh) else None)
        lasting = {cell: least / self._baseline.steady_bar(cell) for cell, least in self._steady.lasting().items()}
        clean = (
            cell for cell in fresh if not uneven and excess.get(cell, 0.0) < _CLEAN and lasting.get(cell, 0.0) < _CLEAN
        )
        self._learn({cell: fresh[cell] for cell in clean}, lasting)
        slow = any(value > _SLOW for value in excess.values())
        if not (slow or uneven) and any(value > _SLOW for value in lasting.values()):
            return self._judge_lasting(dict.fromkeys(self._baseline.known(), 0.0) | lasting, now_s)
        blames = [blame for blame in _unrivalled(localise(excess, _SLOW)) if self._founded(blame, cells)]
        blames = [b for b in blames if (_whole(b) if uneven else not _with_mates(b, lasting))]
        self._heal(slow=slow)
        if not slow:
            self._suspicion = None
            return []
        suspicion = self._suspicion = self._suspicion or Suspicion(opened_s)
        suspicion.cells = cells
        suspicion.spans += 1
        if suspicion.alarmed_s is None and suspicion.spans >= ALARM_SPANS:
            suspicion.alarmed_s = now_s
        return self._name(suspicion, [blame for blame in blames if fresh.keys() & set(blame.cells)], now_s)

    def _learn(self, clean: dict[Cell, float], lasting: Mapping[Cell, float]) -> None:
        """Learn from a span once it has shown not to open a lasting departure; at once from the first few."""
        self._unsure.append(clean)
        if any(value > _SLOW for value in lasting.values()):
            self._unsure.clear()
        while len(self._unsure) > STEADY_SPANS or (self._unsure and not self._baseline.settled()):
            self._baseline.learn(self._unsure.popleft())

    def _judge_lasting(self, lasting: Mapping[Cell, float], now_s: float) -> list[tuple[Verdict, float]]:
        """Name what has been a little slow for long: the spans that show it have all passed already."""
        self._heal(slow=True)
        onset_s = self._steady.onset_s(cell for cell, value in lasting.items() if value > _SLOW)
        suspicion = self._suspicion = self._suspicion or Suspicion(onset_s, alarmed_s=now_s)
        suspicion.cells = {cell: self.cells[cell] for cell in lasting if cell in self.cells}
        blames = [blame for blame in localise(lasting, _SLOW) if self._founded(blame, suspicion.cells)]
        suspicion.blamed = {blame.component: POINT_SPANS for blame in blames}
        return self._name(suspicion, blames, now_s)

    def _founded(self, blame: Blame, cells: Mapping[Cell, float]) -> bool:
        """Whether all that could refute the blame has been measured since.

        A point or a pair without a history of its own may just be a longer way; a whole row or column is not.
        """
        if len(blame.cells) < 3 and not all(self._baseline.knows(cell) for cell in blame.cells):
            return False
        rows = {cell[0] for cell in blame.cells} if blame.component.side != "rx" else set()
        columns = {cell[1] for cell in blame.cells} if blame.component.side != "tx" else set()
        return all(cell in cells for cell in self._baseline.known() if cell[0] in rows or cell[1] in columns)

    def _name(self, suspicion: Suspicion, blames: list[Blame], now_s: float) -> list[tuple[Verdict, float]]:
        if blames:
            suspicion.blamed = {b.component: suspicion.blamed.get(b.component, 0) + 1 for b in blames}
        sure = [blame for blame in blames if suspicion.blamed[blame.component] >= _spans_to_name(blame)]
        fresh = [blame for blame in sure if blame.component not in self._standing]
        self._standing.update(dict.fromkeys((blame.component for blame in fresh), 0))
        alarmed_s = suspicion.alarmed_s or now_s
        return [(self._verdict(blame, suspicion.cells, suspicion.onset_s), alarmed_s) for blame in fresh]

    def _heal(self, *, slow: bool) -> None:
        """A component is well again after as many clean spans as it took to name it."""
        clean = {component: 0 if slow else spans + 1 for component, spans in self._standing.items()}
        self._standing = {component: spans for component, spans in clean.items() if spans < NAME_SPANS}

    def _verdict(self, blame: Blame, cells: Mapping[Cell, float], onset_s: float) -> Verdict:
        worst = max(blame.cells, key=lambda cell: cells[cell])
        evidence = [f"{len(blame.cells)} cells slow, worst {worst[0]}>{worst[1]}: {cells[worst]:.3g} s/byte"]
        component = self._sided(blame.component, onset_s)
        if component != blame.component:
            evidence.append(f"one-way delays have grown on its {component.side} side only")
        if blame.alternatives:
            evidence.append("this traffic cannot tell it from " + " or ".join(map(str, blame.alternatives)))
        return Verdict(
            Syndrome.COMMUNICATION_SLOW,
            Cause.TRANSFER_SLOW,
            component,
            onset_s,
            0.5 if blame.alternatives else 0.9,
            tuple(evidence),
            f"a probe at full rate across {component}",
            {"slow_cells": float(len(blame.cells)), "worst_s_per_byte": cells[worst]},
            blame.alternatives,
            probes=self._probes((component, *blame.alternatives)),
        )

    def _probes(self, suspects: tuple[Component, ...]) -> tuple[ProbeFlow, ...]:
        """What would tell the suspects apart; the NICs' rate is the best that any transfer has reached."""
        if len(suspects) < 2:
            return ()
        nics = {nic for cell in self.cells for nic in cell}
        rate_bps = max((8 / value for value in self.cells.values() if value > 0), default=0.0)
        return plan_probes(suspects, nics, crossing(), rate_bps).flows

    def _sided(self, component: Component, onset_s: float) -> Component:
        """The side of a NIC that one-way delays accuse: round trips, which the matrix holds, show both sides slow."""
        side = self._oneway.side(component.name, onset_s) if component.kind == "nic" else ""
        return Component(component.kind, component.name, side) if side else component


def _spans_to_name(blame: Blame) -> int:
    """How often a component must be to blame; with alternatives a point may be a whole NIC, and no schedule's doing."""
    return POINT_SPANS if blame.component.kind == "path" and not blame.alternatives else NAME_SPANS


def _with_mates(blame: Blame, lasting: Mapping[Cell, float]) -> bool:
    """Whether a point's row or column shows lasting slowness too: then the point is where that meets most."""
    if len(blame.cells) != 1:
        return False
    ((source, destination),) = blame.cells
    mates = (value for (a, b), value in lasting.items() if (a == source) != (b == destination))
    return any(value > _SLOW for value in mates)


def _whole(blame: Blame) -> bool:
    """Whether a blame rests on a whole row or column, which no late rank's schedule makes slow."""
    return blame.component.kind == "nic" and len(blame.cells) >= _WHOLE_CELLS


def _unrivalled(blames: list[Blame]) -> list[Blame]:
    """Without several comparable points: a skewed schedule makes such patterns where transfers run into each other."""
    points = [blame for blame in blames if blame.component.kind == "path"]
    return blames if len(points) < 2 else [blame for blame in blames if blame not in points]
