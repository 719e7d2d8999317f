"""Hangs in what sources tell: who differs, who never came, who left nothing, and who is inside with everybody else.

Ranks that stopped calling while they wait themselves: a wait-for graph shows them as waiting only. On NCCL a call does
not block, so a rank that waits goes on calling, until its program needs a result. A rank whose newest call has not
ended, and from which others of its group went on, stopped by itself, unless its program alone needs that result.
Therefore a rank that is ahead of another in any group, and so may wait for that one, is none of them.

Mismatches where only counts are known: members that have made as many calls, but not of the same kinds. NCCL's RAS
counts each kind of collective. As sets of counts say nothing of order, only members with as many calls as most are
compared.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from c4bench.c4d.diagnosis import Finding, rank_component
from c4bench.c4d.hang.mismatch import Place, mismatch_finding, side
from c4bench.c4d.hang.wait_for_graph import WaitForGraph
from c4bench.evidence.judging.clocks import since_last_call
from c4bench.evidence.judging.join import OPEN, CommEvidence, JobEvidence
from c4bench.evidence.judging.waiting import TRANSFERS, evidence_graph, record, records_of, transfers_of
from c4bench.model.diagnosis import Cause, Component, OperationSide, Syndrome
from c4bench.model.evidence import Call, CallState, MemberEvidence


class RankFinding(NamedTuple):
    """A finding with the ranks it is about: `culprits` all to blame if `sure`, else one of them.

    `ahead` and `behind` are ranks of which it is not known who is to blame, `waiting` those that only wait where the
    graph does not show it. `hosts` are those of processes whose ranks are not known.
    """

    finding: Finding
    culprits: tuple[int, ...]
    sure: bool
    ahead: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    waiting: tuple[int, ...] = ()


class Stop(NamedTuple):
    """The last call of a rank, and its communicator."""

    comm: str
    call: Call


def stopped_ranks(job: JobEvidence) -> Iterator[tuple[int, Stop]]:
    """Each such rank with its newest call, where the order of calls is known."""
    newest = _newest(job)
    waits = {rank: wait.ranks for transfers in transfers_of(job) for rank, wait in transfers.waits()}
    for rank, stop in sorted(newest.items()):
        open_collective = stop.call.peer < 0 and stop.call.state in OPEN
        if open_collective and _others_went_on(job, rank, stop, newest) and not (waits.get(rank) or _leads(job, rank)):
            yield rank, stop


def _newest(job: JobEvidence) -> dict[int, Stop]:
    """The newest call of each rank, if it is known in which order it made its calls."""
    calls: dict[int, list[Stop]] = {}
    for name, comm in job.comms.items():
        for rank, member in comm.members.items():
            calls.setdefault(rank, []).extend(Stop(name, call) for call in (*member.newest(), *member.transfers[-1:]))
    return {
        rank: max(made, key=lambda stop: stop.call.order)
        for rank, made in calls.items()
        if made and all(stop.call.order >= 0 for stop in made)
    }


def _others_went_on(job: JobEvidence, rank: int, stop: Stop, newest: Mapping[int, Stop]) -> bool:
    """Whether another member has called the same, which has not ended there either, and then something else."""
    for other, member in job.comms[stop.comm].members.items():
        same = member.calls.get(stop.call.seq)
        waits = other != rank and same is not None and same.state in OPEN and other in newest
        if waits and same is not None and newest[other].call.order > same.order:
            return True
    return False


def _leads(job: JobEvidence, rank: int) -> bool:
    """Whether a rank has called more than another member of any of its groups."""
    mine = [comm for comm in job.comms.values() if rank in comm.members]
    return any(comm.members[rank].calls and comm.floor() < comm.members[rank].last for comm in mine)


_NAMED = 16  # as many ranks are named one by one
# Of a rank that may only be late, as one look cannot tell.
_MAY_BE_LATE = 0.7
_REFUTED = "rank {} calling or finishing the operation"


class HangCase:
    """A job at the moment that its sources show."""

    def __init__(self, job: JobEvidence) -> None:
        self.job = job
        self.graph: WaitForGraph = evidence_graph(job)
        self.since_s = min((op.entered_s for op in self.graph.pending.values() if op.entered_s), default=0.0)

    def judge(self) -> list[RankFinding]:
        """A bug of the job explains everything; else ranks that are known to be gone or not to have come, and so on."""
        if bug := self._mismatch():
            return [bug]
        return self._gone() + self._absent() or self._inside() or self._no_file()

    def never_came(self) -> tuple[int, ...]:
        """Ranks of which something is known that others wait for and that wait for nothing."""
        return tuple(sorted(rank for rank in self.graph.absent() if rank not in self.job.no_file))

    def _mismatch(self) -> RankFinding | None:
        job = self.job
        finding = mismatch_finding(
            job.name, self.graph, lambda comm, seq: records_of(job, comm, seq), self.since_s, self._differing()
        )
        if finding is None:
            return unequal_transfer(job) or count_judged(job)
        fewest, second, *_ = sorted(finding.operations, key=lambda op: len(op.ranks))
        if finding.cause is not Cause.COLLECTIVE_ORDER_MISMATCH and len(fewest.ranks) < len(second.ranks):
            return RankFinding(finding, fewest.ranks, sure=True)
        return RankFinding(finding, tuple(sorted({rank for op in finding.operations for rank in op.ranks})), sure=False)

    def _differing(self) -> list[Place]:
        """The first operation of each communicator that its members do not call alike."""
        places = []
        for name, comm in self.job.comms.items():
            counts = Counter(seq for member in comm.members.values() for seq in member.calls)
            for seq in sorted(counts):
                ops = records_of(self.job, name, seq).values()
                if len({(op.kind, op.dtype, op.size_bytes) for op in ops}) > 1:
                    places.append((name, seq))
                    break
        return places

    def _gone(self) -> list[RankFinding]:
        """Ranks and processes that a source itself reports as dead or as not answering, together where a host is."""
        whole, left = gone_members(self.job)
        judged = [self._gone_host(host, ones) for host, ones in sorted(whole.items())]
        quiet = tuple(sorted({one.rank for one in left if one.rank >= 0 and one.status == "unresponsive"}))
        if len(quiet) < 2:
            return judged + [self._gone_one(one) for one in left[:_NAMED]] + self._many(left[_NAMED:])
        # After a process has died, RAS cannot reach some of the others until it has connected to them again.
        evidence = (f"ranks {_some(quiet)} do not answer, of which some may only be cut off by another",)
        others = [one for one in left if one.rank not in quiet]
        judged += [self._gone_one(one) for one in others[:_NAMED]] + self._many(others[_NAMED:])
        return [*judged, self._among(quiet, Cause.PROCESS_STOPPED, evidence)]

    def _gone_host(self, host: str, gone: list[MemberEvidence]) -> RankFinding:
        """A host all of whose processes are gone."""
        dead = all(one.status == "dead" for one in gone)
        counted = f"all {how_many(gone)}" if self.job.per_host else str(how_many(gone))
        word = "dead" if dead else "unresponsive"
        evidence = (f"{gone[0].source} reports {counted} processes on {host} as {word}: {places_words(gone)}",)
        confidence = 0.9 if dead and self.job.per_host else 0.8
        ranks = tuple(sorted(one.rank for one in gone if one.rank >= 0))
        finding = self._finding(Component("host", host), _GONE[word], confidence, evidence, f"of {host}")
        return RankFinding(finding, ranks, sure=True, hosts=(host,))

    def _gone_one(self, one: MemberEvidence) -> RankFinding:
        """A rank that a source reports; its host, where its rank is not known."""
        evidence = (f"{one.source} reports {process_words(one)} as {one.status}",)
        if one.rank >= 0:
            # That a process answers late is usual where hosts are busy; that RAS calls it dead is not.
            return self._of_rank(one.rank, _GONE[one.status], 0.9 if one.status == "dead" else 0.8, evidence)
        host = Component("host", one.host)
        finding = self._finding(host, _GONE[one.status], 0.8, evidence, f"of {one.host}")
        return RankFinding(finding, (), sure=False, hosts=(one.host,) if one.host else ())

    def _many(self, gone: list[MemberEvidence]) -> list[RankFinding]:
        """More that are gone than are named one by one."""
        if not gone:
            return []
        evidence = (f"{len(gone)} more processes are reported as dead or unresponsive: {places_words(gone)}",)
        finding = self._finding(
            Component("job", self.job.name), Cause.PROCESS_STOPPED, 0.8 / len(gone), evidence, "of these processes"
        )
        return [RankFinding(finding, tuple(sorted({one.rank for one in gone if one.rank >= 0})), sure=False)]

    def _absent(self) -> list[RankFinding]:
        """Ranks that did not call the operation in which others wait."""
        gone = {one.rank for one in self.job.gone}
        came = self.never_came()
        if len(came) > _NAMED or (len(came) > 1 and self._counted(came)):
            ahead = self._ahead(came)
            if ahead:
                return [self._undecided(ahead, came)]
            evidence = (f"{len(self.graph.pending)} ranks wait for others, which have called less",)
            return [self._among(came, Cause.NOT_ENTERED, evidence)]
        if came:
            stopped = [self._stopped_after(rank, stop) for rank, stop in stopped_ranks(self.job) if rank not in came]
            return [self._of_rank(rank, Cause.NOT_ENTERED, self._sure_of(rank), self._missed(rank))
                    for rank in came] + stopped  # fmt: skip
        silent = tuple(sorted(r for r in self.graph.absent() if r in self.job.no_file and r not in gone))
        if not silent:
            return []
        evidence = (f"{len(self.graph.pending)} ranks wait, and all of which anything is known have come",)
        return [self._among(silent, Cause.NOT_ENTERED, evidence)]

    def _sure_of(self, rank: int) -> float:
        """How likely a rank is to blame that others wait for: less where one look at counts may have met it late."""
        members = [comm.members[rank] for comm in self.job.comms.values() if rank in comm.members]
        late = all(member.counts for member in members) and rank not in self.job.unmoved
        return _MAY_BE_LATE if late else 0.9

    def _undecided(self, ahead: tuple[int, ...], behind: tuple[int, ...]) -> RankFinding:
        """Few have called more than many: who is to blame is not in counts of calls."""
        evidence = (
            f"ranks {_some(ahead)} are ahead and wait for ranks {_some(behind)}, which have called less, or they have "
            "called what nobody else does",
            "who is to blame is not in these counts",
        )
        confidence = 0.8 / (len(ahead) + len(behind))
        job = Component("job", self.job.name)
        finding = self._finding(job, Cause.NOT_ENTERED, confidence, evidence, _some(behind))
        return RankFinding(finding, (), sure=False, ahead=ahead, behind=behind)

    def _stopped_after(self, rank: int, stop: Stop) -> RankFinding:
        call = f"{stop.call.kind or 'operation'} #{stop.call.seq} of {stop.comm}"
        evidence = (f"rank {rank} has made no call after {call}, which others have called and gone on from",)
        component = rank_component(self.job.name, rank)
        return RankFinding(
            self._finding(component, Cause.NOT_ENTERED, _MAY_BE_LATE, evidence, str(rank)), (rank,), sure=False
        )

    def _counted(self, ranks: Iterable[int]) -> bool:
        """Whether only counts of calls are known of some ranks: these may be inside an operation together."""
        wanted = set(ranks)
        return any(
            comm.members[rank].counts for comm in self.job.comms.values() for rank in wanted & comm.members.keys()
        )

    def _ahead(self, late: tuple[int, ...]) -> tuple[int, ...]:
        """The ranks that wait for those that are late, if these are fewer and only counts of calls are known."""
        waiting = tuple(sorted(rank for rank in self.graph.pending if not self.graph.edges[rank].isdisjoint(late)))
        return waiting if self._counted(late) and len(waiting) < len(late) else ()

    def _missed(self, rank: int) -> tuple[str, ...]:
        waiting = Counter((op.comm, op.seq, op.kind) for r, op in self.graph.pending.items()
                          if rank in self.graph.edges[r])  # fmt: skip
        lines = []
        for (comm, seq, kind), count in sorted(waiting.items())[:4]:
            where = f"{count} ranks wait in {kind or 'operation'} #{seq} of {comm}"
            member = self.job.comms[comm].members.get(rank)
            if kind in TRANSFERS:
                lines.append(f"{where}, whose other side rank {rank} has not called")
            elif member:
                lines.append(f"{where}; rank {rank} came to #{member.last}")
        gap = since_last_call(self.job, rank)
        if gap is not None:
            lines.append(f"rank {rank} made its last call {gap.time_s:.3g} s before the last one of any rank, "
                         f"give or take {gap.error_s:.2g} s")  # fmt: skip
        return tuple(lines)

    def _inside(self) -> list[RankFinding]:
        """All have called the operation that the others wait for, and nobody has finished it."""
        graph = self.graph
        inside = tuple(sorted(rank for rank in graph.pending if not graph.edges[rank]))
        if not inside or graph.absent():
            return []
        awaited = {rank for rank in graph.sinks() if isinstance(rank, int)} or set(inside)
        ranks = tuple(sorted(self._together(awaited, inside)))
        evidence = ["every member has called the operation, and none of these has finished it"]
        behind = [rank for rank in ranks if rank in graph.pending and self._state(rank) is CallState.SCHEDULED]
        if 0 < len(behind) < len(ranks):
            evidence.append(f"ranks {_some(behind)} have only scheduled it, the others have started it")
        return [self._among(ranks, Cause.STUCK_INSIDE, evidence, Syndrome.COMMUNICATION_HANG)]

    def _together(self, awaited: set[int], inside: tuple[int, ...]) -> set[int]:
        """The ranks that are awaited, with those inside the same operations: any of them may hold it up."""
        places = {(op.comm, op.seq) for rank, op in self.graph.pending.items() if rank in awaited}
        pending = self.graph.pending
        same = {rank for rank in inside if (pending[rank].comm, pending[rank].seq) in places}
        met = {rank: wait.met for one in transfers_of(self.job) for rank, wait in one.waits()}
        return awaited.union(same, *(met.get(rank, ()) for rank in awaited))

    def _state(self, rank: int) -> CallState:
        op = self.graph.pending[rank]
        call = None if op.kind in TRANSFERS else self.job.comms[op.comm].members[rank].calls.get(op.seq)
        return call.state if call else CallState.UNKNOWN

    def _no_file(self) -> list[RankFinding]:
        """Ranks that left nothing, though nobody is known to wait for them."""
        gone = {one.rank for one in self.job.gone}
        silent = tuple(rank for rank in self.job.no_file if rank not in gone)
        if not silent or len(silent) == self.job.ranks or not self._ended_oddly():
            return []
        evidence = (f"ranks {_some(silent)} left no file; all others have called the same operations",)
        return [self._among(silent, Cause.NOT_ENTERED, evidence, confidence=0.5)]

    def _ended_oddly(self) -> bool:
        """Whether the newest calls may have ended by an error: sources that know completion say they have not."""
        newest = [member.calls[max(member.calls)].state for comm in self.job.comms.values()
                  for member in comm.members.values() if member.calls]  # fmt: skip
        return any(state is not CallState.COMPLETED for state in newest)

    def _of_rank(self, rank: int, cause: Cause, confidence: float, evidence: Iterable[str]) -> RankFinding:
        component = rank_component(self.job.name, rank)
        finding = self._finding(component, cause, confidence, evidence, str(rank))
        return RankFinding(finding, (rank,), sure=confidence > _MAY_BE_LATE)

    def _among(
        self,
        ranks: tuple[int, ...],
        cause: Cause,
        evidence: Iterable[str],
        syndrome: Syndrome = Syndrome.NON_COMMUNICATION_HANG,
        confidence: float = 0.8,
    ) -> RankFinding:
        """One of `ranks`; a rank is the component only where it is the only one."""
        parts = tuple(rank_component(self.job.name, rank) for rank in ranks)
        one = len(parts) == 1
        component = parts[0] if one else Component("job", self.job.name)
        finding = self._finding(component, cause, confidence / len(parts), evidence, _some(ranks), syndrome,
                                () if one else parts)  # fmt: skip
        return RankFinding(finding, ranks, sure=False)

    def _finding(
        self,
        component: Component,
        cause: Cause,
        confidence: float,
        evidence: Iterable[str],
        ranks: str,
        syndrome: Syndrome = Syndrome.NON_COMMUNICATION_HANG,
        alternatives: tuple[Component, ...] = (),
    ) -> Finding:
        figures = {"waiting_ranks": float(len(self.graph.pending))}
        return Finding(
            syndrome, cause, component, self.since_s, confidence, tuple(evidence), _REFUTED.format(ranks), figures,
            alternatives, self._operations(),
        )  # fmt: skip

    def _operations(self) -> tuple[OperationSide, ...]:
        """The operations in which most ranks wait."""
        places: dict[Place, list[int]] = {}
        for rank, op in self.graph.pending.items():
            places.setdefault((op.comm, op.seq), []).append(rank)
        most = sorted(places.values(), key=lambda ranks: (-len(ranks), ranks))[:4]
        return tuple(side(self.graph.pending[ranks[0]], ranks) for ranks in most)


_GONE = {"dead": Cause.PROCESS_ENDED, "unresponsive": Cause.PROCESS_STOPPED}


def _some(ranks: Iterable[int]) -> str:
    shown = [str(rank) for rank in ranks]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")


Counts = tuple[tuple[str, int], ...]


def count_mismatch(job: JobEvidence) -> tuple[Finding, tuple[int, ...], bool] | None:
    """The finding, the ranks that differ, and whether these are surely to blame; None if all agree."""
    for comm in job.comms.values():
        sides = _sides(comm)
        if len(sides) < 2:
            continue
        fewest, most = sides[-1], sides[0]
        operations = tuple(_side(comm, counts, ranks) for counts, ranks in (fewest, most))
        evidence = tuple(f"ranks {', '.join(map(str, op.ranks[:8]))} called {op.profiling_name} of {comm.name}"
                         for op in operations)  # fmt: skip
        sure = len(fewest[1]) < len(most[1])
        finding = Finding(
            Syndrome.NON_COMMUNICATION_HANG,
            Cause.COLLECTIVE_TYPE_MISMATCH,
            Component("job", job.name),
            0.0,
            0.8,
            evidence,
            "the same program ending well on the same ranks",
            {"sides": float(len(sides))},
            operations=operations,
        )
        return finding, fewest[1] if sure else tuple(sorted(fewest[1] + most[1])), sure
    return None


def _sides(comm: CommEvidence) -> list[tuple[Counts, tuple[int, ...]]]:
    """The ranks by their counts, most ranks first, of those that have made as many calls as most."""
    members = [member for member in comm.members.values() if member.counts]
    if not members:
        return []
    usual = Counter(member.last for member in members).most_common(1)[0][0]
    by_counts: dict[Counts, list[int]] = {}
    for member in members:
        if member.last == usual:
            by_counts.setdefault(tuple(sorted(member.counts.items())), []).append(member.rank)
    return sorted(((counts, tuple(ranks)) for counts, ranks in by_counts.items()), key=lambda one: -len(one[1]))


def _side(comm: CommEvidence, counts: Counts, ranks: tuple[int, ...]) -> OperationSide:
    called = ", ".join(f"{count} {kind}" for kind, count in counts if count)
    return OperationSide(comm.name, sum(count for _, count in counts), called, "", -1, "started", ranks)


def unequal_transfer(job: JobEvidence) -> RankFinding | None:
    """A send that meets a receive of another size; either rank may be wrong."""
    found = next((one for transfers in transfers_of(job) for one in transfers.unequal()), None)
    if found is None:
        return None
    sides = ((found.sender, found.send), (found.receiver, found.recv))
    evidence = tuple(f"rank {rank} called {call.kind} #{call.seq} of {found.comm} with {call.size_bytes} bytes"
                     for rank, call in sides)  # fmt: skip
    operations = tuple(side(record(found.comm, rank, call), (rank,)) for rank, call in sides)
    finding = Finding(
        Syndrome.NON_COMMUNICATION_HANG, Cause.SIZE_OR_SYNTAX_MISMATCH, Component("job", job.name), 0.0, 0.8, evidence,
        "the same program ending well on the same ranks", {"sides": 2.0}, operations=operations,
    )  # fmt: skip
    return RankFinding(finding, tuple(sorted((found.sender, found.receiver))), sure=False)


def count_judged(job: JobEvidence) -> RankFinding | None:
    """The mismatch that counts of calls show, if any."""
    found = count_mismatch(job)
    return RankFinding(found[0], found[1], sure=found[2]) if found else None


_SHOWN = 8


def gone_members(job: JobEvidence) -> tuple[dict[str, list[MemberEvidence]], list[MemberEvidence]]:
    """The hosts of which all processes are gone, as far as is known, with these; and all others that are gone.

    A rank of which another source knows what it called is none of them. Where ranks of a host are known by number and
    its processes by themselves, which is which is not known, and the others are the ranks.
    """
    known = {rank for comm in job.comms.values() for rank in comm.members}
    found = {(one.rank, one.host, one.pid): one for one in job.gone if one.rank not in known}
    gone = [one for _, one in sorted(found.items())]
    by_host: dict[str, list[MemberEvidence]] = {}
    for one in gone:
        by_host.setdefault(one.host, []).append(one)
    alive = {job.hosts.get(rank) for rank in known}
    whole = {host: ones for host, ones in by_host.items() if host and host not in alive and _is_whole(job, ones)}
    by_rank = {one.host for one in gone if one.rank >= 0 > one.pid}
    left = [one for one in gone if one.host not in whole and not (one.rank < 0 and one.host in by_rank)]
    return whole, left


def _is_whole(job: JobEvidence, gone: list[MemberEvidence]) -> bool:
    """Whether these are all processes of a host, of several."""
    count = how_many(gone)
    return count > 1 and (not job.per_host or count >= job.per_host)


def how_many(gone: list[MemberEvidence]) -> int:
    """How many processes these are; of some only the rank may be known, and of the same the process id by itself."""
    alone = sum(one.rank < 0 for one in gone)
    return max(len(gone) - alone, sum(one.pid >= 0 for one in gone))


def process_words(one: MemberEvidence) -> str:
    """Which process a source tells of: its id, its host, its GPU, and its rank in a communicator, as far as known."""
    rank = f"rank {one.rank}, " if one.rank >= 0 else ""
    process = f"process {one.pid}" if one.pid >= 0 else "a process"
    gpu = f", GPU {one.gpu}" if one.gpu >= 0 else ""
    return f"{rank}{process} on {one.host or 'an unknown host'}{gpu}"


def places_words(gone: list[MemberEvidence]) -> str:
    """Several of these, cut where they are many."""
    return "; ".join(process_words(one) for one in gone[:_SHOWN]) + (
        f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
    )
