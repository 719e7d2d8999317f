"""Hangs: an operation stands still because a rank does not take part, or because the network does not deliver."""

import msgspec

from c4bench.c4d.clocks import HostClocks
from c4bench.c4d.ledger import ConnView, Death, JobView
from c4bench.c4d.localise import Blame, Cell, localise
from c4bench.c4d.verdict import Verdict, rank_component
from c4bench.c4d.waits import Waits, first_uncompleted, least_progress, wait_graph
from c4bench.model.diagnosis import Component, Syndrome

# Two windows: less may be two hosts' windows lying differently.
_DISTINCT_CADENCES = 2.0


class Standstill(msgspec.Struct, frozen=True):
    """A communicator in whose running operation nothing has happened since `since_s`, seen until `observed_s`."""

    comm: str
    since_s: float
    observed_s: float


def standstills(job: JobView, clocks: HostClocks, at_least_s: float) -> list[Standstill]:
    """Communicators with a rank inside an operation and no progress of any member for `at_least_s`, oldest first.

    Counted up to the latest window of the waiting ranks, not up to now: a master that hears nothing knows nothing.
    """
    observed_s: dict[str, float] = {}
    for rank, op in first_uncompleted(job).items():
        heard_s = clocks.last_heard_s(job.comms[op.comm].hosts[rank])
        observed_s[op.comm] = max(heard_s, observed_s.get(op.comm, heard_s))
    found = [Standstill(comm, last_progress_s(job, clocks, comm), seen_s) for comm, seen_s in observed_s.items()]
    return sorted((s for s in found if s.observed_s - s.since_s >= at_least_s), key=lambda s: (s.since_s, s.comm))


def last_progress_s(job: JobView, clocks: HostClocks, comm: str) -> float:
    """When any member of `comm` last entered or finished an operation or moved a message (master's clock)."""
    times = (time_s + clocks.offset_s(host) for (name, host), time_s in job.progress_s.items() if name == comm)
    return max(times, default=-float("inf"))


def death_verdict(job: JobView, clocks: HostClocks) -> Verdict | None:
    """The rank whose process died first, once two more windows have shown that it is not the job that ends.

    A rank that gave up because a connection had stood still for longer than that is the fault's victim: the verdict
    is then the network's.
    """
    distinct_s = _DISTINCT_CADENCES * clocks.cadence_s()
    death = first_death(job, clocks)
    if death is None or _heard_s(job, clocks) < death.seen_s + clocks.offset_s(death.host) + distinct_s:
        return None
    if set(job.process) == set(job.deaths) and len(job.deaths) > 1 and _together(job, clocks, distinct_s):
        return None
    graph = wait_graph(job)
    gave_up_on = _gave_up_on(job, clocks, graph, death.rank, death.seen_s) if death.state == "exited" else []
    if gave_up_on:
        return _network_verdict(job, clocks, gave_up_on, min(_progress_s(clocks, view) for view in gave_up_on))
    how = f"exited with code {death.exit_code}" if death.state == "exited" else death.state
    evidence = (f"process of rank {death.rank} on {death.host} {how}, first of {len(job.deaths)}",)
    return _rank_verdict(job, death.rank, death.seen_s + clocks.offset_s(death.host), 0.95, evidence)


def first_death(job: JobView, clocks: HostClocks) -> Death | None:
    """The earliest death; among those within one cadence, the one most ranks wait for, then a kill before an exit."""
    deaths = {rank: death.seen_s + clocks.offset_s(death.host) for rank, death in job.deaths.items()}
    if not deaths:
        return None
    earliest_s = min(deaths.values())
    tied = [rank for rank, seen_s in deaths.items() if seen_s <= earliest_s + clocks.cadence_s()]
    if len(tied) == 1:
        return job.deaths[tied[0]]
    graph = wait_graph(job)
    return min((job.deaths[rank] for rank in tied), key=lambda d: (-graph.waiting_for(d.rank), d.state != "killed"))


