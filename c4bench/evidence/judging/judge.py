"""From what was read to the report: verdicts with ranks, hosts, the chain of waiting, and other tools' words."""

from collections.abc import Set

import msgspec

from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.hang.wait_for_graph import Node, WaitForGraph
from c4bench.evidence.judging.clocks import on_one_clock
from c4bench.evidence.judging.hangs import HangCase, RankFinding, process_words
from c4bench.evidence.judging.join import JobEvidence, join
from c4bench.evidence.judging.slowness import stragglers
from c4bench.model import advice
from c4bench.model.diagnosis import Cause, Component, Diagnosis, Syndrome
from c4bench.model.evidence import (
    FLIGHT_RECORDER,
    CallState,
    EvidenceReport,
    EvidenceVerdict,
    MemberEvidence,
    Reached,
    Reading,
    Standing,
    State,
    TimedOut,
)

_LINKS = 12  # of a chain
_VERDICTS = 64  # of a report, which nobody reads beyond


def judge(reading: Reading, name: str = "job", ranks: int = 0, unmoved_s: float = 0.0) -> EvidenceReport:
    """What the files say is wrong with a job. `ranks` is its size, where the caller knows it.

    `unmoved_s` is for how long the caller has seen no rank call anything.
    """
    job = on_one_clock(join(reading, name, ranks, unmoved_s))
    case = HangCase(job)
    found = [*(case.judge() or stragglers(job)), *time_outs(job)]
    culprits = {rank for judged in found for rank in judged.culprits}
    verdicts = [_verdict(job, case, judged, culprits) for judged in found]
    verdicts += [verdict for comm in sorted(job.apart) for verdict in _apart(job, comm, unmoved_s)]
    left_out = len(verdicts) - _VERDICTS
    more = [f"{left_out} more verdicts are not shown"] if left_out > 0 else []
    cannot = dict.fromkeys((*reading.cannot_tell, *_unknown(job), *more))
    why = untold_why(job, reading)
    return EvidenceReport(
        job.ranks,
        reading.sources,
        tuple(verdicts[:_VERDICTS]),
        (*reading.problems, *job.problems),
        tuple(cannot),
        reading.benchmarks,
        _standings(case.graph),
        job.clocks,
        _reached(job, case.graph),
        job.size_stated,
        State.FAULT if verdicts else _without_fault(job, why),
        "" if verdicts else why,
    )


def _without_fault(job: JobEvidence, untold: str) -> State:
    """What it means that there is no verdict."""
    if untold:
        return State.UNTOLD
    dumped = {
        rank for comm in job.comms.values() for rank, member in comm.members.items() if member.format == FLIGHT_RECORDER
    }
    return State.HEALTHY if dumped == set(range(job.ranks)) else State.NO_STRAGGLER


def _apart(job: JobEvidence, comm: str, unmoved_s: float) -> list[EvidenceVerdict]:
    """What is wrong in a communicator whose members have no ranks in the job that are known.

    Ranks in the evidence, and in the component's name, are those of the communicator; there are none of the job's.
    """
    ones = job.apart[comm]
    members = tuple(msgspec.structs.replace(one, rank=one.member, local=False) for one in ones)
    alone = join(Reading(members, ranks=max((one.size for one in ones), default=0)), comm, unmoved_s=unmoved_s)
    case = HangCase(alone)
    by_rank = {one.member: one for one in ones if one.pid >= 0}
    return [_local(job, _verdict(alone, case, judged, set(judged.culprits)), by_rank) for judged in case.judge()]


def _local(job: JobEvidence, verdict: EvidenceVerdict, by_rank: dict[int, MemberEvidence]) -> EvidenceVerdict:
    """A verdict on a communicator as one on the job: with processes in place of ranks."""
    comm = verdict.diagnosis.job
    named = verdict.culprits or verdict.ahead
    lines = [_who(by_rank[rank], comm) for rank in named if rank in by_rank][:_VERDICTS]
    of_comm = f"ranks here are those of communicator {comm}, not of the job"
    diagnosis = msgspec.structs.replace(
        verdict.diagnosis, job=job.name, evidence=(*verdict.diagnosis.evidence, of_comm, *lines)
    )
    return msgspec.structs.replace(
        verdict, diagnosis=diagnosis, culprits=(), never_came=(), only_wait=(), no_file=(), ahead=(), behind=()
    )


def _who(one: MemberEvidence, comm: str) -> str:
    """Which process a rank of a communicator is."""
    known = f"rank {one.rank} of the job" if one.rank >= 0 else "its rank in the job is not stated"
    process = process_words(msgspec.structs.replace(one, rank=-1))
    return f"rank {one.member} of {comm} is {process}; {known}"


