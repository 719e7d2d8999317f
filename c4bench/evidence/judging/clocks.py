"""How far the clocks of a job's hosts are apart, from when ranks entered and left the collectives that they share.

No rank leaves an all-reduce before the last one has entered it. So an operation bounds the difference of two clocks:
what one rank shows on leaving is no earlier than what the other shows on entering, both on one clock. The bounds add up
along paths of operations, and the tightest are kept, as Duda et al. (ICDCS 1987) do with messages. They hold if the
clocks run alike over the operations that are looked at, of which only the latest are taken.
"""

import math
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from c4bench.c4d.columns import Floats, Ints
from c4bench.evidence.judging.join import CommEvidence, JobEvidence, Member
from c4bench.model.evidence import Call, HostClock

# Collectives that no member leaves before all have entered.
_SYNCHRONISING = frozenset({
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "barrier",
})  # fmt: skip
_RECENT_OPS = 64
_ROUNDS = 100
# Clocks are written to the nanosecond, and a time of day keeps a quarter of a microsecond in a float.
_EXACT_S = 1e-6


class _Times(NamedTuple):
    """A row for each time that is known: the clock that shows it, the operation, and the time in seconds."""

    clock: Ints
    op: Ints
    time_s: Floats


def compared(job: JobEvidence) -> tuple[tuple[HostClock, ...], dict[int, HostClock], str]:
    """The clocks that can be compared, those of each rank, and why they cannot all be; empty if they can.

    A rank whose host is not known has a clock of its own. Offsets are from the clock of the first that is compared.
    """
    ranks = sorted({rank for comm in job.comms.values() for rank, member in comm.members.items() if member.calls})
    names = {rank: job.hosts.get(rank) or f"rank {rank}" for rank in ranks}
    places = {name: place for place, name in enumerate(dict.fromkeys(names.values()))}
    entered, left = _times(job, {rank: places[name] for rank, name in names.items()})
    if len(places) < 2 or not len(entered.clock) or not len(left.clock):
        return (), {}, "clocks: nothing shows how those of the ranks compare" if len(places) > 1 else ""
    base_s = float(min(entered.time_s.min(), left.time_s.min()))
    first = int(min(entered.clock.min(), left.clock.min()))
    low_s, high_s = _bounds(len(places), first, entered._replace(time_s=entered.time_s - base_s),
                            left._replace(time_s=left.time_s - base_s))  # fmt: skip
    if bool((low_s > high_s + _EXACT_S).any()):
        return (), {}, "clocks: the times contradict each other, as when a clock was set, so that they are not compared"
    clocks = {name: _clock(name, low_s[place], high_s[place]) for name, place in places.items()
              if np.isfinite(high_s[place] - low_s[place])}  # fmt: skip
    left_out = len(places) - len(clocks)
    lacking = f"clocks: {left_out} of {len(places)} cannot be compared with that of {next(iter(clocks))}"
    of_ranks = {rank: clocks[name] for rank, name in names.items() if name in clocks}
    return tuple(clocks.values()), of_ranks, lacking if left_out else ""


def on_one_clock(job: JobEvidence) -> JobEvidence:
    """The job with all times on the clock of the first host, as far as clocks can be compared."""
    clocks, of_ranks, lacking = compared(job)
    ahead_s = {rank: clock.offset_s for rank, clock in of_ranks.items() if clock.offset_s}
    comms = {name: _shifted(comm, ahead_s) for name, comm in job.comms.items()} if ahead_s else job.comms
    calls = (call for comm in comms.values() for member in comm.members.values()
             for call in (*member.newest(), *member.transfers[-1:]))  # fmt: skip
    latest_s = max((call.shown_s() for call in calls), default=job.latest_s)
    return msgspec.structs.replace(
        job, comms=comms, latest_s=latest_s, clocks=clocks, lacking_clocks=lacking,
        clock_errors_s={rank: clock.error_s for rank, clock in of_ranks.items()},
    )  # fmt: skip


class SinceLastCall(NamedTuple):
    """How long a rank has made no call, and by how much that may be wrong."""

    time_s: float
    error_s: float


