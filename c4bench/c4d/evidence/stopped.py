"""Ranks that stopped calling while they wait themselves: a wait-for graph shows them as waiting only.

On NCCL a call does not block, so a rank that waits goes on calling, until its program needs a result. A rank whose
newest call has not ended, and from which others of its group went on, stopped by itself, unless its program alone needs
that result. Therefore a rank that is ahead of another in any group, and so may wait for that one, is none of them.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from c4bench.c4d.evidence.join import OPEN, JobEvidence
from c4bench.c4d.evidence.transfers import transfers_of
from c4bench.model.evidence import Call


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