def _standings(graph: WaitForGraph) -> tuple[Standing, ...]:
    """Who waits where for whom, ranks alike together."""
    alike: dict[tuple[str, int, str, frozenset[Node]], list[int]] = {}
    for rank, op in graph.pending.items():
        alike.setdefault((op.comm, op.seq, op.kind, graph.edges[rank]), []).append(rank)
    return tuple(
        Standing(comm, seq, kind, tuple(sorted(ranks)), tuple(sorted(one for one in targets if isinstance(one, int))))
        for (comm, seq, kind, targets), ranks in sorted(alike.items(), key=lambda item: (item[0][:2], min(item[1])))
    )


def _reached(job: JobEvidence, graph: WaitForGraph) -> tuple[Reached, ...]:
    """How far each rank has come in the communicators in which ranks wait, the least first."""
    found: list[Reached] = []
    for name in sorted({op.comm for op in graph.pending.values()}):
        by_seq: dict[int, list[int]] = {}
        for rank, member in job.comms[name].members.items():
            by_seq.setdefault(member.last, []).append(rank)
        found += [Reached(name, seq, tuple(sorted(ranks))) for seq, ranks in sorted(by_seq.items())]
    return tuple(found)


def _verdict(job: JobEvidence, case: HangCase, judged: RankFinding, all_culprits: Set[int]) -> EvidenceVerdict:
    diagnosis = judged.finding.stamped(job.name, job.latest_s, job.latest_s)
    hosts = judged.hosts or tuple(sorted({job.hosts[rank] for rank in judged.culprits if rank in job.hosts}))
    counted = any(member.counts for comm in job.comms.values() for member in comm.members.values())
    why, telling = advice.why_not(diagnosis), telling_words(diagnosis, counted=counted)
    if not (why or hosts):
        why, telling = "no file says on which host it is", "a report of NCCL's RAS beside these files, which has hosts"
    return EvidenceVerdict(
        diagnosis,
        judged.culprits,
        judged.sure,
        case.never_came(),
        judged.waiting or tuple(sorted(case.graph.pending.keys() - all_culprits - set(judged.ahead))),
        job.no_file if len(job.no_file) < job.ranks else (),
        hosts,
        chain(case.graph, judged.culprits),
        torchfrtrace_words(diagnosis, job.no_file),
        ras_words(diagnosis),
        judged.ahead,
        judged.behind,
        () if why else hosts,
        why,
        telling if why else "",
    )


def chain(graph: WaitForGraph, culprits: tuple[int, ...]) -> tuple[str, ...]:
    """The waiting that leads to a culprit, from the rank farthest from it, one line a rank."""
    distance: dict[int, int] = dict.fromkeys(culprits, 0)
    todo, next_of = list(culprits), dict[int, int]()
    while todo and len(next_of) < len(graph.edges):
        fresh = []
        for rank, targets in graph.edges.items():
            if isinstance(rank, int) and rank not in distance:
                hit = next((one for one in todo if one in targets), None)
                if hit is not None:
                    next_of[rank], distance[rank] = hit, distance[hit] + 1
                    fresh.append(rank)
        todo = fresh[:_LINKS]
    if not next_of:
        return ()
    rank = max(next_of, key=lambda one: (distance[one], -one))
    lines: list[str] = []
    while rank in next_of and len(lines) < _LINKS:
        op = graph.pending[rank]
        lines.append(f"rank {rank} waits in {op.kind or 'operation'} #{op.seq} of {op.comm} for rank {next_of[rank]}")
        rank = next_of[rank]
    return tuple(lines)


def _unknown(job: JobEvidence) -> list[str]:
    """What is not known of this job in particular."""
    unknown = [what for what in (job.unsure, job.lacking_clocks) if what]
    if not job.size_stated:
        least = f", but that it has {job.ranks} ranks or more" if job.ranks else ""
        unknown.append(f"the size of the job: no file states it{least}; --ranks N does")
    if job.no_file:
        shown = ", ".join(map(str, job.no_file[:16])) + (" ..." if len(job.no_file) > 16 else "")
        unknown.append(f"ranks of which no file tells anything ({len(job.no_file)} of {job.ranks}): {shown}")
    guessed = [comm.name for comm in job.comms.values() if not comm.exact]
    if guessed:
        unknown.append(f"not all ranks of {len(guessed)} communicators, such as {guessed[0]}, are known")
    return unknown