def since_last_call(job: JobEvidence, rank: int) -> SinceLastCall | None:
    """From the last call of `rank` to the last one of any, on one clock; None if clocks cannot be compared."""
    last_s: dict[int, float] = {}
    for comm in job.comms.values():
        for one, member in comm.members.items():
            made = (*member.newest(), *member.transfers[-1:])
            last_s[one] = max([last_s.get(one, 0.0), *(call.created_s for call in made)])
    newest = max(last_s, key=lambda one: last_s[one], default=rank)
    error_s = job.clock_error_s((newest, rank))
    known = math.isfinite(error_s) and last_s.get(rank, 0.0) > 0
    return SinceLastCall(last_s[newest] - last_s[rank], error_s) if known else None


def _clock(name: str, low_s: float, high_s: float) -> HostClock:
    """A clock that is `low_s` to `high_s` behind; one that may be right is left as it is."""
    if low_s <= 0.0 <= high_s:
        return HostClock(name, 0.0, float(max(-low_s, high_s)))
    return HostClock(name, float(-(low_s + high_s) / 2), float((high_s - low_s) / 2))


def _times(job: JobEvidence, clock_of: dict[int, int]) -> tuple[_Times, _Times]:
    """When ranks entered and left the latest synchronising operations."""
    entered: list[tuple[int, int, float]] = []
    left: list[tuple[int, int, float]] = []
    op = 0
    for comm in job.comms.values():
        called = [(clock_of[rank], member.calls) for rank, member in comm.members.items() if member.calls]
        newest = max((member.last for member in comm.members.values()), default=-1)
        for seq in range(max(0, newest - _RECENT_OPS), newest + 1) if called else ():
            calls = [(clock, call) for clock, made in called if (call := made.get(seq)) is not None]
            if len(calls) > 1 and all(call.kind in _SYNCHRONISING for _, call in calls):
                entered += [(clock, op, call.created_s) for clock, call in calls if call.created_s > 0]
                left += [(clock, op, call.finished_s) for clock, call in calls if call.finished_s > 0]
                op += 1
    return _rows(entered), _rows(left)


def _rows(found: list[tuple[int, int, float]]) -> _Times:
    table = np.fromiter(chain.from_iterable(found), np.float64, 3 * len(found)).reshape(len(found), 3)
    return _Times(table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2].copy())


def _bounds(clocks: int, first: int, entered: _Times, left: _Times) -> tuple[Floats, Floats]:
    """The least and the most that each clock is behind that of `first`; infinite where nothing bounds it.

    If `behind` is added to what a clock shows, then all enter an operation before any leaves it.
    """
    ops = 1 + int(max(entered.op.max(), left.op.max()))
    low_s, high_s = np.full(clocks, -np.inf), np.full(clocks, np.inf)
    low_s[first] = high_s[first] = 0.0
    for _ in range(_ROUNDS):
        earliest_left_s, latest_entered_s = np.full(ops, np.inf), np.full(ops, -np.inf)
        np.minimum.at(earliest_left_s, left.op, left.time_s + high_s[left.clock])
        np.maximum.at(latest_entered_s, entered.op, entered.time_s + low_s[entered.clock])
        before = low_s.copy(), high_s.copy()
        np.minimum.at(high_s, entered.clock, earliest_left_s[entered.op] - entered.time_s)
        np.maximum.at(low_s, left.clock, latest_entered_s[left.op] - left.time_s)
        if np.array_equal(before[0], low_s) and np.array_equal(before[1], high_s):
            break
        if bool((low_s > high_s + _EXACT_S).any()):
            break
    return low_s, high_s


def _shifted(comm: CommEvidence, ahead_s: dict[int, float]) -> CommEvidence:
    members = {rank: _on_time(member, ahead_s.get(rank, 0.0)) for rank, member in comm.members.items()}
    return msgspec.structs.replace(comm, members=members)


def _on_time(member: Member, ahead_s: float) -> Member:
    """The member with its times on the common clock, which its own is ahead of."""
    if not ahead_s:
        return member
    calls = {seq: _earlier(call, ahead_s) for seq, call in member.calls.items()}
    transfers = tuple(_earlier(call, ahead_s) for call in member.transfers)
    return msgspec.structs.replace(member, calls=calls, transfers=transfers)


def _earlier(call: Call, by_s: float) -> Call:
    return msgspec.structs.replace(
        call,
        created_s=call.created_s - by_s if call.created_s else 0.0,
        finished_s=call.finished_s - by_s if call.finished_s else 0.0,
    )
