"""Stragglers in what sources tell of finished operations: the rank that is last to come waits least in them.

A rank stands out in a communicator if in most of its latest operations it spent the shortest time inside, by more than
the others differ among themselves (C4's receiver-driven wait analysis, arXiv 2406.04594). Ranks that wait for it in one
communicator come late to their others; so of those that stand out, the one that waits least in all is named. Durations
are differences on the rank's own clock, so clock offsets do not matter. Where only the times of calls are known, a
rank's wait is taken to be from its call to the last one, on one clock; it must then be longer than the clocks' error.
"""

from typing import NamedTuple

import numpy as np

from c4bench.c4d.columns import Floats
from c4bench.c4d.diagnosis import Finding, rank_component
from c4bench.c4d.thresholds import LAWFUL_SKEW_SHARE, SIGMAS
from c4bench.evidence.judging.hangs import RankFinding
from c4bench.evidence.judging.join import CommEvidence, JobEvidence
from c4bench.model.diagnosis import Cause, Syndrome
from c4bench.model.evidence import Call

# The latest operations that are looked at, how many it takes, and in which share of them the rank must be last to come.
_RECENT_OPS = 32
_LEAST_OPS = 8
_LAST_SHARE = 0.75
_LEAST_RANKS = 3
_MAD_TO_SIGMA = 1.4826


class _Late(NamedTuple):
    """A member that others wait for, `awaited_s` an operation: as a share of the time between operations."""

    rank: int
    awaited_s: float
    share: float
    ops: int
    comm: str


def stragglers(job: JobEvidence) -> list[RankFinding]:
    """The rank that the others wait for, operation after operation; none if none stands out."""
    measured = {name: _waits(job, comm) for name, comm in job.comms.items() if comm.members}
    tables = {name: inside_s for name, (inside_s, _) in measured.items()}
    late = [one for name, waits in measured.items() if (one := _late(job.comms[name], *waits)) is not None]
    if not late:
        return []
    waits_s = _waits_s(job, tables, {one.rank for one in late})
    worst = min(late, key=lambda one: (waits_s[one.rank], -one.share))
    evidence = (
        f"rank {worst.rank} is last to come in most of the latest {worst.ops} operations of {worst.comm}: "
        f"the others wait {worst.awaited_s * 1e3:.3g} ms longer in them",
    )
    figures = {"awaited_s": worst.awaited_s, "share": worst.share, "operations": float(worst.ops)}
    component = rank_component(job.name, worst.rank)
    refuted_by = f"rank {worst.rank} waiting as long as the others"
    syndrome = Syndrome.NON_COMMUNICATION_SLOW
    finding = Finding(syndrome, Cause.COMPUTE_SLOW, component, 0.0, 0.7, evidence, refuted_by, figures)
    return [RankFinding(finding, (worst.rank,), sure=True)]


def _waits_s(job: JobEvidence, tables: dict[str, Floats], ranks: set[int]) -> dict[int, float]:
    """How long each of these ranks is inside an operation of each of its communicators, added up."""
    waits_s = dict.fromkeys(ranks, 0.0)
    for name, table in tables.items():
        members = sorted(job.comms[name].members)
        for rank in ranks & job.comms[name].members.keys():
            if len(table):
                waits_s[rank] += float(np.median(table[:, members.index(rank)]))
    return waits_s


def _late(comm: CommEvidence, inside_s: Floats, error_s: float) -> _Late | None:
    """The member that stands out in a communicator, by more than the error of its times."""
    ranks = sorted(comm.members)
    if len(ranks) < _LEAST_RANKS or len(inside_s) < _LEAST_OPS:
        return None
    last = np.bincount(inside_s.argmin(axis=1), minlength=len(ranks))
    place = int(last.argmax())
    others = np.delete(inside_s, place, axis=1)
    ahead_s = np.median(others, axis=1) - inside_s[:, place]
    spread_s = _MAD_TO_SIGMA * float(np.median(np.abs(others - np.median(others, axis=1, keepdims=True))))
    awaited_s = float(np.median(ahead_s))
    period_s = _period_s(comm, ranks[place]) or float(np.median(others))
    share = awaited_s / period_s if period_s > 0 else 0.0
    stands_out = last[place] >= _LAST_SHARE * len(inside_s) and awaited_s > SIGMAS * spread_s / np.sqrt(len(inside_s))
    if not stands_out or share < LAWFUL_SKEW_SHARE or awaited_s <= error_s:
        return None
    return _Late(ranks[place], awaited_s, share, len(inside_s), comm.name)


def _period_s(comm: CommEvidence, rank: int) -> float:
    """The usual time between two operations of a communicator; 0 where no times are known."""
    times_s = [call.shown_s() for call in comm.members[rank].calls.values() if call.shown_s() > 0]
    return float(np.median(np.diff(times_s))) if len(times_s) > _LEAST_OPS else 0.0


def _waits(job: JobEvidence, comm: CommEvidence) -> tuple[Floats, float]:
    """How long each member was inside the latest operations, shape (operations, members), and the error of that."""
    calls = [comm.members[rank].calls for rank in sorted(comm.members)]
    shared = sorted(set.intersection(*(set(one) for one in calls)))[-2 * _RECENT_OPS :]
    inside_s = _rows([[_inside_s(one[seq]) for one in calls] for seq in shared], len(calls))
    if len(inside_s) >= _LEAST_OPS:
        return inside_s, 0.0
    called_s = _rows([[one[seq].created_s or -1.0 for one in calls] for seq in shared], len(calls))
    return called_s.max(axis=1, keepdims=True, initial=0.0) - called_s, job.clock_error_s(comm.members)


def _inside_s(call: Call) -> float:
    """How long a call took, by its own duration or else by its times on one clock; -1 if that is not known."""
    if call.duration_s < 0 and call.created_s and call.finished_s:
        return call.finished_s - call.created_s
    return call.duration_s


def _rows(found: list[list[float]], members: int) -> Floats:
    """The latest rows in which nothing is unknown, that is, negative."""
    whole = [row for row in found if min(row) >= 0][-_RECENT_OPS:]
    table: Floats = np.asarray(whole, dtype=np.float64).reshape(len(whole), members)
    return table
