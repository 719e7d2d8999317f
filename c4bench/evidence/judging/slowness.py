"""Stragglers in what sources tell of finished operations: the rank that is last to come waits least in them.

A rank stands out in a communicator if in most of its latest operations it spent the shortest time inside, by more than
the others differ among themselves (C4's receiver-driven wait analysis, arXiv 2406.04594). Ranks that wait for it in one
communicator come late to their others; so of those that stand out, the one that waits least in all is named. Durations
are differences on the rank's own clock, so clock offsets do not matter. Where only the times of calls are known, a
rank's wait is taken to be from its call to the last one, on one clock; it must then be longer than the clocks' error.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from c4bench.c4d.diagnosis import Finding, rank_component
from c4bench.evidence.judging.hangs import RankFinding
from c4bench.evidence.judging.join import CommEvidence, JobEvidence
from c4bench.model.diagnosis import Cause, Syndrome
from c4bench.model.evidence import UNNAMED, Call

# In these a member may be done before the others come: the root of a broadcast waits for nobody.
ONE_WAY = frozenset({"broadcast", "reduce", "gather", "scatter", "send", "recv"})
# The latest operations that are looked at, how many it takes, and in which share of them the rank must be last to come.
_RECENT_OPS = 32
_LEAST_OPS = 8
_LAST_SHARE = 0.75
_LEAST_RANKS = 3
# Of fewer operations it is not sure: it must be the last in all of them, and spend so much less time than the others.
_FEW_OPS, _FEW_SHARE = 2, 0.5
_SURE, _PERHAPS = 0.7, 0.5
# A skew of less of the time between operations is how a job is built (uneven shards), not a fault.
_LAWFUL_SHARE = 0.15
# Standard deviations of the others by which the rank must be ahead of them.
_SIGMAS = 6.0
_MAD_TO_SIGMA = 1.4826
_Floats = NDArray[np.float64]


class _Late(NamedTuple):
    """A member that others wait for, `awaited_s` in each of `ops`: as a share of the time between operations."""

    rank: int
    awaited_s: float
    share: float
    ops: int
    comm: str


def stragglers(job: JobEvidence) -> list[RankFinding]:
    """The rank that the others wait for, operation after operation; none if none stands out."""
    waits = {
        name: _waits(job, comm) for name, comm in job.comms.items() if comm.members and not name.startswith(UNNAMED)
    }
    late = [one for name, (inside_s, error_s) in waits.items() if (one := _late(job.comms[name], inside_s, error_s))]
    if not late:
        return []
    in_all_s = dict.fromkeys((one.rank for one in late), 0.0)
    for name, (inside_s, _) in waits.items():
        for place, rank in enumerate(sorted(job.comms[name].members)):
            if rank in in_all_s and len(inside_s):
                in_all_s[rank] += float(np.median(inside_s[:, place]))
    worst = min(late, key=lambda one: (in_all_s[one.rank], -one.share))
    many = worst.ops >= _LEAST_OPS
    # A member without a file may have been later still.
    sure = many and not job.comms[worst.comm].silent
    share = "most" if many else "all"
    words = (f"rank {worst.rank} is last to come in {share} of the latest {worst.ops} operations of {worst.comm}: "
             f"the others wait {worst.awaited_s * 1e3:.3g} ms longer in them")  # fmt: skip
    finding = Finding(
        Syndrome.NON_COMMUNICATION_SLOW, Cause.COMPUTE_SLOW, rank_component(job.name, worst.rank), 0.0,
        _SURE if sure else _PERHAPS, (words,),
        f"rank {worst.rank} waiting as long as the others",
        {"awaited_s": worst.awaited_s, "share": worst.share, "operations": float(worst.ops)},
    )  # fmt: skip
    return [RankFinding(finding, (worst.rank,), sure=sure)]


def _late(comm: CommEvidence, inside_s: _Floats, error_s: float) -> _Late | None:
    """The member that stands out in a communicator, by more than the error of its times."""
    ranks = sorted(comm.members)
    if len(ranks) < _LEAST_RANKS or len(inside_s) < _FEW_OPS:
        return None
    last = np.bincount(inside_s.argmin(axis=1), minlength=len(ranks))
    place = int(last.argmax())
    others = np.delete(inside_s, place, axis=1)
    usual_s = np.median(others, axis=1, keepdims=True)
    awaited_s = float(np.median(usual_s[:, 0] - inside_s[:, place]))
    spread_s = _MAD_TO_SIGMA * float(np.median(np.abs(others - usual_s)))
    error_s = max(error_s, _SIGMAS * spread_s / np.sqrt(len(inside_s)))
    shown_s = [at_s for call in comm.members[ranks[place]].calls.values() if (at_s := call.shown_s()) > 0]
    between_s = float(np.median(np.diff(shown_s))) if len(shown_s) > 1 else 0.0
    period_s = between_s or float(np.median(others))
    share = awaited_s / period_s if period_s > 0 else 0.0
    if len(inside_s) < _LEAST_OPS and not (inside_s[:, [place]] < _FEW_SHARE * others).all():
        return None
    if last[place] < _LAST_SHARE * len(inside_s) or share < _LAWFUL_SHARE or awaited_s <= error_s:
        return None
    return _Late(ranks[place], awaited_s, share, len(inside_s), comm.name)


def _waits(job: JobEvidence, comm: CommEvidence) -> tuple[_Floats, float]:
    """How long each member was inside the latest operations, shape (operations, members), and the error of that."""
    calls = [comm.members[rank].calls for rank in sorted(comm.members)]
    shared = [seq for seq in sorted(set.intersection(*map(set, calls))) if calls[0][seq].kind not in ONE_WAY]
    shared = shared[-2 * _RECENT_OPS :]
    inside_s = _known([[_inside_s(one[seq]) for one in calls] for seq in shared], len(calls))
    if len(inside_s) >= _LEAST_OPS:
        return inside_s, 0.0
    called_s = _known([[one[seq].created_s or -1.0 for one in calls] for seq in shared], len(calls))
    if len(called_s) < _LEAST_OPS:
        return inside_s, 0.0
    return called_s.max(axis=1, keepdims=True, initial=0.0) - called_s, job.clock_error_s(comm.members)


def _inside_s(call: Call) -> float:
    """How long a call took, by its own duration or else by its times on one clock; -1 if that is not known."""
    if call.duration_s < 0 and call.created_s and call.finished_s:
        return call.finished_s - call.created_s
    return call.duration_s


def _known(rows: list[list[float]], members: int) -> _Floats:
    """The latest rows in which nothing is unknown, that is, negative."""
    whole = [row for row in rows if min(row) >= 0][-_RECENT_OPS:]
    return np.array(whole, np.float64).reshape(len(whole), members)
