"""Benign explanations of slow paths: traffic that arrived, links that are missing, other links that are to blame.

Congestion: transfers are slow because a link that they cross carries all that it can.

Two things must be seen. Packets came marked (ECN, RFC 3168) at every receiver of the slow transfers that counts marks:
they stood in a queue. And the link carries its rate, with what the slow transfers carry and what other jobs carry
beside them. A link that has become slow marks as well, but what crosses it adds up to less than its rate.

The sum is a lower bound of what the link carries while the slow transfers use it, if other jobs send as much then as
on average. Of the job itself it counts the rate of one transfer or the mean of all, whichever is more.

Acknowledgements wait in the same queues as data: transfers are slow as well if theirs cross a full link.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from c4bench.attribution.weigh import Blame, Cell, Links
from c4bench.c4d.observe.cell_index import CellIndex, CellValues
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.columns import Ints
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.shared_fabric import SharedFabric, arrival
from c4bench.c4d.signs.delays import Weights
from c4bench.c4d.signs.missing_links import missing_links_behind
from c4bench.c4d.thresholds import ALARM_SPANS, APART_SPANS, BEYOND_SHARING, KEPT, NAME_SPANS, SLIGHT, SLIGHT_RATIO
from c4bench.model.benign import Benign, BenignSlowdown
from c4bench.model.fabric import MissingLink
from c4bench.model.recording import TrafficCarried
from c4bench.units import payload_bound


class _Reroute(NamedTuple):
    """The cells that connections moved to in a span."""

    opened_s: float
    closed_s: float
    cells: frozenset[Cell]


class BenignExplanations:
    """The explanations for one job, span by span; `fabric` has the traffic of other jobs, `index` the job's cells."""

    def __init__(self, view: JobView, fabric: SharedFabric, index: CellIndex) -> None:
        self._view = view
        self._fabric = fabric
        self._index = index
        self._lasted_s = 0.0
        self._reroutes: deque[_Reroute] = deque(maxlen=KEPT)
        # When each had closed (s), and which cells it measured.
        self._judged: deque[tuple[float, Ints]] = deque(maxlen=KEPT)

    def add_span(
        self, opened_s: float, closed_s: float, rerouted: frozenset[Cell], came: Collection[Cell], links: Links
    ) -> None:
        """Note connections of the job that moved in a span, and those that began to carry, which all jobs learn of."""
        self._lasted_s = closed_s - opened_s
        if came:
            self._fabric.share(arrival(self._view.job, opened_s, closed_s, came, links))
        if rerouted:
            self._reroutes.append(_Reroute(opened_s, closed_s, rerouted))

    def note_judged(self, cells: CellValues, closed_s: float) -> None:
        """Note a span whose cells are judged: what becomes slow later did so after it."""
        self._judged.append((closed_s, cells.rows))

    def explain(
        self, blames: Iterable[Blame], weights: Weights, links: Links
    ) -> tuple[list[Blame], dict[Blame, list[MissingLink]]]:
        """The lasting blames that something benign explains; of those, the missing links that are behind some."""
        lasting = [blame for blame in blames if weights.spans(blame) >= ALARM_SPANS]
        onsets_s = {blame: weights.onset_s(blame) for blame in lasting}
        behind = {blame: self.missing_links(blame, onset_s) for blame, onset_s in onsets_s.items()}
        explained = [blame for blame in lasting if behind[blame] or self.met_traffic(blame, onsets_s[blame], links)]
        return explained, {blame: missing for blame, missing in behind.items() if missing}

    def missing_links(self, blame: Blame, onset_s: float) -> list[MissingLink]:
        """The missing links that explain a blame since `onset_s`."""
        missing = self._fabric.missing
        if not missing:
            return []
        crossed = self._view.crossable(blame.cells)
        returning = {cell: self._view.return_paths(cell) for cell in blame.cells}
        return missing_links_behind(blame, crossed, returning, onset_s, self._lasted_s, missing)

    def met_traffic(self, blame: Blame, onset_s: float, links: Links) -> bool:
        """Whether something became slow when another job's traffic arrived or a connection of its own job moved there.

        A moved connection may meet a path between other NICs, or its acknowledgements, whose path is not known; or it
        shares a link now. Connections of a job that have a NIC in common met there before.
        """
        if self.met_other_job(blame, onset_s, links):
            return True
        came = self.moved(blame, onset_s)
        if blame.component.kind == "link" and blame.excess <= BEYOND_SHARING:
            return not set(came).isdisjoint(blame.cells)
        ends = set(blame.cells[0][:2])
        return blame.component.kind == "path" and any(ends.isdisjoint(cell) for cell in came)

    def moved(self, blame: Blame, onset_s: float) -> list[Cell]:
        """The cells that connections of the job moved to when something became slow."""
        since_s = self._well_until_s(blame, onset_s)
        reroutes = (one for one in self._reroutes if one.opened_s <= onset_s and since_s <= one.closed_s)
        return [cell for reroute in reroutes for cell in reroute.cells]

    def met_other_job(self, blame: Blame, onset_s: float, links: Links) -> bool:
        """Whether something became slow as another job's traffic arrived."""
        return self._fabric.arrivals.explains(self._view.job, blame.cells, links, *self._onset(blame, onset_s))

    def _onset(self, blame: Blame, onset_s: float) -> tuple[float, float]:
        """From when until when something may have become slow that a span since `onset_s` is the first to show."""
        return self._well_until_s(blame, onset_s), onset_s + self._lasted_s

    def _well_until_s(self, blame: Blame, onset_s: float) -> float:
        """When most cells of a blame had last been judged before a span since `onset_s` showed them slow.

        That is `onset_s` itself, unless spans were not judged, or had no transfers of these cells.
        """
        unseen = self._index.rows(blame.cells)
        for closed_s, rows in reversed(self._judged):
            if closed_s <= onset_s:
                unseen = unseen[~np.isin(unseen, rows)]
                if 2 * len(unseen) < len(blame.cells):
                    return closed_s
        return onset_s


