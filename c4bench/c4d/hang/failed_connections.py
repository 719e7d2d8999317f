"""Connections that failed between ranks that live on: what all of one moment have in common.

A job that goes on without some of its ranks, such as one with a quorum, ends no process, and its failed operation does
not stand still for long. Its ranks report that nothing was acknowledged, and go on in other communicators.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from c4bench.attribution.weigh import Cell, Links, attribute_cells, path_component
from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.hang.port_failures import silent_host_finding, silent_hosts
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.connections import ConnView, cell_of, progress_s
from c4bench.c4d.observe.job_view import UNANSWERED, JobView
from c4bench.c4d.thresholds import REPORTED_CADENCES
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.telemetry import Failure

Pair = tuple[str, str]  # the NICs at the ends, in order of their names


class _Report(msgspec.Struct, frozen=True):
    """A member of a communicator had no answer from another; `at_s` is on the master's clock."""

    comm: str
    member: int
    peer: int
    at_s: float


class _Standing(msgspec.Struct, frozen=True):
    """What is named for `pairs`, until one of them carries something after `since_s`."""

    suspects: frozenset[Component]
    pairs: frozenset[Pair]
    since_s: float


class FailedConnections:
    """The failures that the ranks of one job report and survive. Each component is named once until it is well."""

    def __init__(self, view: JobView, clocks: HostClocks) -> None:
        self._view, self._clocks = view, clocks
        self._pending: list[_Report] = []
        self._standing: list[_Standing] = []

    def ingest(self, comm: str, failure: Failure, at_s: float) -> None:
        """Note a failure reported at `at_s` (master's clock). A peer that has closed its end answers nobody."""
        view = self._view.comms.get(comm)
        if view is None or failure.status != UNANSWERED or not {failure.rank, failure.peer} <= view.ranks.keys():
            return
        if failure.peer not in view.closed:
            self._pending.append(_Report(comm, failure.rank, failure.peer, at_s))

    def evaluate(self, now_s: float) -> list[Finding]:
        """What new failures have in common, once all ranks that reported them have gone on.

        Failures between ranks of which one has ended are left to the stage that explains ended processes.
        """
        self._pending = [report for report in self._pending if report.comm in self._view.comms]
        # Reports of one fault come a cadence or two apart; a process that ends because of it has shown that by then.
        wait_s = 2 * REPORTED_CADENCES * self._clocks.cadence_s()
        if not self._pending or now_s < max(report.at_s for report in self._pending) + wait_s:
            return []
        self._pending = [report for report in self._pending if self._alive(report)]
        if not self._pending or not all(self._gone_on(report) for report in self._pending):
            return []
        reports, self._pending = self._pending, []
        self._view.forget_failures()
        self._standing = [standing for standing in self._standing if not self._well(standing)]
        return self._new(self._findings(reports, now_s), reports, now_s)

    def _alive(self, report: _Report) -> bool:
        ranks = [self._view.comms[report.comm].ranks[member] for member in (report.member, report.peer)]
        return all((record := self._view.process.get(rank)) and record.state == "running" for rank in ranks)

    def _gone_on(self, report: _Report) -> bool:
        rank = self._view.comms[report.comm].ranks[report.member]
        acted_s = self._view.members.acted_s(rank) + self._clocks.offset_s(self._view.mapping.host(rank))
        return acted_s > report.at_s

    def _findings(self, reports: list[_Report], now_s: float) -> list[Finding]:
        first_s = min(report.at_s for report in reports)
        hosts = {record.host for record in self._view.process.values()}
        if gone := silent_hosts(hosts, self._clocks, first_s):
            return [silent_host_finding(host, self._clocks, first_s, now_s) for host in sorted(gone)]
        failed = self._failed(reports)
        since_s = min((_since_s(self._clocks, view) for view in failed), default=first_s)
        return [
            _finding(component, others, len(reports), since_s)
            for component, others in common(_pairs(failed), self._working(failed), self._links(failed))
        ]

    def _failed(self, reports: list[_Report]) -> list[ConnView]:
        """The connections, in both directions, between members that had no answer from each other."""
        ends = {(report.comm, frozenset((report.member, report.peer))) for report in reports}
        views = self._view.conns.values()
        return [view for view in views if (view.record.comm, frozenset((view.record.rank, view.record.peer))) in ends]

    def _working(self, failed: list[ConnView]) -> set[Cell]:
        """The cells that carried something after all of these had stopped."""
        stopped_s = max((_since_s(self._clocks, view) for view in failed), default=0.0) + self._clocks.cadence_s()
        pairs = set(_pairs(failed))
        views = (view for view in self._view.conns.values() if progress_s(self._clocks, view) > stopped_s)
        return {cell_of(view.record) for view in views if _pair(view) not in pairs}

    def _links(self, failed: list[ConnView]) -> Links:
        return {**self._view.links(), **self._view.crossable({cell_of(view.record) for view in failed})}

    def _new(self, findings: list[Finding], reports: list[_Report], now_s: float) -> list[Finding]:
        known = {suspect for standing in self._standing for suspect in standing.suspects}
        fresh = [finding for finding in findings if known.isdisjoint(finding.suspects)]
        pairs = frozenset(_pairs(self._failed(reports)))
        self._standing += [_Standing(frozenset(finding.suspects), pairs, now_s) for finding in fresh]
        return fresh

    def _well(self, standing: _Standing) -> bool:
        views = (view for view in self._view.conns.values() if _pair(view) in standing.pairs)
        return any(progress_s(self._clocks, view) > standing.since_s for view in views)


