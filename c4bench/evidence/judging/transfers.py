"""Sends and receives: in which of them a rank waits, and whether the other side has called its part.

The k-th send from one rank to another meets the k-th receive there. Dumps keep the newest calls only. Where those of
both sides go back to the first, calls are counted from there. Else those that have not ended are counted: what has
ended on one side has ended on the other.
"""

from collections.abc import Iterator
from itertools import islice

from c4bench.evidence.judging.join import OPEN, JobEvidence
from c4bench.model.evidence import Call

_OTHER = {"send": "recv", "recv": "send"}
TRANSFERS = frozenset(_OTHER)
_Channel = tuple[str, int]  # send or recv, and the other rank of the job
_Place = tuple[str, int]  # communicator and rank
Transfer = tuple[Call, int, Call | None]  # a call that has not ended, the other rank, and its call that meets it


class Transfers:
    """The sends and receives of a job, by communicator and rank, and by the rank that they go to or come from."""

    def __init__(self, job: JobEvidence) -> None:
        orders: dict[int, int] = {}
        for member in job.members():
            for call in (*islice(member.calls.values(), 1), *member.transfers[:1]):
                orders[member.rank] = min(orders.get(member.rank, call.order), call.order)
        # Ranks of which all calls are known, back to the first.
        self._whole = {rank for rank, order in orders.items() if order == 0}
        self._calls: dict[_Place, dict[_Channel, list[Call]]] = {}
        for name, comm in job.comms.items():
            for rank, member in comm.members.items():
                for call in member.transfers:
                    if 0 <= call.peer < len(comm.listed):
                        channels = self._calls.setdefault((name, rank), {})
                        channels.setdefault((call.kind, comm.listed[call.peer]), []).append(call)

    def batches(self) -> Iterator[tuple[str, int, list[Transfer]]]:
        """Each batch of transfers that has not ended, with its communicator and rank, those of a rank in order."""
        for comm, rank in self._calls:
            found: dict[int, list[Transfer]] = {}
            for call, (_, peer), met in sorted(self._open(comm, rank), key=lambda one: (one[0].order, one[0].seq)):
                found.setdefault(call.seq, []).append((call, peer, met))
            for batch in found.values():
                yield comm, rank, batch

    def unequal(self) -> Iterator[tuple[tuple[str, int, Call], tuple[str, int, Call]]]:
        """Sends with the receives that they meet, where these are of another size and neither has ended."""
        for comm, rank in self._calls:
            for call, (kind, peer), met in self._open(comm, rank):
                if kind != "send" or met is None or met.state not in OPEN:
                    continue
                if -1 != met.size_bytes != call.size_bytes != -1:
                    yield (comm, rank, call), (comm, peer, met)

    def _open(self, comm: str, rank: int) -> Iterator[tuple[Call, _Channel, Call | None]]:
        """The calls of a rank that have not ended, each with the call that meets it; None if that is not made."""
        for (kind, peer), calls in self._calls[comm, rank].items():
            mine, theirs = calls, self._calls.get((comm, peer), {}).get((_OTHER[kind], rank), [])
            if not {rank, peer} <= self._whole:
                mine, theirs = ([call for call in side if call.state in OPEN] for side in (mine, theirs))
            for place, call in enumerate(mine):
                if call.state in OPEN:
                    yield call, (kind, peer), theirs[place] if place < len(theirs) else None
