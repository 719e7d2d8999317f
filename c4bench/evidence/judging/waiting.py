"""The wait-for graph of what sources tell: who is known, or must be taken, to wait in which operation for whom.

Sends and receives: in which of them a rank waits, and whether the other side has called its part. The k-th send from
one rank to another meets the k-th receive there. Dumps keep the newest calls only. Where those of both sides go back to
the first, calls are counted from there. Else those that have not ended are counted: what has ended on one side has
ended on the other.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from c4bench.c4d.hang.mismatch import Place
from c4bench.c4d.hang.wait_for_graph import Node, WaitForGraph
from c4bench.evidence.judging.join import OPEN, CommEvidence, JobEvidence, Member
from c4bench.model.evidence import Call, CallState
from c4bench.model.telemetry import OpRecord

_OTHER = {"send": "recv", "recv": "send"}
TRANSFERS = frozenset(_OTHER)


class TransferWait(NamedTuple):
    """Sends and receives, posted together, that have not ended: their communicator, the first of them, and for whom.

    `ranks` have not called their part; `met` have, but the data has not arrived.
    """

    comm: str
    call: Call
    ranks: frozenset[int]
    met: frozenset[int]


class UnequalTransfer(NamedTuple):
    """A send and a receive of different size that meet, neither of which has ended."""

    comm: str
    sender: int
    receiver: int
    send: Call
    recv: Call


_Channel = tuple[str, int]  # send or recv, and the other rank of the job


class Transfers:
    """The sends and receives of a communicator, by rank of the job and by the rank they go to or come from."""

    def __init__(self, comm: CommEvidence, whole: Mapping[int, bool]) -> None:
        self._comm = comm
        self._whole = whole
        self._calls: dict[int, dict[_Channel, list[Call]]] = {}
        for rank, member in comm.members.items():
            channels = self._calls.setdefault(rank, {})
            for call in member.transfers:
                if (peer := comm.rank_of(call.peer)) >= 0:
                    channels.setdefault((call.kind, peer), []).append(call)

    def waits(self) -> Iterator[tuple[int, TransferWait]]:
        """Each rank that waits in a send or receive, and for whom, by the first batch that has not ended."""
        for rank, channels in self._calls.items():
            opened = [(call, channel, place) for channel, calls in channels.items()
                      for place, call in enumerate(calls) if call.state in OPEN]  # fmt: skip
            if not opened:
                continue
            first = min(opened, key=lambda one: (one[0].order, one[0].seq))[0]
            batch = [one for one in opened if one[0].seq == first.seq]
            ranks = frozenset(channel[1] for _, channel, place in batch if self._met(rank, channel, place) is None)
            peers = frozenset(channel[1] for _, channel, _ in batch)
            yield rank, TransferWait(self._comm.name, first, ranks, peers - ranks)

    def unequal(self) -> Iterator[UnequalTransfer]:
        """Sends that meet a receive of another size."""
        for rank, channels in self._calls.items():
            for channel, calls in channels.items():
                if channel[0] == "recv":
                    continue
                for place, call in enumerate(calls):
                    met = self._met(rank, channel, place) if call.state in OPEN else None
                    if met is not None and met.state in OPEN and -1 != met.size_bytes != call.size_bytes != -1:
                        yield UnequalTransfer(self._comm.name, rank, channel[1], call, met)

    def _met(self, rank: int, channel: _Channel, place: int) -> Call | None:
        """The call of the other rank that meets the one at `place` of a channel; None if it has not been made."""
        kind, peer = channel
        mine, theirs = self._calls[rank][channel], self._calls.get(peer, {}).get((_OTHER[kind], rank), [])
        if not (self._whole.get(rank) and self._whole.get(peer)):
            place -= sum(call.state not in OPEN for call in mine)
            theirs = [call for call in theirs if call.state in OPEN]
        return theirs[place] if place < len(theirs) else None


def transfers_of(job: JobEvidence) -> list[Transfers]:
    """The sends and receives of each communicator that has any."""
    comms = [comm for comm in job.comms.values() if any(member.transfers for member in comm.members.values())]
    if not comms:
        return []
    orders: dict[int, list[int]] = {}
    for comm in job.comms.values():
        for rank, member in comm.members.items():
            orders.setdefault(rank, []).extend(call.order for call in (*member.transfers[:1], *member.first()))
    whole = {rank: min(found, default=-1) == 0 for rank, found in orders.items()}
    return [Transfers(comm, whole) for comm in comms]


class Wait(NamedTuple):
    """A call in which a rank waits, and for whom."""

    comm: str
    call: Call
    ranks: frozenset[Node]


def evidence_graph(job: JobEvidence) -> WaitForGraph:
    """Who waits for whom. A rank waits in the first call that has not ended, or in all such where the order is unknown.

    In a collective it waits for members that have called less; where none has, for those that no source tells of. In a
    send or receive it waits for the other side, until that has called its part. NCCL's calls do not block: one that has
    not started also waits for what its rank called before.
    """
    found = _waits(job)
    behind = _behind(job, found)
    pending: dict[int, OpRecord] = {}
    edges: dict[Node, frozenset[Node]] = {}
    for rank, waits in found.items():
        pending[rank] = record(waits[0].comm, rank, waits[0].call)
        more = [*(wait.ranks for wait in waits[1:]), *(behind[place] for place in _places(waits) if place in behind)]
        edges[rank] = waits[0].ranks.union(*more) if more else waits[0].ranks  # thousands share one set
    return WaitForGraph(pending, edges)


def _behind(job: JobEvidence, found: Mapping[int, list[Wait]]) -> dict[Place, frozenset[Node]]:
    """By collective in which ranks wait: members that have called it, but still wait in what they called before it."""
    first = {rank: waits[0].call.order for rank, waits in found.items() if len(waits) == 1}
    late: dict[Place, frozenset[Node]] = {}
    for comm, seq in {place for waits in found.values() for place in _places(waits)}:
        calls = ((rank, member.calls.get(seq)) for rank, member in job.comms[comm].members.items())
        ranks = frozenset[Node](
            rank for rank, call in calls
            if call is not None and call.state is CallState.SCHEDULED and 0 <= first.get(rank, -1) < call.order
        )  # fmt: skip
        if ranks:
            late[comm, seq] = ranks
    return late


def _places(waits: list[Wait]) -> Iterator[Place]:
    """Those of the calls that are collectives."""
    return ((wait.comm, wait.call.seq) for wait in waits if wait.call.peer < 0)


def awaited(comm: CommEvidence, seq: int) -> frozenset[Node]:
    """Members that have not called an operation; if all that are known have, those of which nothing is known."""
    late = frozenset[Node](rank for rank, member in comm.members.items() if member.last < seq)
    return late or frozenset[Node](comm.silent)


def record(comm: str, rank: int, call: Call) -> OpRecord:
    """A call as C4D's judgements read it; `rank` is the rank in the job."""
    return OpRecord(comm, rank, call.seq, call.kind, "", call.dtype, call.size_bytes, call.created_s, 0.0, 0.0)