def common(
    pairs: Mapping[Pair, Collection[Cell]], working: Collection[Cell], links: Links
) -> list[tuple[Component, tuple[Component, ...]]]:
    """The components that explain why all cells of these pairs failed, each with its alternatives.

    A pair fails in both directions if either is dead, so it accuses what its data and its acknowledgements may cross. A
    NIC that carries something else is not dead. Pairs without a component in common are one finding: nothing tells
    their paths apart.
    """
    crossed = {pair: {hop for cell in cells for hop in links.get(cell, ())} for pair, cells in pairs.items()}
    both: dict[Cell, set[str]] = {cell: crossed[pair] for pair in pairs for cell in (pair, pair[::-1])}
    excess = dict.fromkeys(working, 0.0) | dict.fromkeys(both, 1.0)
    well = {Component("nic", nic) for cell in working for nic in cell[:2]}
    found, explained = [], set[Cell]()
    for blame in attribute_cells(excess, links={**links, **both}):
        suspects = [part for part in blame.suspects if _whole(part) not in well]
        if suspects and blame.component.kind != "path":
            found.append((suspects[0], tuple(suspects[1:])))
            explained.update(blame.cells)
    if left := [path_component(pair) for pair in sorted(pairs) if pair not in explained]:
        found.append((left[0], tuple(left[1:])))
    return found


def _whole(part: Component) -> Component:
    return Component(part.kind, part.name)


def _pair(view: ConnView) -> Pair:
    first, second = sorted((view.record.source, view.record.destination))
    return first, second


def _pairs(views: Iterable[ConnView]) -> dict[Pair, set[Cell]]:
    pairs: dict[Pair, set[Cell]] = {}
    for view in views:
        pairs.setdefault(_pair(view), set()).add(cell_of(view.record))
    return pairs


def _since_s(clocks: HostClocks, view: ConnView) -> float:
    """Since when a connection has been as it is."""
    return max(view.record.last_progress_s, view.record.state_since_s) + clocks.offset_s(view.host)


def _finding(component: Component, others: tuple[Component, ...], reports: int, since_s: float) -> Finding:
    evidence = [f"{reports} times a rank had no answer from another; both are alive, and the first went on without it"]
    if others:
        evidence.append("could equally be " + " or ".join(map(str, others)))
    return Finding(
        Syndrome.COMMUNICATION_SLOW,
        Cause.CONNECTION_LOST,
        component,
        since_s,
        confidence(len(others)),
        tuple(evidence),
        f"a message that crosses {component}",
        {"failed_connections": float(reports)},
        others,
    )