# A link that it was shown for stays full while one of the latest spans shows that: messages count in the span in which
# they end, so that a full link may seem to carry less in one.
_KEPT_SPANS = 1 + NAME_SPANS


class _Span(NamedTuple):
    """What the job carried in a span: seconds per byte of its cells, payload (bit/s) by link; nothing without marks."""

    opened_s: float
    closed_s: float
    costs: Mapping[Cell, float]
    bps: Mapping[str, float]


class _Carried(NamedTuple):
    """A link: what slow transfers carry and other jobs beside them (payload, bit/s), and the share of its rate."""

    link: str
    own_bps: float
    beside_bps: float
    share: float


class CongestionDetector:
    """Follows what one job carries on links, span by span, and shares that while its packets come marked."""

    def __init__(self, view: JobView, clocks: HostClocks, fabric: SharedFabric) -> None:
        self._view, self._clocks, self._fabric = view, clocks, fabric
        self._spans: deque[_Span] = deque(maxlen=_KEPT_SPANS)
        # Links that explained something and have been full since, each with the slow cells that crossed it.
        self._full: dict[str, tuple[Cell, ...]] = {}
        # By the component that would have been named: for how many spans it has not been explained.
        self._explained: dict[str, int] = {}

    def add_span(
        self,
        opened_s: float,
        closed_s: float,
        costs: Mapping[Cell, float],
        sizes: Mapping[Cell, float],
        links: Links,
    ) -> None:
        """Add a span: its cells' costs (s/byte) and what they carried (bytes)."""
        self._explained = {name: spans + 1 for name, spans in self._explained.items() if spans < NAME_SPANS}
        self._full = {link: cells for link, cells in self._full.items() if self._latest_full(link, cells)}
        if not any(self._marks(nic, opened_s) for nic in self._view.devices):
            self._spans.append(_Span(opened_s, closed_s, {}, {}))
            return
        bps: dict[str, float] = {}
        for cell, size_bytes in sizes.items():
            for link in links.get(cell, ()):
                bps[link] = bps.get(link, 0.0) + size_bytes * 8 / (closed_s - opened_s)
        self._spans.append(_Span(opened_s, closed_s, costs, bps))
        self._fabric.share(TrafficCarried(self._view.job, opened_s, closed_s, bps))

    def _marks(self, nic: str, since_s: float) -> int | None:
        """How many packets came marked to a NIC since `since_s` (master's clock); None if it does not count them."""
        device = self._view.devices.get(nic)
        grown = device.growth("ecn_marked", since_s - self._clocks.offset_s(device.host)) if device else None
        return None if grown is None else grown[0]

    def explain(
        self, blame: Blame, onset_s: float, links: Links, departures: Mapping[Cell, float]
    ) -> BenignSlowdown | None:
        """The congestion that explains a blame; None if it does not. `departures`: of its cells (log ratios)."""
        slow = _slow_cells(blame, departures)
        full = {link: one for link, cells in self._full.items() if (one := self._latest_full(link, cells))}
        tries: list[tuple[_Span, Mapping[str, _Carried]]] = [(span, {}) for span in reversed(self._recent())]
        for span, before in (*tries, (self._spans[-1], full)):
            met = self._met(slow, span, links, before) if span.bps else {}
            counts = [self._marks(nic, span.opened_s) for nic in set(met.values())]
            if marks := [count for count in counts if count]:
                if span.opened_s >= onset_s:
                    self._full |= {one.link: _crossing(one.link, slow, links) for one in met}
                return self._slowdown(blame, onset_s, span, sorted(met), marks)
        return None

    def _recent(self) -> list[_Span]:
        return list(self._spans)[-APART_SPANS:]

    def _latest_full(self, link: str, cells: Collection[Cell]) -> _Carried | None:
        """What a link carried in the latest span in which it was full, if that is not long ago."""
        return next((one for span in reversed(self._spans) if (one := self._filled(link, cells, span))), None)

    def is_new(self, slowdown: BenignSlowdown) -> bool:
        """Whether it has not been explained in the last few spans."""
        before = self._explained.get(str(slowdown.component))
        self._explained[str(slowdown.component)] = 0
        return before is None

    def _met(
        self, slow: Collection[Cell], span: _Span, links: Links, before: Mapping[str, _Carried]
    ) -> dict[_Carried, str]:
        """The full links that slow down these cells, as few as may be, each with a NIC that packets came marked to.

        Empty if some cell meets none. Links that were full `before` are so still.
        """
        crossing: dict[str, list[Cell]] = {}
        for cell in slow:
            for link in links.get(cell, ()):
                crossing.setdefault(link, []).append(cell)
        filled = {link: one for link, cells in crossing.items() if (one := self._filled(link, cells, span))}
        full = {**before, **filled}
        met: dict[_Carried, str] = {}
        for cell in slow:
            data = [full[link] for link in links.get(cell, ()) if link in full]
            marked = [
                (one, nic)
                for nic, crossed in ((cell[1], data), (cell[0], self._full_on_return(cell, full, span)))
                for one in crossed
                if self._marks(nic, span.opened_s) != 0
            ]
            if not marked:
                return {}
            found, nic = max(marked, key=lambda each: (len(crossing.get(each[0].link, ())), each[0].share))
            met[found] = nic
        return met

    def _full_on_return(self, cell: Cell, full: Mapping[str, _Carried], span: _Span) -> list[_Carried]:
        """The full links that acknowledgements of a cell cross, whichever known path they take."""
        paths = [set(hops) for hops in self._view.return_paths(cell)]
        shared = set[str].intersection(*paths) if paths else set[str]()
        return [one for link in sorted(shared) if (one := full.get(link) or self._filled(link, (), span))]

    def _filled(self, link: str, cells: Collection[Cell], span: _Span) -> _Carried | None:
        """What a link carries, if it is full while any of these cells uses it, or at all if there are none."""
        one = self._carried(link, cells, span)
        return one if one and one.share >= 1 / SLIGHT_RATIO else None

    def _carried(self, link: str, cells: Collection[Cell], span: _Span) -> _Carried | None:
        """What a link carries while any of these cells uses it, or at all; None where nobody knows its rate."""
        rate_bps, costs = self._fabric.rates.get(link), [span.costs[cell] for cell in cells if cell in span.costs]
        if not rate_bps or (cells and not costs):
            return None
        slowest_bps = 8 / max(costs, default=math.inf)
        own_bps = max(slowest_bps, span.bps.get(link, 0.0))
        beside_bps = self._fabric.carried.beside(self._view.job, link, span.opened_s, span.closed_s)
        return _Carried(link, own_bps, beside_bps, (own_bps + beside_bps) / payload_bound(rate_bps))

    def _slowdown(
        self, blame: Blame, onset_s: float, span: _Span, full: Sequence[_Carried], marks: Sequence[int]
    ) -> BenignSlowdown:
        evidence = tuple(
            f"link {one.link} carries {one.share:.0%} of what it can: {one.own_bps / 1e9:.3g} Gbit/s, "
            f"and {one.beside_bps / 1e9:.3g} Gbit/s of other jobs"
            for one in full
        )
        return BenignSlowdown(
            self._view.job,
            Benign.CONGESTION,
            blame.component,
            tuple(one.link for one in full),
            onset_s,
            span.closed_s,
            (*evidence, f"{sum(marks)} packets came marked to {len(marks)} NICs"),
            {"marked_packets": float(sum(marks)), "times_as_long": math.exp(blame.excess)},
        )


def _slow_cells(blame: Blame, departures: Mapping[Cell, float]) -> tuple[Cell, ...]:
    """A blame's cells without those that are well: a few may be, and what they carry tells of no full link."""
    return tuple(cell for cell in blame.cells if departures.get(cell, math.inf) > SLIGHT) or blame.cells


def _crossing(link: str, cells: Iterable[Cell], links: Links) -> tuple[Cell, ...]:
    """Those of the cells that cross a link."""
    return tuple(cell for cell in cells if link in links.get(cell, ()))
