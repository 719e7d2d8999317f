"""How far the clocks of a job's hosts are apart, from when ranks entered and left the collectives that they share.

No rank leaves an all-reduce before the last one has entered it. So an operation bounds the difference of two clocks:
what one rank shows on leaving is no earlier than what the other shows on entering, both on one clock. The bounds add up
along paths of operations, and the tightest are kept, as Duda et al. (ICDCS 1987) do with messages. They hold if the
clocks run alike over the operations that are looked at, of which only the latest are taken.
"""

import math
from itertools import chain

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from c4bench.evidence.judging.join import CommEvidence, JobEvidence
from c4bench.model.evidence import UNNAMED, Call, HostClock

# Collectives that no member leaves before all have entered.
_SYNCHRONISING = frozenset({
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "barrier",
})  # fmt: skip
_RECENT_OPS = 64
_ROUNDS = 100
# Clocks are written to the nanosecond, and a time of day keeps a quarter of a microsecond in a float.
_EXACT_S = 1e-6
_Floats = NDArray[np.float64]
_Time = tuple[int, int, float]  # the clock that shows it, the operation, and the time in seconds
_Columns = tuple[NDArray[np.int64], NDArray[np.int64], _Floats]  # the same of many


def on_one_clock(job: JobEvidence) -> JobEvidence:
    """The job with all times on the clock of the first host that can be compared, as far as others can be.

    A rank whose host is not known has a clock of its own.
    """
    ranks = sorted({member.rank for member in job.members() if member.calls})
    names = {rank: job.hosts.get(rank) or f"rank {rank}" for rank in ranks}
    clocks, lacking = _compared(job, names)
    of_ranks = {rank: clocks[name] for rank, name in names.items() if name in clocks}
    ahead_s = {rank: clock.offset_s for rank, clock in of_ranks.items() if clock.offset_s}
    comms = {name: _shifted(comm, ahead_s) for name, comm in job.comms.items()} if ahead_s else job.comms
    return replace(job, comms=comms, clocks=of_ranks, unknown=(*job.unknown, lacking) if lacking else job.unknown)


def _compared(job: JobEvidence, names: dict[int, str]) -> tuple[dict[str, HostClock], str]:
    """The clocks that can be compared, by name, and why they cannot all be; `names` are those of each rank's clock."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names.values()))}
    entered, left = _times(job, {rank: places[name] for rank, name in names.items()})
    if len(places) < 2 or not len(entered) or not len(left):
        return {}, "clocks: nothing shows how those of the ranks compare" if len(places) > 1 else ""
    low_s, high_s = _bounds(len(places), _columns(entered), _columns(left))
    if bool((low_s > high_s + _EXACT_S).any()):
        return {}, "clocks: the times contradict each other, as when a clock was set, so that they are not compared"
    clocks = {name: _clock(name, float(low_s[place]), float(high_s[place])) for name, place in places.items()
              if np.isfinite(high_s[place] - low_s[place])}  # fmt: skip
    left_out = len(places) - len(clocks)
    lacking = f"clocks: {left_out} of {len(places)} cannot be compared with that of {next(iter(clocks))}"
    return clocks, lacking if left_out else ""


def since_last_call(job: JobEvidence, rank: int) -> tuple[float, float] | None:
    """How long the last call of `rank` was before that of any, and the error; None if clocks cannot be compared."""
    last_s: dict[int, float] = {}
    for member in job.members():
        last_s[member.rank] = max([last_s.get(member.rank, 0.0), *(call.created_s for call in member.newest())])
    newest = max(last_s, key=lambda one: last_s[one], default=rank)
    error_s = job.clock_error_s((newest, rank))
    known = math.isfinite(error_s) and last_s.get(rank, 0.0) > 0
    return (last_s[newest] - last_s[rank], error_s) if known else None


def _clock(name: str, low_s: float, high_s: float) -> HostClock:
    """A clock that is `low_s` to `high_s` behind; one that may be right is left as it is."""
    if low_s <= 0.0 <= high_s:
        return HostClock(name, 0.0, max(-low_s, high_s))
    return HostClock(name, -(low_s + high_s) / 2, (high_s - low_s) / 2)


def _times(job: JobEvidence, clock_of: dict[int, int]) -> tuple[list[_Time], list[_Time]]:
    """When ranks entered and left the latest synchronising operations."""
    entered: list[_Time] = []
    left: list[_Time] = []
    op = 0
    for comm in (comm for name, comm in job.comms.items() if not name.startswith(UNNAMED)):
        called = [(clock_of[rank], member.calls) for rank, member in comm.members.items() if member.calls]
        newest = max((member.last for member in comm.members.values()), default=-1)
        for seq in range(max(0, newest - _RECENT_OPS), newest + 1) if called else ():
            calls = [(clock, call) for clock, made in called if (call := made.get(seq)) is not None]
            if len(calls) > 1 and all(call.kind in _SYNCHRONISING for _, call in calls):
                entered += [(clock, op, call.created_s) for clock, call in calls if call.created_s > 0]
                left += [(clock, op, call.finished_s) for clock, call in calls if call.finished_s > 0]
                op += 1
    return entered, left


def _columns(times: list[_Time]) -> _Columns:
    table = np.fromiter(chain.from_iterable(times), np.float64, 3 * len(times)).reshape(len(times), 3)
    return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2]


def _bounds(clocks: int, entered: _Columns, left: _Columns) -> tuple[_Floats, _Floats]:
    """The least and the most that each clock is behind the first one; infinite where nothing bounds it.

    If `behind` is added to what a clock shows, then all enter an operation before any leaves it.
    """
    (came, came_in, came_s), (went, went_from, went_s) = entered, left
    base_s = float(min(came_s.min(), went_s.min()))
    came_s, went_s = came_s - base_s, went_s - base_s
    ops, first = 1 + int(max(came_in.max(), went_from.max())), int(min(came.min(), went.min()))
    low_s, high_s = np.full(clocks, -np.inf), np.full(clocks, np.inf)
    low_s[first] = high_s[first] = 0.0
    for _ in range(_ROUNDS):
        earliest_left_s, latest_entered_s = np.full(ops, np.inf), np.full(ops, -np.inf)
        np.minimum.at(earliest_left_s, went_from, went_s + high_s[went])
        np.maximum.at(latest_entered_s, came_in, came_s + low_s[came])
        before = low_s.copy(), high_s.copy()
        np.minimum.at(high_s, came, earliest_left_s[came_in] - came_s)
        np.maximum.at(low_s, went, latest_entered_s[went_from] - went_s)
        unchanged = np.array_equal(before, (low_s, high_s))
        if unchanged or bool((low_s > high_s + _EXACT_S).any()):
            break
    return low_s, high_s


def _shifted(comm: CommEvidence, ahead_s: dict[int, float]) -> CommEvidence:
    """The communicator with its members' times on the common clock, which their own are so much ahead of."""
    members = dict(comm.members)
    for rank in members.keys() & ahead_s.keys():
        calls = {seq: _earlier(call, ahead_s[rank]) for seq, call in members[rank].calls.items()}
        transfers = tuple(_earlier(call, ahead_s[rank]) for call in members[rank].transfers)
        members[rank] = replace(members[rank], calls=calls, transfers=transfers)
    return replace(comm, members=members)


def _earlier(call: Call, by_s: float) -> Call:
    created_s, finished_s = (at_s - by_s if at_s else 0.0 for at_s in (call.created_s, call.finished_s))
    return replace(call, created_s=created_s, finished_s=finished_s)
