"""Hangs in what sources tell: who differs, who never came, who left nothing, and who is inside with everybody else.

The ranks to blame are the fewest that explain why all others wait (`standstill.py`): those that others wait for and
that wait for nothing, those that stopped where others called on (`ran_on.py`), and, of those of which nothing is known,
the ones that hold up what everybody else runs.

Mismatches where only counts are known: members that have made as many calls, but not of the same kinds. NCCL's RAS
counts each kind of collective. As sets of counts say nothing of order, only members with as many calls as most are
compared.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from c4bench.c4d.diagnosis import Finding, rank_component
from c4bench.c4d.hang.mismatch import mismatch_finding, side
from c4bench.c4d.hang.wait_for_graph import Node, WaitForGraph
from c4bench.evidence.judging.clocks import since_last_call
from c4bench.evidence.judging.join import CommEvidence, JobEvidence, grouped
from c4bench.evidence.judging.ran_on import WENT_ON, stopped_by_themselves
from c4bench.evidence.judging.standstill import OpenOp, Standstill, Unknown, record, records_of
from c4bench.evidence.judging.transfers import TRANSFERS
from c4bench.model.diagnosis import Cause, Component, Diagnosis, OperationSide, Syndrome
from c4bench.model.evidence import CallState, MemberEvidence

_NAMED = 16  # as many ranks are named one by one
_SHOWN = 8
# Of a rank that may only be late, as one look cannot tell.
_MAY_BE_LATE = 0.7
_GONE = {"dead": Cause.PROCESS_ENDED, "unresponsive": Cause.PROCESS_STOPPED}


class Ground(StrEnum):
    """Why a rank is named: it waits for nothing, it stopped where others called on, or only it can hold up the rest."""

    ABSENT = "absent"
    RAN_ON = "ran_on"
    UNKNOWN = "unknown"


# Of the ranks that were named alone on each ground in the 86 jobs of `python -m tools foreign --seed 1000 --trials 86`,
# which rules were tuned on: how many were to blame, and of how many. All files were there; for the last ground, a tenth
# was missing.
_SEEN = {Ground.ABSENT: (109, 109), Ground.RAN_ON: (22, 22), Ground.UNKNOWN: (1, 1)}
_Z95 = 1.96  # standard deviations
_ALL_OTHERS = "and all others of which anything is known have come"


def ground_of(diagnosis: Diagnosis) -> Ground | None:
    """On which ground a rank is named as not having come; None for other findings."""
    if diagnosis.cause is not Cause.NOT_ENTERED:
        return None
    said = " ".join(diagnosis.evidence)
    if _ALL_OTHERS in said:
        return Ground.UNKNOWN
    return Ground.RAN_ON if WENT_ON in said else Ground.ABSENT


def _chance(ground: Ground) -> float:
    """How likely a rank that is named on this ground is to blame, at least.

    The lower end of the 95 % interval of the share in `_SEEN` (Wilson 1927), which is low where few were counted.
    """
    right, named = _SEEN[ground]
    share, spread = right / named, _Z95**2 / named
    return (share + spread / 2 - math.sqrt(spread * (share * (1 - share) + spread / 4))) / (1 + spread)


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


class HangCase:
    """A job at the moment that its sources show.

    `never_came` are ranks of which something is known that others wait for and that wait for nothing.
    """

    def __init__(self, job: JobEvidence) -> None:
        self.job = job
        self._standstill = Standstill(job)
        self.graph = self._standstill.graph()
        self.never_came = tuple(self._standstill.absent())
        # Ranks of which only counts are known in any of their communicators, and in some are not.
        self._counted = {member.rank for member in job.members() if member.counts}
        self._called = {member.rank for member in job.members() if not member.counts}
        self._gone = {one.rank for one in job.gone}
        self._silent = tuple(rank for rank in job.no_file if rank not in self._gone)
        self._since_s = min((op.entered_s for op in self.graph.pending.values() if op.entered_s), default=0.0)
        self._whole_job = Component("job", job.name)

    def judge(self) -> list[RankFinding]:
        """A bug of the job explains everything; else ranks that are known to be gone or not to have come, and so on."""
        if bug := self._mismatch():
            return [bug]
        found = self._reported_gone() + self._behind()
        inside = [] if found else self._inside()
        holding = {rank for judged in (*found, *inside) for rank in (*judged.culprits, *judged.behind)}
        unknown = self._unknown(holding | self._gone, or_inside=not found)
        return found + inside + unknown or self._no_file()

    def _mismatch(self) -> RankFinding | None:
        """Ranks that call differently: the fewer, or else who call what like communicators do not, are to blame.

        If neither shows who it is, or in a cycle, it is one of them all.
        """
        job = self.job
        places = {
            (name, seq) for name, comm in job.comms.items() for member in comm.members.values() for seq in member.calls
        }
        finding = mismatch_finding(job.name, self._deadlock(), partial(records_of, job), self._since_s, places)
        finding = finding or next(self._called_unlike(), None)
        if finding is None:
            return None
        weight = {op: (len(op.ranks), self._called_alike(op)) for op in finding.operations}
        sides = sorted(weight, key=lambda op: weight[op])
        if finding.cause is not Cause.COLLECTIVE_ORDER_MISMATCH and weight[sides[0]] < weight[sides[-1]]:
            return RankFinding(finding, sides[0].ranks, sure=True)
        return RankFinding(finding, tuple(sorted({rank for op in sides for rank in op.ranks})), sure=False)

    def _called_alike(self, op: OperationSide) -> tuple[int, bool]:
        """How many ranks of other communicators of the kind have called the same with the same number.

        And whether it is called anywhere else in communicators of the kind.
        """
        shape = self.job.comms[op.pg_name].shape
        places = ((comm.name, call.seq) for comm in self.job.comms.values() if comm.shape == shape
                  for member in comm.members.values() for call in member.calls.values()
                  if call.kind == op.profiling_name)  # fmt: skip
        elsewhere = [seq for comm, seq in places if (comm, seq) != (op.pg_name, op.collective_seq_id)]
        alike = sum(seq == op.collective_seq_id for seq in elsewhere)
        return alike, bool(elsewhere)

    def _deadlock(self) -> WaitForGraph:
        """The part of the graph that waits for nobody outside it, nor for an operation that all run."""
        roots = {*self.never_came, *self.job.no_file, *(rank for op in self._standstill.inside() for rank in op.calls)}
        left = self.graph.pending.keys() - self._standstill.explained_by(roots) - roots
        edges: dict[Node, frozenset[Node]] = {rank: self.graph.edges[rank] & left for rank in left}
        return WaitForGraph({rank: self.graph.pending[rank] for rank in sorted(left)}, edges)

    def _called_unlike(self) -> Iterator[Finding]:
        """Sends that meet a receive of another size, and members that have made as many calls, but not of one kind."""
        for sides in self._standstill.transfers.unequal():
            ops = [record(*one) for one in sides]
            words = [f"rank {op.rank} called {op.kind} #{op.seq} of {op.comm} with {op.size_bytes} bytes" for op in ops]
            operations = [side(op, (op.rank,)) for op in ops]
            yield self._bug(Cause.SIZE_OR_SYNTAX_MISMATCH, words, operations, 2)
        for comm in self.job.comms.values():
            by_counts = _sides_by_counts(comm)
            if len(by_counts) > 1:
                operations = [by_counts[-1], by_counts[0]]
                words = [f"ranks {', '.join(map(str, op.ranks[:_SHOWN]))} called {op.profiling_name} of {comm.name}"
                         for op in operations]  # fmt: skip
                yield self._bug(Cause.COLLECTIVE_TYPE_MISMATCH, words, operations, len(by_counts))

    def _bug(self, cause: Cause, evidence: list[str], operations: list[OperationSide], sides: int) -> Finding:
        return Finding(
            Syndrome.NON_COMMUNICATION_HANG, cause, self._whole_job, 0.0, 0.8, tuple(evidence),
            "the same program ending well on the same ranks", {"sides": float(sides)}, operations=tuple(operations),
        )  # fmt: skip

    def _reported_gone(self) -> list[RankFinding]:
        """Ranks and processes that a source itself reports as dead or as not answering, together where a host is."""
        whole, left = gone_members(self.job)
        found = [self._gone_host(host, ones) for host, ones in sorted(whole.items())]
        quiet = sorted({one.rank for one in left if one.rank >= 0 and one.status == "unresponsive"})
        # After a process has died, RAS cannot reach some of the others until it has connected to them again.
        cut_off = quiet if len(quiet) > 1 else []
        single = [one for one in left if one.rank not in cut_off]
        found += [self._gone_one(one) for one in single[:_NAMED]]
        if more := single[_NAMED:]:
            ranks = tuple(sorted({one.rank for one in more if one.rank >= 0}))
            places = _some([*map(process_words, more)], "; ")
            words = f"{len(more)} more processes are reported as dead or unresponsive: {places}"
            found.append(self._found(self._whole_job, Cause.PROCESS_STOPPED, 0.8 / len(more), [words],
                                     "of these processes", ranks))  # fmt: skip
        if cut_off:
            words = f"ranks {_some(quiet)} do not answer, of which some may only be cut off by another"
            found.append(self._among(quiet, Cause.PROCESS_STOPPED, [words]))
        return found

    def _gone_host(self, host: str, gone: list[MemberEvidence]) -> RankFinding:
        """A host all of whose processes are gone."""
        word = "dead" if all(one.status == "dead" for one in gone) else "unresponsive"
        counted = f"all {how_many(gone)}" if self.job.reading.per_host else how_many(gone)
        places = _some([*map(process_words, gone)], "; ")
        words = f"{gone[0].source} reports {counted} processes on {host} as {word}: {places}"
        confidence = 0.9 if word == "dead" and self.job.reading.per_host else 0.8
        ranks = tuple(sorted(one.rank for one in gone if one.rank >= 0))
        found = self._found(Component("host", host), _GONE[word], confidence, [words], f"of {host}", ranks)
        return found._replace(sure=True, hosts=(host,))

    def _gone_one(self, one: MemberEvidence) -> RankFinding:
        """A rank that a source reports; its host, where its rank is not known."""
        words = [f"{one.source} reports {process_words(one)} as {one.status}"]
        if one.rank >= 0:
            # That a process answers late is usual where hosts are busy; that RAS calls it dead is not.
            return self._of_rank(one.rank, _GONE[one.status], 0.9 if one.status == "dead" else 0.8, words)
        found = self._found(Component("host", one.host), _GONE[one.status], 0.8, words, f"of {one.host}")
        return found._replace(hosts=(one.host,) if one.host else ())

    def _behind(self) -> list[RankFinding]:
        """Ranks that did not call the operation in which others wait."""
        came, waiting = self.never_came, len(self.graph.pending)
        if len(came) > _NAMED or (len(came) > 1 and not self._counted.isdisjoint(came)):
            words = [f"{waiting} ranks wait for others, which have called less"]
            return [self._undecided(came) or self._among(came, Cause.NOT_ENTERED, words)]
        # One look at counts may have met a rank that is only late.
        sure = self._called | self.job.unmoved
        found = [self._of_rank(rank, Cause.NOT_ENTERED, _chance(Ground.ABSENT) if rank in sure else _MAY_BE_LATE,
                               self._missed(rank)) for rank in came]  # fmt: skip
        stopped = stopped_by_themselves(self._standstill) if came or self._silent else ()
        found += [self._of_rank(one.rank, Cause.NOT_ENTERED, _chance(Ground.RAN_ON), [one.words]) for one in stopped]
        return found

    def _unknown(self, holding: set[int], *, or_inside: bool) -> list[RankFinding]:
        """Ranks of which nothing is known and others wait for, though none of those that are found holds them up.

        Where no rank is known to have stopped, `or_inside`, those that run the operation may as well hang in it. Else a
        rank of which nothing is known may wait for one that has stopped, in a call that no file shows. If all that left
        no file are suspects, that they left none is a sign too: then only those are added of which it is known that
        they have not started what others have.
        """
        words = [f"{len(self.graph.pending)} ranks wait, {_ALL_OTHERS}"]
        unknown, found = Unknown(self._standstill), list[RankFinding]()
        groups = unknown.suspects(holding)
        is_sign = {rank for group in groups for rank in group}.issuperset(self._silent)
        for group in groups:
            inside = unknown.may_be_inside(group, late=is_sign) if or_inside else set[int]()
            waited_for = set[int]() if or_inside or is_sign or len(group) > 1 else holding
            ranks = sorted({*group, *inside, *waited_for})
            chance = _chance(Ground.UNKNOWN) if len(ranks) == 1 else 0.8
            found.append(self._among(ranks, Cause.NOT_ENTERED, words, confidence=chance))
        return found

    def _undecided(self, behind: tuple[int, ...]) -> RankFinding | None:
        """Where few have called more than many, and only counts are known: who is to blame is not in these."""
        ahead = tuple(sorted(rank for rank in self.graph.pending if not self.graph.edges[rank].isdisjoint(behind)))
        if not 0 < len(ahead) < len(behind) or self._counted.isdisjoint(behind):
            return None
        words = (f"ranks {_some(ahead)} are ahead and wait for ranks {_some(behind)}, which have called less, or they "
                 "have called what nobody else does")  # fmt: skip
        evidence = (words, "who is to blame is not in these counts")
        confidence = 0.8 / (len(ahead) + len(behind))
        found = self._found(self._whole_job, Cause.NOT_ENTERED, confidence, evidence, _some(behind))
        return found._replace(ahead=ahead, behind=behind)

    def _missed(self, rank: int) -> list[str]:
        """Who waits for a rank, and where."""
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
        if gap := since_last_call(self.job, rank):
            lines.append(f"rank {rank} made its last call {gap[0]:.3g} s before the last one of any rank, "
                         f"give or take {gap[1]:.2g} s")  # fmt: skip
        return lines

    def _inside(self) -> list[RankFinding]:
        """All have called the operation that the others wait for, and nobody has finished it."""
        inside = self._standstill.inside()
        ranks = sorted({rank for op in inside for rank in (*op.calls, *op.met)})
        if not ranks:
            return []
        evidence = ["every member has called the operation, and none of these has finished it"]
        late = sorted({rank for op in inside for rank in _not_started(op)})
        if late:
            evidence.append(f"ranks {_some(late)} have only scheduled it, the others have started it")
        return [self._among(late or ranks, Cause.STUCK_INSIDE, evidence, syndrome=Syndrome.COMMUNICATION_HANG)]

    def _no_file(self) -> list[RankFinding]:
        """Ranks that left nothing, though nobody is known to wait for them."""
        silent = self._silent
        newest = (member.calls[max(member.calls)].state for member in self.job.members() if member.calls)
        # Where all newest calls are known to have ended well, the job has not stopped by an error.
        if not silent or len(silent) == self.job.ranks or all(state is CallState.COMPLETED for state in newest):
            return []
        words = f"ranks {_some(silent)} left no file; all others have called the same operations"
        return [self._among(silent, Cause.NOT_ENTERED, [words], confidence=0.5)]

    def _of_rank(self, rank: int, cause: Cause, confidence: float, evidence: Iterable[str]) -> RankFinding:
        found = self._found(rank_component(self.job.name, rank), cause, confidence, evidence, str(rank), (rank,))
        return found._replace(sure=confidence > _MAY_BE_LATE)

    def _among(
        self, ranks: Sequence[int], cause: Cause, evidence: Iterable[str], *,
        syndrome: Syndrome = Syndrome.NON_COMMUNICATION_HANG, confidence: float = 0.8,
    ) -> RankFinding:  # fmt: skip
        """One of `ranks`; a rank is the component only where it is the only one."""
        parts = tuple(rank_component(self.job.name, rank) for rank in ranks)
        component, others = (parts[0], ()) if len(parts) == 1 else (self._whole_job, parts)
        found = self._found(component, cause, confidence / len(parts), evidence, _some(ranks), tuple(ranks))
        return found._replace(finding=replace(found.finding, syndrome=syndrome, alternatives=others))

    def _found(
        self, component: Component, cause: Cause, confidence: float, evidence: Iterable[str], whose: str,
        ranks: tuple[int, ...] = (),
    ) -> RankFinding:  # fmt: skip
        """A finding on one of `ranks`, with the operations in which most ranks wait; `whose` calls would refute it."""
        pending = self.graph.pending
        places = grouped(pending, lambda rank: (pending[rank].comm, pending[rank].seq))
        most = sorted(places.values(), key=lambda alike: (-len(alike), alike))[:4]
        finding = Finding(
            Syndrome.NON_COMMUNICATION_HANG, cause, component, self._since_s, confidence, tuple(evidence),
            f"rank {whose} calling or finishing the operation", {"waiting_ranks": float(len(pending))},
            operations=tuple(side(pending[alike[0]], alike) for alike in most),
        )  # fmt: skip
        return RankFinding(finding, ranks, sure=False)


def _not_started(op: OpenOp) -> list[int]:
    """The members that have not started a collective, where others have."""
    late = [rank for rank, call in op.calls.items() if call.state is CallState.SCHEDULED and call.kind not in TRANSFERS]
    return late if any(call.state is CallState.STARTED for call in op.calls.values()) else []


def _sides_by_counts(comm: CommEvidence) -> list[OperationSide]:
    """The ranks by their counts, most ranks first, of those that have made as many calls as most."""
    members = [member for member in comm.members.values() if member.counts]
    usual = Counter(member.last for member in members).most_common(1)
    compared = (member for member in members if member.last == usual[0][0])
    by_counts = grouped(compared, lambda member: tuple(sorted(member.counts.items())))
    sides = []
    for counts, alike in sorted(by_counts.items(), key=lambda one: -len(one[1])):
        called = ", ".join(f"{count} {kind}" for kind, count in counts if count)
        made = sum(count for _, count in counts)
        ranks = tuple(member.rank for member in alike)
        sides.append(OperationSide(comm.name, made, called, "", -1, "started", ranks))
    return sides


def gone_members(job: JobEvidence) -> tuple[dict[str, list[MemberEvidence]], list[MemberEvidence]]:
    """The hosts of which all processes are gone, as far as is known, with these; and all others that are gone.

    A rank of which another source knows what it called is none of them. Where ranks of a host are known by number and
    its processes by themselves, which is which is not known, and the others are the ranks.
    """
    known = {member.rank for member in job.members()}
    found = {(one.rank, one.host, one.pid): one for one in job.gone if one.rank not in known}
    gone = [one for _, one in sorted(found.items())]
    by_host = grouped(gone, lambda one: one.host)
    alive = {job.hosts.get(rank) for rank in known} | {""}
    least = max(2, job.reading.per_host)
    whole = {host: ones for host, ones in by_host.items() if host not in alive and how_many(ones) >= least}
    by_rank = {one.host for one in gone if one.rank >= 0 > one.pid}
    left = [one for one in gone if one.host not in whole and not (one.rank < 0 and one.host in by_rank)]
    return whole, left


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


def _some(parts: Sequence[object], between: str = ", ") -> str:
    """Several ranks or processes, cut where they are many."""
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return between.join(map(str, parts[:_SHOWN])) + more
