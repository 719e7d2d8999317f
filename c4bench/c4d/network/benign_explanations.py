"""Benign explanations of slow paths: traffic that arrived, links that are missing, other links that are to blame."""

from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from c4bench.attribution.localise import Blame, Cell, Links
from c4bench.c4d.columns import Ints
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.ingest.shared_fabric import SharedFabric, arrival
from c4bench.c4d.network.cell_index import CellIndex, CellValues
from c4bench.c4d.network.evidence import Weights
from c4bench.c4d.network.missing_links import missing_links_behind
from c4bench.c4d.thresholds import ALARM_SPANS, BEYOND_SHARING
from c4bench.model.fabric import MissingLink

# Spans with moved connections that are kept, the latest: a slowdown is explained by one at its onset.
_REROUTES_KEPT = 32
# Judged spans that are kept, the latest: as many as a run of evidence has, and some before it.
_JUDGED_KEPT = 32


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
        self._reroutes: deque[_Reroute] = deque(maxlen=_REROUTES_KEPT)
        # When each had closed (s), and which cells it measured.
        self._judged: deque[tuple[float, Ints]] = deque(maxlen=_JUDGED_KEPT)

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

    def arrivals(self, blame: Blame, onset_s: float) -> int:
        """How many times another job's connections began to carry when something became slow."""
        return self._fabric.arrivals.around(self._view.job, *self._onset(blame, onset_s))

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

    def blocked_cells(self, cells: Iterable[Cell], slow: Collection[str], links: Links) -> set[Cell]:
        """The cells whose data or acknowledgements cross these slow links."""
        hops = set(slow)
        answered = {(path[1], path[0]) for path, crossed in self._view.paths.items() if not hops.isdisjoint(crossed)}
        return {cell for cell in cells if cell[:2] in answered or not hops.isdisjoint(links.get(cell, ()))}
