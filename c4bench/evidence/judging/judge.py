"""From what was read to the report: verdicts with ranks, hosts, the chain of waiting, and other tools' words."""

from collections.abc import Sequence, Set
from typing import NamedTuple

from msgspec.structs import replace

from c4bench.evidence.judging.clocks import on_one_clock
from c4bench.evidence.judging.contents import contents
from c4bench.evidence.judging.crossings import Fabric
from c4bench.evidence.judging.hangs import HangCase, RankFinding, process_words
from c4bench.evidence.judging.join import JobEvidence, Member, grouped, join
from c4bench.evidence.judging.logs import LogCase
from c4bench.evidence.judging.pairs import PairwiseRuns
from c4bench.evidence.judging.slowness import stragglers
from c4bench.evidence.ras import FORMAT as RAS_FORMAT
from c4bench.model import advice
from c4bench.model.diagnosis import Cause
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
)

_LINKS = 12  # of a chain
_VERDICTS = 64  # of a report, which nobody reads beyond
_TIMELINE = 16_384
_AGAIN = "a second report of RAS after 10 s or more: who has called nothing since hangs, who has was only late"


class _Words(NamedTuple):
    """The words of PyTorch's torchfrtrace and of NCCL's RAS, empty where they have none, and what would tell more."""

    torchfrtrace: str = ""
    ras: str = ""
    told_by: str = "stacks of these ranks (py-spy dump, gdb) and the counters of their NICs"


_WORDS = {
    Cause.NOT_ENTERED: _Words(
        "Not all ranks joining collective", "MISMATCH",
        "stacks of these ranks (py-spy dump), and the files of those that left none",
    ),
    Cause.COLLECTIVE_TYPE_MISMATCH: _Words("COLLECTIVE_TYPE_MISMATCH", "MISMATCH"),
    Cause.COLLECTIVE_DTYPE_MISMATCH: _Words("COLLECTIVE_DTYPE_MISMATCH"),
    Cause.SIZE_OR_SYNTAX_MISMATCH: _Words("SIZE_OR_SYNTAX_MISMATCH"),
    Cause.STUCK_INSIDE: _Words("COLLECTIVE_STATE_MISMATCH"),
    Cause.PROCESS_STOPPED: _Words(
        "", "INCOMPLETE", "the same question again after 10 s: RAS then answers for who was only late or cut off"
    ),
    Cause.PROCESS_ENDED: _Words("", "DEAD", "the exit codes and kernel logs of these processes' hosts"),
    Cause.CONNECTION_LOST: _Words(
        "", "", "the counters of both NICs and of their switch ports, and ib_write_bw between them and others",
    ),
    Cause.PORT_DOWN: _Words("", "", "dmesg and ethtool -m on that host, and the counters of the switch's port"),
    Cause.COMPUTE_SLOW: _Words("", "", "clocks and temperatures of that rank's GPU beside another's"),
}  # fmt: skip


def judge(
    reading: Reading, name: str = "job", ranks: int = 0, unmoved_s: float = 0.0, fabric: Fabric | None = None
) -> EvidenceReport:
    """What the files say is wrong with a job. `ranks` is its size, where the caller knows it.

    `unmoved_s` is for how long the caller has seen no rank call anything; `fabric` shows which links pairs cross.
    """
    job = on_one_clock(join(reading, name, ranks, unmoved_s))
    case = HangCase(job)
    logs, held, pairs = LogCase(job), contents(reading), PairwiseRuns(reading.benchmarks, fabric)
    verdicts = [*_on_ranks(job, case, logs, unmoved_s), *pairs.verdicts(job.name)]
    only_measured = bool(reading.benchmarks) and not (reading.members or reading.timeouts or logs.timeline())
    measured = max((run.ranks for run in reading.benchmarks), default=0) if only_measured else 0
    state, why = _state(job, verdicts, only_measured=only_measured, late=held.late)
    return EvidenceReport(
        ranks=job.ranks or measured,
        sources=reading.sources,
        verdicts=tuple(verdicts[:_VERDICTS]),
        problems=job.reading.problems,
        cannot_tell=_cannot_tell(job, pairs, len(verdicts), only_measured=only_measured),
        benchmarks=reading.benchmarks,
        standings=_standings(case),
        clocks=tuple({clock.host: clock for clock in job.clocks.values()}.values()),
        reached=_reached(case),
        size_stated=job.size_stated or measured > 0,
        state=state,
        untold_why=why,
        contents=(*held.lines, *pairs.summaries()),
        timeline=logs.timeline()[:_TIMELINE],
    )


