"""Processes that ended: which ended first, and why.

When a rank fails, the others learn of it within milliseconds and end with an error as well. The first is to blame, or
what the first gave up on; the others are victims.
"""

import signal

from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding, rank_component
from c4bench.c4d.hang.mismatch import mismatch_finding
from c4bench.c4d.hang.port_failures import port_findings, ports_down, silent_host_finding, silent_hosts
from c4bench.c4d.hang.stalls import connections_given_up, network_finding, unanswered, unanswered_credit
from c4bench.c4d.hang.wait_for_graph import WaitForGraph, wait_graph
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.connections import progress_s
from c4bench.c4d.observe.job_view import JobView, ProcessExit, ReportedFailure
from c4bench.c4d.thresholds import BETWEEN_CADENCES, REPORTED_CADENCES
from c4bench.model.diagnosis import Cause, Component, Syndrome

# Exit codes by which somebody asked the job to end.
_ASKED = (-signal.SIGINT, -signal.SIGTERM)
# A program ends itself by it, as those of UCX do whose connections have failed.
_ABORTED = -signal.SIGABRT
# Completion statuses by which a NIC says that it cannot send itself, whatever the far end does. Flushed work is a queue
# pair's first error only where its own NIC has ended it: rxe of Linux 7.3 does not give the reason.
_OWN_NIC = ("LOC_QP_OP_ERR", "WR_FLUSH_ERR", "DEVICE_FATAL")


def first_exit_s(job: JobView, clocks: HostClocks) -> float | None:
    """When the first process was seen dead, on the master's clock; None if none is."""
    return min((_seen_s(clocks, death) for death in job.exits.values()), default=None)


def exit_findings(job: JobView, clocks: HostClocks, *, known: bool = False) -> list[Finding]:
    """Why the first processes ended, once two more windows have shown that the job itself does not end.

    Where a cause is `known` already, ranks that exit with an error are its victims.
    """
    first_s = first_exit_s(job, clocks)
    between_s = BETWEEN_CADENCES * clocks.cadence_s()
    distinct_s = REPORTED_CADENCES * clocks.cadence_s()
    if first_s is None or _heard_s(job, clocks) < first_s + distinct_s - between_s:
        return []
    deaths = sorted(job.exits.values(), key=lambda death: (_seen_s(clocks, death), death.rank))
    early = [death for death in deaths if _seen_s(clocks, death) <= first_s + distinct_s + between_s]
    whole = len(early) > 1 and len(early) == len(job.process)
    killed = [death for death in early if not _by_itself(death) and death.exit_code not in _ASKED]
    if killed and not (whole and len(killed) == len(early)):
        return [_ended(job, clocks, death, len(deaths), 0) for death in killed]
    if known:
        return []
    fell = ports_down(job, clocks)
    if fell:
        return port_findings(job, clocks, fell)
    # Windows show an exit to a cadence; a rank that reported its failure before was not later than others.
    failure = _first_failure(job, first_s)
    first_rank = failure.rank if failure is not None else None
    tied = [d for d in early if d.rank == first_rank or _seen_s(clocks, d) <= first_s + clocks.cadence_s() + between_s]
    return _of_exits(job, clocks, tied, first_s, failure, whole=whole)


def _by_itself(death: ProcessExit) -> bool:
    """Whether a process ended by its own decision, such as an error of a connection."""
    return death.state == "exited" or death.exit_code == _ABORTED


def _first_failure(job: JobView, first_s: float) -> ReportedFailure | None:
    """The first failure that a rank reported, unless a process was seen dead before: that one caused the failure."""
    failure = job.first_failure
    return failure if failure is not None and failure.at_s <= first_s else None


