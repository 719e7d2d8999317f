"""Congestion: transfers are slow because a link that they cross carries all that it can.

Two things must be seen. Packets came marked (ECN, RFC 3168) at every receiver of the slow transfers that counts marks:
they stood in a queue. And the link carries its rate, with what the slow transfers carry and what other jobs carry
beside them. A link that has become slow marks as well, but what crosses it adds up to less than its rate.

The sum is a lower bound of what the link carries while the slow transfers use it, if other jobs send as much then as
on average. Of the job itself it counts the rate of one transfer or the mean of all, whichever is more.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from c4bench.attribution.localise import Blame, Cell, Links
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.c4d.network.thresholds import NAME_SPANS, SLIGHT_RATIO
from c4bench.model.benign import Benign, BenignSlowdown
from c4bench.model.recording import TrafficCarried
from c4bench.units import payload_bound

# Spans of other jobs are known a little later than one's own: the newest span, or the one before, must show congestion.
_RECENT_SPANS = 2


class _Span(NamedTuple):
    """What the job carried in a span: seconds per byte of its cells, payload (bit/s) by link; nothing without marks."""

    opened_s: float
    closed_s: float
    costs: Mapping[Cell, float]
    bps: Mapping[str, float]


class _Full(NamedTuple):
    """A full link: what slow transfers carry and other jobs beside them (payload, bit/s), and the share of its rate."""

    link: str
    own_bps: float
    beside_bps: float
    share: float


class CongestionDetector:
    """Follows what one job carries on links, span by span, and shares that while its packets come marked."""

    def __init__(self, view: JobView, clocks: HostClocks, fabric: SharedFabric) -> None:
        self._view, self._clocks, self._fabric = view, clocks, fabric
        self._spans: deque[_Span] = deque(maxlen=_RECENT_SPANS)
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

    def explain(self, blame: Blame, onset_s: float, links: Links) -> BenignSlowdown | None:
        """The congestion that explains a blame; None if it does not."""
        for span in reversed(self._spans):
            marks = [self._marks(nic, span.opened_s) for nic in sorted({cell[1] for cell in blame.cells})]
            counted = [count for count in marks if count is not None]
            full = self._full(blame, span, links) if counted and all(counted) else []
            if full:
                return self._slowdown(blame, onset_s, span, full, sum(counted))
        return None

    def is_new(self, slowdown: BenignSlowdown) -> bool:
        """Whether it has not been explained in the last few spans."""
        before = self._explained.get(str(slowdown.component))
        self._explained[str(slowdown.component)] = 0
        return before is None

    def _full(self, blame: Blame, span: _Span, links: Links) -> list[_Full]:
        """The full links that slow down all cells of a blame; of a NIC, those of the cells from it and to it."""
        found = []
        for cells in _directions(blame):
            shared = set.intersection(*(set(links.get(cell, ())) for cell in cells))
            full = [one for link in sorted(shared) if (one := self._filled(link, cells, span)) is not None]
            if not full:
                return []
            found.append(max(full, key=lambda one: one.share))
        return found

    def _filled(self, link: str, cells: Iterable[Cell], span: _Span) -> _Full | None:
        """What a link carries, if it is full while any of these cells uses it."""
        rate_bps, costs = self._fabric.rates.get(link), [span.costs[cell] for cell in cells if cell in span.costs]
        if not rate_bps or not costs:
            return None
        own_bps = max(8 / max(costs), span.bps.get(link, 0.0))
        beside_bps = self._fabric.carried.beside(self._view.job, link, span.opened_s, span.closed_s)
        share = (own_bps + beside_bps) / payload_bound(rate_bps)
        return _Full(link, own_bps, beside_bps, share) if share >= 1 / SLIGHT_RATIO else None

    def _slowdown(self, blame: Blame, onset_s: float, span: _Span, full: list[_Full], marks: int) -> BenignSlowdown:
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
            (*evidence, f"{marks} packets came marked to {len({cell[1] for cell in blame.cells})} NICs"),
            {"marked_packets": float(marks), "times_as_long": math.exp(blame.excess)},
        )


def _directions(blame: Blame) -> list[list[Cell]]:
    """The cells of a blame; those from a NIC and those to it apart."""
    if blame.component.kind != "nic":
        return [list(blame.cells)]
    sides = ([cell for cell in blame.cells if cell[end] == blame.component.name] for end in (0, 1))
    return [cells for cells in sides if cells]