def untold_why(job: JobEvidence, reading: Reading) -> str:
    """Why no verdict does not mean that the job is healthy; empty if it does, as far as such files go."""
    members = [member for comm in job.comms.values() for member in comm.members.values()]
    called = {member.rank for member in members if member.calls or member.transfers}
    counted = {member.rank for member in members if member.counts}
    if not called and counted:
        return "all ranks have called alike, and counts of calls do not show whether the last of them has ended"
    if not called:
        return "no file tells of what any rank has called"
    if reading.problems or job.problems:
        return "not all files could be used"
    if job.no_file or called != set(range(job.ranks)):
        return f"files tell of the calls of {len(called)} of {job.ranks} ranks"
    ended = (member.newest()[0].state is CallState.COMPLETED for member in members if member.calls)
    return "" if all(ended) else "files do not say whether the last calls have ended"


_SHOWN = 8


def time_outs(job: JobEvidence) -> list[RankFinding]:
    """A finding for each operation in which ranks timed out; it blames nobody.

    Operations of different groups are not compared: their numbers have nothing to do with each other.
    """
    places: dict[tuple[str, int], list[TimedOut]] = {}
    for one in job.timeouts:
        places.setdefault((one.group, one.seq), []).append(one)
    return [_judged(job, waits) for _, waits in sorted(places.items())]


def _judged(job: JobEvidence, waits: list[TimedOut]) -> RankFinding:
    first = min(waits, key=lambda one: one.rank)
    shown = ", ".join(str(one.rank) for one in waits[:_SHOWN]) + (" ..." if len(waits) > _SHOWN else "")
    where = f"{first.kind or 'operation'} #{first.seq}" + (f" of {first.group}" if first.group else "")
    evidence = [f"{first.source}: ranks {shown} timed out after {first.after_s:g} s in {where}"]
    if first.completed >= 0:
        evidence.append(f"rank {first.rank} had completed #{first.completed} and called up to #{first.enqueued}")
    evidence.append("which rank they waited for is not in the log: nobody is known to be to blame")
    figures = {"waiting_ranks": float(len(waits)), "after_s": first.after_s}
    finding = Finding(
        Syndrome.COMMUNICATION_HANG, Cause.STUCK_INSIDE, Component("job", job.name), 0.0, 0.8 / max(job.ranks, 1),
        tuple(evidence), f"{where} ending on all ranks", figures,
    )  # fmt: skip
    return RankFinding(finding, (), sure=False, waiting=tuple(sorted(one.rank for one in waits)))


_MATCH_STATES = {
    Cause.COLLECTIVE_TYPE_MISMATCH: "COLLECTIVE_TYPE_MISMATCH",
    Cause.COLLECTIVE_DTYPE_MISMATCH: "COLLECTIVE_DTYPE_MISMATCH",
    Cause.SIZE_OR_SYNTAX_MISMATCH: "SIZE_OR_SYNTAX_MISMATCH",
    Cause.STUCK_INSIDE: "COLLECTIVE_STATE_MISMATCH",
}
_RAS = {
    Cause.NOT_ENTERED: "MISMATCH",
    Cause.COLLECTIVE_TYPE_MISMATCH: "MISMATCH",
    Cause.PROCESS_ENDED: "DEAD",
    Cause.PROCESS_STOPPED: "INCOMPLETE",
}


def torchfrtrace_words(diagnosis: Diagnosis, no_file: tuple[int, ...]) -> str:
    """What torchfrtrace prints where it comes to the same; empty where it has no word for it."""
    if diagnosis.cause is Cause.NOT_ENTERED:
        return "Missing dump files from ranks" if no_file else "Not all ranks joining collective"
    return _MATCH_STATES.get(diagnosis.cause, "") if diagnosis.cause else ""


_STACKS = "stacks of these ranks (py-spy dump, gdb) and the counters of their NICs"
_TOLD_BY = {
    Cause.NOT_ENTERED: "stacks of these ranks (py-spy dump), and the files of those that left none",
    Cause.STUCK_INSIDE: _STACKS,
    Cause.PROCESS_STOPPED: "the same question again after 10 s: RAS then answers for who was only late or cut off",
    Cause.PROCESS_ENDED: "the exit codes and kernel logs of these processes' hosts",
    Cause.COMPUTE_SLOW: "clocks and temperatures of that rank's GPU beside another's",
}
_AGAIN = "a second report of RAS after 10 s or more: who has called nothing since hangs, who has was only late"


def telling_words(diagnosis: Diagnosis, *, counted: bool) -> str:
    """What would tell suspects apart, or make one sure. `counted`: of ranks only counts of calls are known."""
    if diagnosis.cause is Cause.NOT_ENTERED and counted:
        return _AGAIN
    return _TOLD_BY.get(diagnosis.cause, _STACKS) if diagnosis.cause else _STACKS


def ras_words(diagnosis: Diagnosis) -> str:
    """The word of RAS's warning; empty where it has none."""
    return _RAS.get(diagnosis.cause, "") if diagnosis.cause else ""