def standstill_verdicts(job: JobView, clocks: HostClocks, still: Standstill) -> list[Verdict]:
    """Who is to blame for a standstill; empty when those waited for are themselves still moving."""
    graph = wait_graph(job)
    sinks = graph.sinks()
    absent = [node for node in sinks if isinstance(node, int)]
    if absent:
        return _absent_verdicts(job, clocks, graph, absent, still)
    frozen = _frozen(job, clocks, still)
    if frozen:
        return _frozen_verdicts(job, clocks, graph, frozen, still)
    stuck = [job.conns[node] for node in sinks if not isinstance(node, int)]
    if stuck:
        return _stuck_verdicts(job, clocks, stuck, still)
    return _least_progress_verdicts(job, still)


def _absent_verdicts(
    job: JobView, clocks: HostClocks, graph: Waits, absent: list[int], still: Standstill
) -> list[Verdict]:
    silent = _silent_host(job, clocks, absent, still)
    if silent:
        evidence = (
            f"no telemetry from {silent} since {clocks.last_heard_s(silent):.3f} s while its ranks are awaited",
        )
        return [_hang(Component("host", silent), still.since_s, 0.8, evidence, f"a window from {silent}")]
    dead = [rank for rank in absent if _process_stopped(job, rank)]
    return [
        _rank_verdict(
            job,
            rank,
            still.since_s,
            0.95 if dead else 0.9,
            (
                f"rank {rank} has not entered the operation in which {graph.waiting_for(rank)} ranks wait",
                *_state(job, rank),
            ),
        )
        for rank in dead or absent
    ]


def _silent_host(job: JobView, clocks: HostClocks, ranks: list[int], still: Standstill) -> str | None:
    """The one host of all `ranks`, if its agent fell silent when the standstill began."""
    hosts = {comm.hosts[rank] for comm in job.comms.values() for rank in ranks if rank in comm.hosts}
    if len(hosts) != 1:
        return None
    (host,) = hosts
    middle_s = (still.since_s + still.observed_s) / 2
    return host if clocks.last_heard_s(host) < middle_s else None


def _process_stopped(job: JobView, rank: int) -> bool:
    record = job.process.get(rank)
    return record is not None and record.state != "running"


def _state(job: JobView, rank: int) -> tuple[str, ...]:
    return (f"its process is {job.process[rank].state}",) if _process_stopped(job, rank) else ()


def _frozen(job: JobView, clocks: HostClocks, still: Standstill) -> list[int]:
    """Members that do nothing any more, not even wait.

    Where the agent reports processes, those not running. Otherwise those whose records stopped changing while those
    of others, who wait, go on.
    """
    hosts = job.comms[still.comm].hosts
    stopped = [rank for rank in hosts if _process_stopped(job, rank)]
    if stopped or any(rank in job.process for rank in hosts):
        return stopped
    moved_s = {rank: _moved_s(job, clocks, rank, host) for rank, host in hosts.items()}
    if max(moved_s.values()) < still.observed_s - _DISTINCT_CADENCES * clocks.cadence_s():
        return []
    middle_s = (still.since_s + still.observed_s) / 2
    return [rank for rank, time_s in moved_s.items() if time_s < middle_s]


def _moved_s(job: JobView, clocks: HostClocks, rank: int, host: str) -> float:
    return job.moved_s.get(rank, -float("inf")) + clocks.offset_s(host)


def _frozen_verdicts(
    job: JobView, clocks: HostClocks, graph: Waits, frozen: list[int], still: Standstill
) -> list[Verdict]:
    """The first to freeze; the network, if that rank gave up on a connection that had stood still before."""
    hosts = job.comms[still.comm].hosts
    moved_s = {rank: _moved_s(job, clocks, rank, hosts[rank]) for rank in frozen}
    first_s = min(moved_s.values()) + clocks.cadence_s()
    least = least_progress(job, still.comm, [rank for rank in frozen if moved_s[rank] <= first_s])
    gave_up_on = _gave_up_on(job, clocks, graph, least[0], job.moved_s.get(least[0], 0.0))
    if gave_up_on and least[0] not in job.process:
        return _listed(_network_verdict(job, clocks, gave_up_on, still.since_s))
    evidence = (f"rank {least[0]} is inside {still.comm} and does not even wait", *_state(job, least[0]))
    return [_rank_verdict(job, least[0], still.since_s, 0.9 if len(least) == 1 else 0.6, evidence)]