def _on_ranks(job: JobEvidence, case: HangCase, logs: LogCase, unmoved_s: float) -> list[EvidenceVerdict]:
    """What is wrong with ranks, and with communicators whose ranks in the job are not known."""
    found = [*(case.judge() or stragglers(job)), *logs.judge()]
    culprits = {rank for judged in found for rank in judged.culprits}
    verdicts = [_verdict(job, case, judged, culprits) for judged in found]
    return verdicts + [verdict for comm in sorted(job.apart) for verdict in _apart(job, comm, unmoved_s)]


def _cannot_tell(job: JobEvidence, pairs: PairwiseRuns, verdicts: int, *, only_measured: bool) -> tuple[str, ...]:
    """All that the files do not show, each once."""
    hidden = [f"{verdicts - _VERDICTS} more verdicts are not shown"] if verdicts > _VERDICTS else []
    own = [] if only_measured else _unknown(job)
    return tuple(dict.fromkeys((*job.reading.cannot_tell, *pairs.unknown(), *own, *hidden)))


def _verdict(job: JobEvidence, case: HangCase, judged: RankFinding, all_culprits: Set[int]) -> EvidenceVerdict:
    diagnosis = judged.finding.stamped(job.name, job.latest_s(), job.latest_s())
    cause = judged.finding.cause
    words = _WORDS.get(cause, _Words())
    hosts = judged.hosts or tuple(sorted({job.hosts[rank] for rank in judged.culprits if rank in job.hosts}))
    counted = cause is Cause.NOT_ENTERED and any(member.counts for member in job.members())
    why, telling = advice.why_not(diagnosis), _AGAIN if counted else words.told_by
    if not (why or hosts):
        why, telling = "no file says on which host it is", "a report of NCCL's RAS beside these files, which has hosts"
    missing = cause is Cause.NOT_ENTERED and job.no_file
    return EvidenceVerdict(
        diagnosis,
        judged.culprits,
        judged.sure,
        never_came=case.never_came,
        only_wait=judged.waiting or tuple(sorted(case.graph.pending.keys() - all_culprits - set(judged.ahead))),
        no_file=job.no_file if len(job.no_file) < job.ranks else (),
        hosts=hosts,
        chain=_chain(case, judged.culprits),
        torchfrtrace="Missing dump files from ranks" if missing else words.torchfrtrace,
        ras=words.ras,
        ahead=judged.ahead,
        behind=judged.behind,
        drain=() if why else hosts,
        unadvised=why,
        told_by=telling if why else "",
    )


def _apart(job: JobEvidence, comm: str, unmoved_s: float) -> list[EvidenceVerdict]:
    """What is wrong in a communicator whose members have no ranks in the job that are known.

    Ranks in the evidence, and in the component's name, are those of the communicator; there are none of the job's.
    """
    ones = job.apart[comm]
    members = tuple(replace(one, rank=one.member, local=False) for one in ones)
    alone = join(Reading(members, ranks=max(one.size for one in ones)), comm, unmoved_s=unmoved_s)
    case = HangCase(alone)
    by_rank = {one.member: one for one in ones if one.pid >= 0}
    return [_of_processes(job, _verdict(alone, case, judged, set(judged.culprits)), by_rank) for judged in case.judge()]


def _of_processes(job: JobEvidence, verdict: EvidenceVerdict, by_rank: dict[int, MemberEvidence]) -> EvidenceVerdict:
    """A verdict on a communicator as one on the job: with processes in place of ranks."""
    comm = verdict.diagnosis.job
    lines = [f"ranks here are those of communicator {comm}, not of the job"]
    for rank in [rank for rank in verdict.culprits or verdict.ahead if rank in by_rank][:_VERDICTS]:
        one = by_rank[rank]
        known = f"rank {one.rank} of the job" if one.rank >= 0 else "its rank in the job is not stated"
        lines.append(f"rank {rank} of {comm} is {process_words(replace(one, rank=-1))}; {known}")
    diagnosis = replace(verdict.diagnosis, job=job.name, evidence=(*verdict.diagnosis.evidence, *lines))
    return replace(
        verdict, diagnosis=diagnosis, culprits=(), never_came=(), only_wait=(), no_file=(), ahead=(), behind=()
    )


def _standings(case: HangCase) -> tuple[Standing, ...]:
    """Who waits where for whom, ranks alike together."""
    edges = case.graph.edges
    alike = grouped(case.graph.pending.values(), lambda op: (op.comm, op.seq, op.kind, edges[op.rank]))
    found: list[Standing] = []
    for (comm, seq, kind, targets), ops in alike.items():
        awaited = sorted(one for one in targets if isinstance(one, int))
        found.append(Standing(comm, seq, kind, tuple(sorted(op.rank for op in ops)), tuple(awaited)))
    return tuple(sorted(found, key=lambda one: (one.comm, one.seq, one.ranks[0])))


