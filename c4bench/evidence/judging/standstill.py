"""Who waits where, and for whom: the operations of a job that have not ended, from how far each rank has come.

What each rank is known to have called in each of its communicators is a vector of progress. A rank is behind in an
operation that others wait in if it has not called it, or has called it but waits in what it called before. A rank waits
in all of its calls that have not ended, as NCCL's calls do not block. Operations of different communicators are never
compared by their numbers, only by the order in which a rank has made its calls, where that is known.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from c4bench.c4d.hang.wait_for_graph import Node, WaitForGraph
from c4bench.evidence.judging.join import OPEN, CommEvidence, JobEvidence, Member
from c4bench.evidence.judging.transfers import TRANSFERS, Transfers
from c4bench.model.evidence import FLIGHT_RECORDER, Call, CallState
from c4bench.model.telemetry import OpRecord

# Collectives in which ranks may lawfully differ in what they put in: a root does another thing than the rest.
_UNEVEN = TRANSFERS | {"gather", "scatter", "broadcast", "all_to_all", "barrier", "coalesced"}
_NOBODY: frozenset[int] = frozenset()
_NEVER = 1 << 63
_MOST_TRIED = 32  # ranks, as the one that holds up all others


class OpenOp:
    """An operation that has not ended: `calls` are those of the ranks that wait in it.

    `missing` have not called it. `queued` have, but wait in what they called before. Of `unknown` nothing is known.
    `met` are the calls of the other sides of sends and receives, where they have called their part.
    """

    def __init__(self, comm: str, missing: frozenset[int], unknown: frozenset[int]) -> None:
        self.comm, self.missing, self.unknown = comm, missing, unknown
        self.calls: dict[int, Call] = {}
        self.met: dict[int, Call] = {}
        self.queued = _NOBODY

    @property
    def behind(self) -> frozenset[int]:
        """The ranks that are known to hold it up, or, where there are none, those that may."""
        return self.missing | self.queued or self.unknown

    @property
    def is_ready(self) -> bool:
        """Whether all of which anything is known run it."""
        return not self.missing and not self.queued


class _Waiting(NamedTuple):
    """A call that has not ended."""

    call: Call
    op: OpenOp


class Standstill:
    """The operations of a job that have not ended: all, and in the order of calls those of each rank that waits."""

    def __init__(self, job: JobEvidence) -> None:
        self.job = job
        self.transfers = Transfers(job)
        self.known = {member.rank for member in job.members()}
        self.ops: list[OpenOp] = []
        self.of_rank: dict[int, list[_Waiting]] = {}
        for comm in job.comms.values():
            self._add_collectives(comm)
        self._add_transfers()
        for waiting in self.of_rank.values():
            if all(one.call.order >= 0 for one in waiting):
                waiting.sort(key=lambda one: one.call.order)
        self._queue()

    def _add_collectives(self, comm: CommEvidence) -> None:
        # A rank of which other calls are known, but none here, has made none here.
        without, unknown = self.known.intersection(comm.silent), frozenset(comm.silent) - self.known
        floor, found = comm.floor(), dict[int, OpenOp]()
        for rank, member in comm.members.items():
            for call in _open_calls(member, floor, broken=comm.broken):
                if call.seq not in found:
                    late = (one for one, other in comm.members.items() if floor < call.seq and other.last < call.seq)
                    found[call.seq] = OpenOp(comm.name, frozenset(late) | without, unknown)
                self._add(rank, call, found[call.seq])
        self.ops += found.values()

    def _add_transfers(self) -> None:
        for comm, rank, batch in self.transfers.batches():
            lacking = {peer for _, peer, met in batch if met is None}
            op = OpenOp(comm, frozenset(lacking & self.known), frozenset(lacking - self.known))
            op.met = {peer: met for _, peer, met in batch if met is not None and peer not in lacking}
            self._add(rank, batch[0][0], op)
            self.ops.append(op)

    def _add(self, rank: int, call: Call, op: OpenOp) -> None:
        op.calls[rank] = call
        self.of_rank.setdefault(rank, []).append(_Waiting(call, op))

    def _queue(self) -> None:
        """Find the ranks that have called an operation but wait in what they called before it.

        Of a call that has started that is not so. Where the order of calls is unknown, neither is this.
        """
        first = {rank: waiting[0] for rank, waiting in self.of_rank.items() if self.is_ordered(rank)}
        for op in self.ops:
            after = {rank for rank, call in op.calls.items()
                     if call.state is CallState.SCHEDULED and rank in first and first[rank].op is not op}  # fmt: skip
            after |= {peer for peer, call in op.met.items()
                      if call.state in OPEN and peer in first and not self._meets(first[peer], op)}  # fmt: skip
            op.queued = frozenset(after)

    def _meets(self, other: _Waiting, op: OpenOp) -> bool:
        """Whether what a rank waits in first is its side of the sends and receives of `op`."""
        return other.op.comm == op.comm and other.call.peer >= 0 and not op.calls.keys().isdisjoint(other.op.met)

    def is_ordered(self, rank: int) -> bool:
        """Whether the order is known in which a rank has made the calls that it waits in."""
        return self.of_rank[rank][0].call.order >= 0 <= self.of_rank[rank][-1].call.order

    def graph(self) -> WaitForGraph:
        """Who waits for whom in its first call that has not ended, or in all of them where their order is unknown."""
        pending: dict[int, OpRecord] = {}
        edges: dict[Node, frozenset[Node]] = {}
        for rank, waiting in self.of_rank.items():
            pending[rank] = record(waiting[0].op.comm, rank, waiting[0].call)
            behind = waiting[0].op.behind  # thousands share one set
            more = () if self.is_ordered(rank) else (one.op.behind for one in waiting[1:])
            edges[rank] = behind.union(*more)
        return WaitForGraph(pending, edges)

    def absent(self) -> list[int]:
        """Ranks of which something is known, that others wait for and that wait for nothing themselves."""
        return sorted({rank for op in self.ops for rank in op.missing if rank not in self.of_rank})

    def explained_by(self, roots: Iterable[int]) -> set[int]:
        """The ranks that wait, directly or through others, for any of `roots`."""
        holds: dict[int, list[OpenOp]] = {}
        for op in self.ops:
            for rank in op.behind:
                holds.setdefault(rank, []).append(op)
        found, todo, seen = set[int](), list(roots), set[int]()
        while todo:
            for op in holds.get(todo.pop(), ()):
                if id(op) not in seen:  # thousands hold up one
                    seen.add(id(op))
                    fresh = op.calls.keys() - found
                    found |= fresh
                    todo += fresh
        return found

    def inside(self) -> list[OpenOp]:
        """Operations that all members run and nobody has finished."""
        return [op for op in self.ops if not op.behind]


class Unknown:
    """The ranks of which nothing is known, and that others wait for: who of them is needed to explain that.

    An operation that all others run and of which one member is unknown is held up by that one, unless it may itself
    wait for others, of which some may be unknown too.
    """

    def __init__(self, standstill: Standstill) -> None:
        self._standstill, self._comms = standstill, standstill.job.comms
        self._ready = [op for op in standstill.ops if op.is_ready and op.unknown]
        self._silent: dict[int, list[CommEvidence]] = {}
        for comm in self._comms.values() if self._ready else ():
            for rank in comm.silent:
                self._silent.setdefault(rank, []).append(comm)
        self._of_comm: dict[str, list[OpenOp]] = {}
        for op in standstill.ops:
            self._of_comm.setdefault(op.comm, []).append(op)
        # Sends and receives that a rank has called, but not yet come to, with ranks of which nothing is known.
        self._called = {(rank, to) for op in standstill.ops if op.queued for rank in op.calls for to in op.unknown}
        self._called -= {(rank, to) for op in self._ready for rank in op.calls for to in op.unknown}
        self._top: dict[tuple[object, int], int] = {}  # by shape, and by the place in a pipeline: the newest call
        for comm in self._comms.values() if self._ready else ():
            for rank in comm.members:
                key = comm.shape, _place(comm, rank)
                self._top[key] = max(self._top.get(key, -1), _newest(comm, rank))

    def suspects(self, holding: set[int]) -> list[tuple[int, ...]]:
        """Groups of ranks of which each has a culprit, if `holding` are known to hold up others."""
        found: list[tuple[int, ...]] = []
        left, waiting = self._left(holding)
        while left:
            single = {rank for op in left if len(op.unknown) == 1 for rank in op.unknown}
            asked = Counter(rank for op in left for rank in op.unknown if not single or rank in single)
            after = {rank: self._left(waiting | {rank})[0] for rank, _ in asked.most_common(_MOST_TRIED)}
            best = min(after, key=lambda rank: (len(after[rank]), rank))
            alike = [rank for rank in after if len(after[rank]) == len(after[best])
                     and not any(best in op.unknown for op in after[rank])
                     and not any(rank in op.unknown for op in after[best])]  # fmt: skip
            found.append(tuple(sorted(alike)))
            left, waiting = self._left(waiting.union(alike))
        return sorted(found)

    def may_be_inside(self, group: tuple[int, ...], *, late: bool) -> set[int]:
        """The ranks that may hang in the first operations that a group of suspects hold up.

        Which of its operations comes first for an unknown rank shows in the order in which others have called. If
        `late`, only those that have not started what others have.
        """
        held = [op for op in self._ready if not op.unknown.isdisjoint(group)]
        first = [op for op in held if not any(self._comes_after(op, other) for other in held)]
        found = set[int]()
        for op in first:
            waiting = {rank for rank, call in (op.calls | op.met).items() if call.state is not CallState.STARTED}
            if not late or len(waiting) < len(op.calls):
                found |= waiting
        return found

    def _comes_after(self, op: OpenOp, other: OpenOp) -> bool:
        """Whether a rank that runs `op` has called before it what `other` is in its own communicator of the kind."""
        comm, seq = self._comms[other.comm], next(iter(other.calls.values())).seq
        if op.unknown.isdisjoint(other.unknown) or comm.name == op.comm or comm.passes_on:
            return False
        for alike in self._comms.values():
            for rank in op.calls if alike.shape == comm.shape else ():
                call = alike.members[rank].calls.get(seq) if rank in alike.members else None
                if call is not None and 0 <= call.order < op.calls[rank].order:
                    return True
        return False

    def _left(self, holding: set[int]) -> tuple[list[OpenOp], set[int]]:
        """The operations that unknown ranks hold up, and not only as these may wait for others; and who may wait."""
        ready, waiting = self._ready, set(holding)
        while ready:
            held = self._standstill.explained_by(waiting) | waiting
            owed = {comm.name: self._owed(comm, held) for op in ready for rank in op.unknown
                    for comm in self._silent[rank]}  # fmt: skip
            ready = [op for op in ready if op.unknown.isdisjoint(waiting)]
            more = {rank for rank, comms in self._silent.items() if self._may_receive(rank, comms, held)}
            sure = {rank for op in ready for rank in op.unknown
                    if not any(self._may_wait(comm, owed[comm.name], op) for comm in self._silent[rank])}  # fmt: skip
            more |= {rank for op in ready for rank in op.unknown} - sure
            if more <= waiting:
                break
            waiting |= more
        return ready, waiting

    def _owed(self, comm: CommEvidence, held: set[int]) -> int:
        """The first collective of `comm` that members that are held up have not called, or do not run."""
        least = min((member.last for rank, member in comm.members.items() if rank in held), default=_NEVER)
        if any(rank in held and rank in self._standstill.known for rank in comm.silent):
            least = -1  # how far it came there is not in its dump
        missed = least + 1 if least < self._top.get((comm.shape, -1), -1) else _NEVER
        late = (call.seq for op in self._of_comm.get(comm.name, ()) if not op.behind.isdisjoint(held)
                for call in islice(op.calls.values(), 1))  # fmt: skip
        return min((missed, *late))

    def _may_receive(self, rank: int, comms: Iterable[CommEvidence], held: set[int]) -> bool:
        """Whether an unknown rank may wait for a send or receive of one beside it in a pipeline that is held up."""
        return any(near in held and self._owes(comm, near, rank)
                   for comm in comms if comm.passes_on for near in _beside(comm, rank))  # fmt: skip

    def _may_wait(self, comm: CommEvidence, owed: int, op: OpenOp) -> bool:
        """Whether an unknown rank may wait in a collective of `comm` before it comes to `op`.

        It does not if those that run `op` called it before they came to that collective in their own communicator of
        the kind, as the program of all members of a communicator is the same but for that of a pipeline.
        """
        if owed == _NEVER or comm.name == op.comm or comm.passes_on:
            return False
        return self._comms[op.comm].passes_on or not any(_comes_first(self._comms, one, op, comm, owed)
                                                         for one in op.calls)  # fmt: skip

    def _owes(self, comm: CommEvidence, rank: int, to: int) -> bool:
        """Whether a rank of a pipeline has called less than others at its place, or has not come to what it called."""
        if (rank, to) in self._called or rank not in comm.members:
            return True
        return _newest(comm, rank) < self._top.get((comm.shape, _place(comm, rank)), -1)


def _place(comm: CommEvidence, rank: int) -> int:
    """The place of a rank in a pipeline; -1 where there are collectives only, in which all ranks are alike."""
    return comm.listed.index(rank) if rank in comm.listed and comm.passes_on else -1


def _newest(comm: CommEvidence, rank: int) -> int:
    """The number of the newest send or receive of a member of a pipeline, or else of its newest collective."""
    member = comm.members.get(rank)
    if member is None:
        return -1
    return max((call.seq for call in member.transfers), default=-1) if comm.passes_on else member.last


def _beside(comm: CommEvidence, rank: int) -> tuple[int, ...]:
    """The ranks before and after one in a pipeline, whose ends may meet."""
    if rank not in comm.listed:
        return ()
    place = comm.listed.index(rank)
    return comm.listed[place - 1], comm.listed[(place + 1) % len(comm.listed)]


def _comes_first(comms: Mapping[str, CommEvidence], rank: int, op: OpenOp, comm: CommEvidence, seq: int) -> bool:
    """Whether a rank has called `op` before the operation of this number in its communicator of the kind of `comm`."""
    order = op.calls[rank].order
    for other in comms.values():
        if other.shape == comm.shape and rank in other.members and other.name != op.comm:
            member = other.members[rank]
            call = member.calls.get(seq)
            return member.last < seq or (call is not None and 0 <= order < call.order)
    return False


def _open_calls(member: Member, floor: int, *, broken: bool) -> Iterator[Call]:
    """The calls in which a member waits: those that have not ended, or that others, who came to `floor`, have not made.

    In a communicator that is `broken`, because members are gone, the newest call cannot end either.
    """
    opened = [call for call in member.calls.values() if call.state in OPEN]
    if opened:
        yield from opened  # those of a communicator end in order
        return
    if member.last > floor or broken:
        seq = min(floor + 1, member.last)
        call = member.calls.get(seq) or Call(seq, "", CallState.UNKNOWN)
        if call.state is not CallState.COMPLETED:
            yield call


def record(comm: str, rank: int, call: Call) -> OpRecord:
    """A call as C4D's judgements read it; `rank` is the rank in the job."""
    return OpRecord(comm, rank, call.seq, call.kind, "", call.dtype, call.size_bytes, call.created_s, 0.0, 0.0)


def records_of(job: JobEvidence, comm: str, seq: int) -> dict[int, OpRecord]:
    """The records of an operation, by rank of the job, as far as its kind is known, without what may differ in it.

    None from traces of finished operations: those did meet, and numbers that are counted off may be one apart.
    """
    records: dict[int, OpRecord] = {}
    for rank, member in job.comms[comm].members.items():
        call = member.calls.get(seq)
        if call is not None and call.kind and member.format == FLIGHT_RECORDER:
            uneven = call.kind in _UNEVEN or call.size_bytes < 0
            records[rank] = record(comm, rank, replace(call, dtype="", size_bytes=-1) if uneven else call)
    return records
