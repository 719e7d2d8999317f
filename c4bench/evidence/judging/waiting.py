"""The wait-for graph of what sources tell: who is known, or must be taken, to wait in which operation for whom.

Sends and receives: in which of them a rank waits, and whether the other side has called its part. The k-th send from
one rank to another meets the k-th receive there. Dumps keep the newest calls only. Where those of both sides go back to
the first, calls are counted from there. Else those that have not ended are counted: what has ended on one side has
ended on the other.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from c4bench.c4d.hang.wait_for_graph import Node, WaitForGraph
from c4bench.evidence.judging.join import OPEN, JobEvidence, Member
from c4bench.model.evidence import Call, CallState
from c4bench.model.telemetry import OpRecord

_OTHER = {"send": "recv", "recv": "send"}
TRANSFERS = frozenset(_OTHER)
_Channel = tuple[str, int]  # send or recv, and the other rank of the job
Place = tuple[str, int]  # communicator, and sequence number or rank
# Collectives in which ranks may lawfully differ in what they put in: a root does another thing than the rest.
_UNEVEN = frozenset({"gather", "scatter", "broadcast", "all_to_all", "send", "recv", "barrier", "coalesced"})


class Wait(NamedTuple):
    """A call in which a rank waits, and for whom: `ranks` have not called their part.

    Of sends and receives, posted together, that have not ended, it is the first; `met` are ranks that have called their
    part, but the data has not arrived.
    """

    comm: str
    call: Call
    ranks: frozenset[int]
    met: frozenset[int] = frozenset()


class Transfers:
    """The sends and receives of a job, by communicator and rank, and by the rank that they go to or come from."""

    def __init__(self, job: JobEvidence) -> None:
        orders: dict[int, int] = {}
        for member in job.members():
            for call in (*islice(member.calls.values(), 1), *member.transfers[:1]):
                orders[member.rank] = min(orders.get(member.rank, call.order), call.order)
        # Ranks of which all calls are known, back to the first.
        self._whole = {rank for rank, order in orders.items() if order == 0}
        self._calls: dict[Place, dict[_Channel, list[Call]]] = {}
        for name, comm in job.comms.items():
            for rank, member in comm.members.items():
                for call in member.transfers:
                    if 0 <= call.peer < len(comm.listed):
                        channels = self._calls.setdefault((name, rank), {})
                        channels.setdefault((call.kind, comm.listed[call.peer]), []).append(call)

    def waits(self) -> Iterator[tuple[int, Wait]]:
        """Each rank that waits in a send or receive, and for whom, by the first batch that has not ended."""
        for comm, rank in self._calls:
            opened = list(self._open(comm, rank))
            if not opened:
                continue
            first = min((call for call, _, _ in opened), key=lambda call: (call.order, call.seq))
            batch = [(peer, met) for call, (_, peer), met in opened if call.seq == first.seq]
            ranks = frozenset(peer for peer, met in batch if met is None)
            yield rank, Wait(comm, first, ranks, frozenset(peer for peer, _ in batch) - ranks)

    def unequal(self) -> Iterator[tuple[OpRecord, OpRecord]]:
        """Sends with the receives that they meet, where these are of another size and neither has ended."""
        for comm, rank in self._calls:
            for call, (kind, peer), met in self._open(comm, rank):
                if kind != "send" or met is None or met.state not in OPEN:
                    continue
                if -1 != met.size_bytes != call.size_bytes != -1:
                    yield record(comm, rank, call), record(comm, peer, met)

    def _open(self, comm: str, rank: int) -> Iterator[tuple[Call, _Channel, Call | None]]:
        """The calls of a rank that have not ended, each with the call that meets it; None if that is not made."""
        for (kind, peer), calls in self._calls[comm, rank].items():
            mine, theirs = calls, self._calls.get((comm, peer), {}).get((_OTHER[kind], rank), [])
            if not {rank, peer} <= self._whole:
                mine, theirs = ([call for call in side if call.state in OPEN] for side in (mine, theirs))
            for place, call in enumerate(mine):
                if call.state in OPEN:
                    yield call, (kind, peer), theirs[place] if place < len(theirs) else None


def evidence_graph(job: JobEvidence, in_transfers: Iterable[tuple[int, Wait]]) -> WaitForGraph:
    """Who waits for whom. A rank waits in the first call that has not ended, or in all such where the order is unknown.

    In a collective it waits for members that have called less; where none has, for those that no source tells of. In a
    send or receive it waits for the other side, until that has called its part. NCCL's calls do not block: one that has
    not started also waits for what its rank called before.
    """
    found = _waits(job, in_transfers)
    behind = _behind(job, found)
    pending: dict[int, OpRecord] = {}
    edges: dict[Node, frozenset[Node]] = {}
    for rank, waits in found.items():
        pending[rank] = record(waits[0].comm, rank, waits[0].call)
        more = [*(wait.ranks for wait in waits[1:]), *(behind[place] for place in _places(waits) if place in behind)]
        edges[rank] = waits[0].ranks.union(*more) if more else waits[0].ranks  # thousands share one set
    return WaitForGraph(pending, edges)


def _waits(job: JobEvidence, in_transfers: Iterable[tuple[int, Wait]]) -> dict[int, list[Wait]]:
    """In which calls each rank waits: the first by its own order, or all if a source has no order."""
    found: dict[int, list[Wait]] = {}
    for comm in job.comms.values():
        floor = comm.floor()
        late: dict[int, frozenset[int]] = {}
        for rank, member in comm.members.items():
            if (call := _waiting_call(member, floor, broken=comm.broken)) is not None:
                if call.seq not in late:
                    fewer = frozenset(one for one, other in comm.members.items() if other.last < call.seq)
                    late[call.seq] = fewer or frozenset(comm.silent)
                found.setdefault(rank, []).append(Wait(comm.name, call, late[call.seq]))
    for rank, wait in in_transfers:
        found.setdefault(rank, []).append(wait)
    for rank, waits in found.items():
        if all(wait.call.order >= 0 for wait in waits):
            found[rank] = [min(waits, key=lambda wait: wait.call.order)]
    return found


def _waiting_call(member: Member, floor: int, *, broken: bool) -> Call | None:
    """The call in which a member waits: one that has not ended, or that others, who came to `floor`, have not made.

    In a communicator that is `broken`, because members are gone, the newest call cannot end either.
    """
    if opened := next((call for call in member.calls.values() if call.state in OPEN), None):
        return opened  # those of a communicator end in order
    if member.last <= floor and not broken:
        return None
    seq = min(floor + 1, member.last)
    call = member.calls.get(seq) or Call(seq, "", CallState.UNKNOWN)
    return None if call.state is CallState.COMPLETED else call


def _behind(job: JobEvidence, found: Mapping[int, list[Wait]]) -> dict[Place, frozenset[int]]:
    """By collective in which ranks wait: members that have called it, but still wait in what they called before it."""
    first = {rank: waits[0].call.order for rank, waits in found.items() if len(waits) == 1}
    late: dict[Place, frozenset[int]] = {}
    for comm, seq in {place for waits in found.values() for place in _places(waits)}:
        calls = ((rank, member.calls.get(seq)) for rank, member in job.comms[comm].members.items())
        ranks = frozenset(
            rank for rank, call in calls
            if call is not None and call.state is CallState.SCHEDULED and 0 <= first.get(rank, -1) < call.order
        )  # fmt: skip
        if ranks:
            late[comm, seq] = ranks
    return late


def _places(waits: list[Wait]) -> Iterator[Place]:
    """Those of the calls that are collectives."""
    return ((wait.comm, wait.call.seq) for wait in waits if wait.call.peer < 0)


def record(comm: str, rank: int, call: Call) -> OpRecord:
    """A call as C4D's judgements read it; `rank` is the rank in the job."""
    return OpRecord(comm, rank, call.seq, call.kind, "", call.dtype, call.size_bytes, call.created_s, 0.0, 0.0)


def records_of(job: JobEvidence, comm: str, seq: int) -> dict[int, OpRecord]:
    """The records of an operation, by rank of the job, as far as its kind is known, without what may differ in it."""
    records: dict[int, OpRecord] = {}
    for rank, member in job.comms[comm].members.items():
        call = member.calls.get(seq)
        if call is not None and call.kind:
            uneven = call.kind in _UNEVEN or call.size_bytes < 0
            records[rank] = record(comm, rank, replace(call, dtype="", size_bytes=-1) if uneven else call)
    return records