def _of_exits(
    job: JobView,
    clocks: HostClocks,
    tied: list[ProcessExit],
    first_s: float,
    failure: ReportedFailure | None,
    *,
    whole: bool,
) -> list[Finding]:
    """The cause of ranks that ended with an error, or were asked to end, at the same time."""
    graph = wait_graph(job)
    bug = mismatch_finding(job.job, graph, job.records_of, first_s)
    if bug:
        return [bug]
    still_s = (REPORTED_CADENCES + BETWEEN_CADENCES) * clocks.cadence_s()
    gone = silent_hosts({record.host for record in job.process.values()}, clocks, first_s - still_s)
    if gone:
        return [silent_host_finding(host, clocks, clocks.last_heard_s(host), first_s) for host in sorted(gone)]
    exited = [death for death in tied if _by_itself(death)]
    if left := _given_up(job, clocks, graph, exited):
        return left
    if failure is not None and failure.status in _OWN_NIC and failure.rank in {death.rank for death in exited}:
        return _own_nic(job, failure, first_s)
    foremost = _foremost(graph, tied, failure)
    if whole and len(foremost) > 1:
        failed = all(map(_by_itself, foremost))
        return [_all_ended(job, tied, first_s)] if failed else []
    return [_ended(job, clocks, foremost[0], len(job.exits), min(1, len(tied) - 1))]


def _given_up(job: JobView, clocks: HostClocks, graph: WaitForGraph, exited: list[ProcessExit]) -> list[Finding]:
    """Stalled connections, with bytes or credit in flight, that were given up."""
    still_s = REPORTED_CADENCES * clocks.cadence_s()
    left = unanswered(job)
    left += [v for d in exited for v in connections_given_up(job, graph, d.rank, d.seen_s, still_s) if v not in left]
    credit = unanswered_credit(job, graph)
    since_s = min((progress_s(clocks, view) for view in [*left, *credit]), default=0.0)
    return network_finding(job, clocks, graph, left, since_s, credit) if left or credit else []


def _own_nic(job: JobView, failure: ReportedFailure, first_s: float) -> list[Finding]:
    """A rank whose own NIC refuses its work requests: none of its connections stalled."""
    nics = [Component("nic", nic) for nic in job.nics(failure.rank)]
    if not nics:
        return []
    return [
        Finding(
            Syndrome.COMMUNICATION_HANG,
            Cause.CONNECTION_STALLED,
            nics[0],
            first_s,
            confidence(len(nics) - 1),
            (f"rank {failure.rank} ended because its NIC refused its work: {failure.reason}",),
            f"{nics[0]} taking a work request",
            {"status_" + failure.status.lower(): 1.0},
            tuple(nics[1:]),
        )
    ]


def _all_ended(job: JobView, tied: list[ProcessExit], first_s: float) -> Finding:
    codes = sorted({str(death.exit_code) for death in tied})
    return Finding(
        Syndrome.NON_COMMUNICATION_HANG,
        Cause.PROCESS_ENDED,
        Component("job", job.job),
        first_s,
        confidence(len(tied)),
        (f"all {len(tied)} processes exited at once, with code {', '.join(codes)}; nothing tells which was first",),
        "the word of a rank that failed before the others",
        {"processes_ended": float(len(tied))},
    )


def _foremost(graph: WaitForGraph, tied: list[ProcessExit], failure: ReportedFailure | None) -> list[ProcessExit]:
    """Of simultaneous exits: the rank that reported its failure first, else those that most others wait for."""
    first = [death for death in tied if failure is not None and death.rank == failure.rank]
    if first or len(tied) == 1:
        return first or tied
    awaited = {death.rank: graph.waiting_for(death.rank) for death in tied}
    most = max(awaited.values())
    return sorted((d for d in tied if awaited[d.rank] == most), key=lambda d: d.state != "killed")


def _ended(job: JobView, clocks: HostClocks, death: ProcessExit, deaths: int, others: int) -> Finding:
    how = f"exited with code {death.exit_code}" if death.state == "exited" else death.state
    evidence = [f"process of rank {death.rank} on {death.host} {how}, first of {deaths}"]
    if job.first_failure is not None and job.first_failure.rank == death.rank:
        evidence.append(f"it said: {job.first_failure.reason}")
    return Finding(
        Syndrome.NON_COMMUNICATION_HANG,
        Cause.PROCESS_ENDED,
        rank_component(job.job, death.rank),
        _seen_s(clocks, death),
        confidence(others),
        tuple(evidence),
        f"rank {death.rank} entering or finishing an operation",
        {"processes_ended": float(deaths)},
    )


def _seen_s(clocks: HostClocks, death: ProcessExit) -> float:
    return death.seen_s + clocks.offset_s(death.host)


def _heard_s(job: JobView, clocks: HostClocks) -> float:
    return max((clocks.last_heard_s(record.host) for record in job.process.values()), default=-float("inf"))