def _reached(case: HangCase) -> tuple[Reached, ...]:
    """How far each rank has come in the communicators in which ranks wait, the least first."""
    names = sorted({op.comm for op in case.graph.pending.values()})
    groups = {name: grouped(case.job.comms[name].members.values(), lambda member: member.last) for name in names}
    return tuple(Reached(name, seq, tuple(member.rank for member in by_seq[seq]))
                 for name, by_seq in groups.items() for seq in sorted(by_seq))  # fmt: skip


def _chain(case: HangCase, culprits: tuple[int, ...]) -> tuple[str, ...]:
    """The waiting that leads to a culprit, from the rank farthest from it, one line a rank."""
    pending, edges = case.graph.pending, case.graph.edges
    next_of: dict[int, int] = {}
    known, todo, farthest = set(culprits), list(culprits), -1
    while todo and len(next_of) < len(edges):
        fresh = []
        for rank in pending:
            hit = None if rank in known else next((one for one in todo if one in edges[rank]), None)
            if hit is not None:
                next_of[rank] = hit
                known.add(rank)
                fresh.append(rank)
        todo, farthest = fresh[:_LINKS], min(fresh, default=farthest)
    lines: list[str] = []
    while farthest in next_of and len(lines) < _LINKS:
        op, rank = pending[farthest], farthest
        farthest = next_of[rank]
        lines.append(f"rank {rank} waits in {op.kind or 'operation'} #{op.seq} of {op.comm} for rank {farthest}")
    return tuple(lines)


def _unknown(job: JobEvidence) -> list[str]:
    """What is not known of this job in particular."""
    unknown = list(job.unknown)
    if not job.size_stated:
        least = f", but that it has {job.ranks} ranks or more" if job.ranks else ""
        unknown.append(f"the size of the job: no file states it{least}; --ranks N does")
    if job.no_file and not (_by_ras(job) and len(job.no_file) == job.ranks):
        shown = ", ".join(map(str, job.no_file[:16])) + (" ..." if len(job.no_file) > 16 else "")
        unknown.append(f"ranks of which no file tells anything ({len(job.no_file)} of {job.ranks}): {shown}")
    if guessed := [comm.name for comm in job.comms.values() if not comm.exact]:
        unknown.append(f"not all ranks of {len(guessed)} communicators, such as {guessed[0]}, are known")
    return unknown


def _by_ras(job: JobEvidence) -> bool:
    """Whether a report of RAS, which is of all ranks, was read."""
    return any(source.format == RAS_FORMAT for source in job.reading.sources)


def _state(
    job: JobEvidence, verdicts: Sequence[EvidenceVerdict], *, only_measured: bool, late: bool
) -> tuple[State, str]:
    """What the files show of the job, and if that is nothing, why."""
    if verdicts or any(run.is_wrong for run in job.reading.benchmarks):
        return State.FAULT, ""
    return _without_fault(job, only_measured=only_measured, late=late)


def _without_fault(job: JobEvidence, *, only_measured: bool, late: bool) -> tuple[State, str]:
    """What it means that there is no verdict, and why that is not that the job is healthy, as far as such files go."""
    if only_measured:
        rows = any(run.rows for run in job.reading.benchmarks)
        return (State.MEASURED, "") if rows else (State.UNTOLD, "no benchmark has measured anything")
    members = job.members()
    called = {member.rank for member in members if member.calls or member.transfers}
    why = ""
    if any(log.events for log in job.reading.logs):
        why = "the errors in the logs do not show who is to blame"
    elif not called and any(member.counts for member in members):
        why = "all ranks have called alike, and counts of calls do not show whether the last of them has ended"
    elif not called and _by_ras(job) and not job.reading.problems:
        why = (
            "RAS names no rank that is missing or has called less; whether the last calls have ended, it does not show"
        )
    elif not called:
        why = "no file tells of what any rank has called"
    elif job.reading.problems:
        why = "not all files could be used"
    elif job.no_file or called != set(range(job.ranks)):
        why = f"files tell of the calls of {len(called)} of {job.ranks} ranks"
    elif any(member.newest()[0].state is not CallState.COMPLETED for member in members if member.calls):
        why = "files do not say whether the last calls have ended"
    elif late:
        why = "a rank came late to some operations, too few to say more of it"
    dumped = {member.rank for member in members if member.format == FLIGHT_RECORDER}
    if not (why or dumped):
        why = _not_compared(members)
    healthy = State.HEALTHY if dumped == set(range(job.ranks)) else State.NO_STRAGGLER
    return State.UNTOLD if why else healthy, why


def _not_compared(members: Sequence[Member]) -> str:
    """Why finished operations do not even show that nobody is late; empty if they do."""
    if len({member.rank for member in members}) == 1:
        return "files tell of one rank, and of none to compare it with"
    if not any(call.shown_s() > 0 or call.duration_s >= 0 for member in members for call in member.newest()):
        return "files do not say how long operations took"
    return ""