def _waits(job: JobEvidence) -> dict[int, list[Wait]]:
    """In which calls each rank waits: the first by its own order, or all if a source has no order."""
    found: dict[int, list[Wait]] = {}
    for comm in job.comms.values():
        floor = comm.floor()
        late: dict[int, frozenset[Node]] = {}
        for rank, member in comm.members.items():
            if (call := waiting_call(member, floor, broken=comm.broken)) is not None:
                if call.seq not in late:
                    late[call.seq] = awaited(comm, call.seq)
                found.setdefault(rank, []).append(Wait(comm.name, call, late[call.seq]))
    for transfers in transfers_of(job):
        for rank, wait in transfers.waits():
            found.setdefault(rank, []).append(Wait(wait.comm, wait.call, frozenset[Node](wait.ranks)))
    return {rank: _first(waits) for rank, waits in found.items()}


def _first(waits: list[Wait]) -> list[Wait]:
    if len(waits) > 1 and all(wait.call.order >= 0 for wait in waits):
        return [min(waits, key=lambda wait: wait.call.order)]
    return waits


def waiting_call(member: Member, floor: int, *, broken: bool) -> Call | None:
    """The call in which a member waits: one that has not ended, or that others, who came to `floor`, have not made.

    In a communicator that is `broken`, because members are gone, the newest call cannot end either.
    """
    if (call := member.first_open()) is not None:
        return call
    if member.last <= floor and not broken:
        return None
    seq = min(floor + 1, member.last)
    call = member.calls.get(seq) or Call(seq, "", CallState.UNKNOWN)
    return None if call.state is CallState.COMPLETED else call


def records_of(job: JobEvidence, comm: str, seq: int) -> Mapping[int, OpRecord]:
    """The records of an operation, by rank of the job, as far as its kind is known."""
    members = job.comms[comm].members
    calls = ((rank, member.calls.get(seq)) for rank, member in members.items())
    return {rank: comparable(record(comm, rank, call)) for rank, call in calls if call is not None and call.kind}


# Collectives in which ranks may lawfully differ in what they put in: a root does another thing than the rest.
_UNEVEN = frozenset({"gather", "scatter", "broadcast", "all_to_all", "send", "recv", "barrier", "coalesced"})


def comparable(op: OpRecord) -> OpRecord:
    """The operation without what may differ from rank to rank."""
    if op.kind in _UNEVEN or op.size_bytes < 0:
        return OpRecord(op.comm, op.rank, op.seq, op.kind, "", "", -1, op.entered_s, 0.0, 0.0)
    return op
