"""Sends and receives: in which of them a rank waits, and whether the other side has called its part.

The k-th send from one rank to another meets the k-th receive there. Dumps keep the newest calls only. Where those of
both sides go back to the first, calls are counted from there. Else those that have not ended are counted: what has
ended on one side has ended on the other.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from c4bench.c4d.evidence.join import OPEN, CommEvidence, JobEvidence
from c4bench.model.evidence import Call

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
