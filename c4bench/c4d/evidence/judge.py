"""From what was read to the report: verdicts with ranks, hosts, the chain of waiting, and other tools' words."""

from c4bench.c4d.evidence.clocks import on_one_clock
from c4bench.c4d.evidence.hangs import HangCase, Judged
from c4bench.c4d.evidence.join import JobEvidence, join
from c4bench.c4d.evidence.slowness import stragglers
from c4bench.c4d.evidence.words import ras_words, torchfrtrace_words
from c4bench.c4d.hang.wait_for_graph import Node, WaitForGraph
from c4bench.model.evidence import EvidenceReport, EvidenceVerdict, Reached, Reading, Standing

_LINKS = 12  # of a chain


def judge(reading: Reading, name: str = "job", ranks: int = 0) -> EvidenceReport:
    """What the files say is wrong with a job. `ranks` is its size, where the caller knows it."""
    job = on_one_clock(join(reading, name, ranks))
    case = HangCase(job)
    found = case.judge() or stragglers(job)
    verdicts = tuple(_verdict(job, case, judged) for judged in found)
    cannot = dict.fromkeys((*reading.cannot_tell, *_unknown(job)))
    return EvidenceReport(
        job.ranks,
        reading.sources,
        verdicts,
        (*reading.problems, *job.problems),
        tuple(cannot),
        reading.benchmarks,
        _standings(case.graph),
        job.clocks,
        _reached(job, case.graph),
    )


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


def _verdict(job: JobEvidence, case: HangCase, judged: Judged) -> EvidenceVerdict:
    diagnosis = judged.finding.stamped(job.name, job.latest_s, job.latest_s)
    return EvidenceVerdict(
        diagnosis,
        judged.culprits,
        judged.sure,
        case.never_came(),
        tuple(sorted(case.graph.pending.keys() - set(judged.culprits))),
        job.no_file,
        tuple(sorted({job.hosts[rank] for rank in judged.culprits if rank in job.hosts})),
        chain(case.graph, judged.culprits),
        torchfrtrace_words(diagnosis, job.no_file),
        ras_words(diagnosis),
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
    if job.no_file:
        shown = ", ".join(map(str, job.no_file[:16])) + (" ..." if len(job.no_file) > 16 else "")
        unknown.append(f"ranks of which no file tells anything ({len(job.no_file)} of {job.ranks}): {shown}")
    guessed = [comm.name for comm in job.comms.values() if not comm.exact]
    if guessed:
        unknown.append(f"not all ranks of {len(guessed)} communicators, such as {guessed[0]}, are known")
    return unknown