def _stuck_verdicts(job: JobView, clocks: HostClocks, stuck: list[ConnView], still: Standstill) -> list[Verdict]:
    """The network's blame, unless the standstill began at a rank that others send to and that reports no process."""
    least = least_progress(job, still.comm, job.comms[still.comm].hosts)
    receivers = {view.record.peer for view in stuck}
    suspects = [rank for rank in least if rank in receivers and rank not in job.process]
    if len(suspects) == 1:
        evidence = (f"rank {suspects[0]} sent least and acknowledges nothing; there is no process information",)
        return [_rank_verdict(job, suspects[0], still.since_s, 0.6, evidence)]
    return _listed(_network_verdict(job, clocks, stuck, still.since_s))


def _listed(verdict: Verdict | None) -> list[Verdict]:
    return [verdict] if verdict else []


def _least_progress_verdicts(job: JobView, still: Standstill) -> list[Verdict]:
    least = least_progress(job, still.comm, job.comms[still.comm].hosts)
    if len(least) != 1:
        return []
    evidence = (f"all are inside {still.comm}, nothing is under way, and rank {least[0]} has sent least",)
    return [_rank_verdict(job, least[0], still.since_s, 0.7, evidence)]


def _network_verdict(job: JobView, clocks: HostClocks, stuck: list[ConnView], since_s: float) -> Verdict | None:
    """The path or NIC that stuck connections share, given those that worked after they had stopped."""
    excess: dict[Cell, float] = {(v.record.source, v.record.destination): 1.0 for v in stuck}
    stopped_s = max(_progress_s(clocks, view) for view in stuck)
    for view in job.conns.values():
        if _progress_s(clocks, view) > stopped_s + clocks.cadence_s():
            excess.setdefault((view.record.source, view.record.destination), 0.0)
    blames = localise(excess)
    return _blame_verdict(job, blames[0], stuck, since_s) if blames else None


def _blame_verdict(job: JobView, blame: Blame, stuck: list[ConnView], since_s: float) -> Verdict:
    outstanding = sum(view.record.outstanding for view in stuck)
    evidence = [f"{outstanding} messages unacknowledged on {len(stuck)} connections"]
    others = [*blame.alternatives]
    others += [rank_component(job.job, v.record.rank) for v in stuck if v.record.rank not in job.process]
    if others:
        evidence.append("could equally be " + " or ".join(map(str, others)))
    return Verdict(
        Syndrome.COMMUNICATION_HANG,
        blame.component,
        since_s,
        0.6 if others else 0.9,
        tuple(evidence),
        f"a probe that crosses {blame.component}",
    )


def _gave_up_on(job: JobView, clocks: HostClocks, graph: Waits, rank: int, end_s: float) -> list[ConnView]:
    """Connections of `rank` that had stood still, carrying bytes, well before it ended at `end_s` (its own clock)."""
    op = graph.pending.get(rank)
    own = [view.record for view in job.conns.values() if view.record.rank == rank]
    if op is None or not own:
        return []
    acted_s = max(op.entered_s, *(conn.last_progress_s for conn in own))
    if acted_s >= end_s - _DISTINCT_CADENCES * clocks.cadence_s():
        return []
    return [view for view in job.conns.values() if view.record.rank == rank and view.record.outstanding > 0]


def _progress_s(clocks: HostClocks, view: ConnView) -> float:
    return view.record.last_progress_s + clocks.offset_s(view.host)


def _heard_s(job: JobView, clocks: HostClocks) -> float:
    return max((clocks.last_heard_s(record.host) for record in job.process.values()), default=-float("inf"))


def _together(job: JobView, clocks: HostClocks, within_s: float) -> bool:
    seen_s = [death.seen_s + clocks.offset_s(death.host) for death in job.deaths.values()]
    return max(seen_s) - min(seen_s) < within_s


def _rank_verdict(job: JobView, rank: int, onset_s: float, confidence: float, evidence: tuple[str, ...]) -> Verdict:
    refuted_by = f"rank {rank} entering or finishing an operation"
    return _hang(rank_component(job.job, rank), onset_s, confidence, evidence, refuted_by)


def _hang(
    component: Component, onset_s: float, confidence: float, evidence: tuple[str, ...], refuted_by: str
) -> Verdict:
    return Verdict(Syndrome.NON_COMMUNICATION_HANG, component, onset_s, confidence, evidence, refuted_by)
