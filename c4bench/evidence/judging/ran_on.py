"""Ranks that stopped calling by themselves though they wait: others of the same program called on where they stopped.

A program calls on while its calls wait on the device, until it needs a result, and ranks of one program need results at
the same places. How far each rank has come in each of its communicators is a vector, and stands for a place in the
program. Where other ranks went on from the place at which a rank stopped, though calls in the communicator of that kind
in which it made its last one had not ended by then, no result is needed there, and what a rank waits for does not keep
it. More must have gone on than have stopped there. Ranks at different places of a pipeline run different programs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from c4bench.evidence.judging.standstill import Standstill

# What communicators share that a program uses alike: their shape, which of a rank's communicators of that shape each
# is, and whether sends and receives are meant.
_Kind = tuple[tuple[int, int] | str, int, bool]
_NEVER = 1 << 63
WENT_ON = "others went on though they waited too"


class _Place(NamedTuple):
    """How far ranks have come: by kind, the newest call and the oldest that has not ended; and where in a pipeline.

    `waits_in` are the kinds of the newest call that has not ended, or of all such where their order is unknown.
    """

    called: frozenset[tuple[_Kind, int]]
    opened: frozenset[tuple[_Kind, int]]
    waits_in: frozenset[_Kind]
    stage: int


class StoppedAt(NamedTuple):
    """A rank that stopped where others went on: how many did, how many others stopped, and how far it came."""

    rank: int
    went_on: int
    stopped: int
    reached: tuple[str, ...]

    @property
    def words(self) -> str:
        """What was seen, for people."""
        return (f"rank {self.rank} has called nothing after {' and '.join(self.reached)}, where {self.went_on} "
                f"{WENT_ON}, and {self.stopped} stopped")  # fmt: skip


def stopped_by_themselves(standstill: Standstill) -> Iterator[StoppedAt]:
    """The ranks that wait, but stopped where others went on, by rank."""
    job = standstill.job
    places = _places(standstill)
    beside: dict[int, Counter[_Place]] = defaultdict(Counter)
    for comm in job.comms.values():
        there = Counter(places[rank] for rank in comm.members if rank in places)
        for rank in comm.members.keys() & places.keys():
            beside[rank] |= there
    for rank in sorted(standstill.of_rank.keys() & places.keys()):
        mine = places[rank]
        went_on = sum(count for other, count in beside[rank].items() if _went_on(mine, other))
        stopped = sum(count for other, count in beside[rank].items() if other.called == mine.called) - 1
        if went_on > stopped:
            reached = (f"#{member.last} of {name}" for name, comm in job.comms.items()
                       if (member := comm.members.get(rank)) and member.last >= 0)  # fmt: skip
            yield StoppedAt(rank, went_on, stopped, tuple(reached))


def _went_on(mine: _Place, other: _Place) -> bool:
    """Whether ranks at the `other` place went on from `mine`, though calls of the kinds that wait there did so too."""
    if other.stage != mine.stage or not mine.waits_in:
        return False
    called, opened = dict(mine.called), dict(other.opened)
    theirs = {kind: seq for kind, seq in other.called if not kind[2]}
    ahead = [theirs.get(kind, -1) - seq for kind, seq in called.items() if not kind[2]]
    held = all(opened.get(kind, _NEVER) <= called.get(kind, -1) for kind in mine.waits_in)
    return held and min(ahead, default=-1) >= 0 < max(ahead, default=0)


def _places(standstill: Standstill) -> dict[int, _Place]:
    """The place of each rank that waits, and of all others."""
    job = standstill.job
    shapes = {name: comm.shape for name, comm in job.comms.items()}
    passing = {comm.shape for comm in job.comms.values() if comm.passes_on}
    called: dict[int, dict[_Kind, int]] = defaultdict(dict)
    kinds: dict[tuple[int, str], int] = {}
    stages = {rank: place for name, comm in job.comms.items() if shapes[name] in passing
              for place, rank in enumerate(comm.listed)}  # fmt: skip
    for name in sorted(job.comms, key=lambda one: (len(one), one)):
        for rank, member in job.comms[name].members.items():
            kinds[rank, name] = which = sum(kind[0] == shapes[name] for kind in called[rank])
            for seq, transfers in (
                (member.last, False),
                (max((one.seq for one in member.transfers), default=-1), True),
            ):
                if seq >= 0:
                    called[rank][shapes[name], which, transfers] = seq
    opened: dict[int, dict[_Kind, int]] = defaultdict(dict)
    for (rank, name), which in kinds.items():
        member = job.comms[name].members[rank]
        if 0 <= member.completed < member.last:
            opened[rank][shapes[name], which, False] = member.completed + 1
    waits_in: dict[int, set[_Kind]] = defaultdict(set)
    for rank, waiting in standstill.of_rank.items():
        for call, op in waiting:
            kind = (shapes[op.comm], kinds[rank, op.comm], call.peer >= 0)
            opened[rank][kind] = min(call.seq, opened[rank].get(kind, call.seq))
            waits_in[rank] = {kind} if standstill.is_ordered(rank) else waits_in[rank] | {kind}
    return {
        rank: _Place(frozenset(made.items()), frozenset(opened[rank].items()), frozenset(waits_in[rank]),
                     stages.get(rank, -1))
        for rank, made in called.items()
    }  # fmt: skip
