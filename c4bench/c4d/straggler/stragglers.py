"""Non-communication slowness: the rank that the others wait for, operation after operation.

In each operation the rank that waits least, the one with the shortest time inside, is the last to come (C4D's
receiver-driven wait analysis). It is late by its own doing only if it also computed longer before. Both times are
differences on the rank's own clock, so host clock offsets do not matter.
"""

import msgspec
import numpy as np

from c4bench.c4d.columns import Bools, Floats, Index, Ints, Table, enlarged, medians, rounds
from c4bench.c4d.ingest.operations import Finished
from c4bench.c4d.straggler.compute_intervals import ComputeIntervals, usual_s
from c4bench.c4d.straggler.empirical_null import EmpiricalNull, operations_per_iteration
from c4bench.c4d.straggler.intermittent_stragglers import IntermittentStragglers
from c4bench.c4d.straggler.thresholds import (
    FIRST_HISTORY_OPS,
    INTERVAL_SHARE,
    LAWFUL_SKEW_SHARE,
    MATERIAL_SHARE,
    MAX_RUN_OPS,
    MIN_HISTORY_OPS,
    MIN_RUN_OPS,
    MIN_RUN_PERIODS,
)
from c4bench.c4d.straggler.usual_gaps import UsualGaps
from c4bench.c4d.thresholds import benign_stall_s

# Operations whose lateness is kept as the healthy history, the latest ones.
_HISTORY_OPS = 256
# Operations between two updates of a member's usual lateness, which changes slowly.
_SKEW_EVERY = 8


class Straggler(msgspec.Struct, frozen=True):
    """A member of a communicator (by its number) that is late: by which share of the compute time, since when.

    It was so over `ops` operations. One that is not `lasting` comes and goes; `ops` are then the times it was late,
    `share` is that of the last.
    """

    comm: int
    member: int
    share: float
    ops: int
    onset_s: float
    lasting: bool = True


# A communicator of which no operation is known.
_BLANK: dict[str, float] = {
    "judged": 0,
    "taught": 0,
    "usual_of": -1,
    "lawful": LAWFUL_SKEW_SHARE,
    "counted": False,
}


class StragglerDetector:
    """Follows a job's communicators of `size` members; shares are of the median compute time before the same operation.

    Every array has a row for each communicator. `intermittent` counts the whole job's stragglers that come and go.
    """

    def __init__(self, size: int, intermittent: IntermittentStragglers) -> None:
        self._size = size
        self._intermittent = intermittent
        self._rows = Index()
        self._table = Table(comm=0, **_BLANK)
        self._intervals = ComputeIntervals(size)
        self._gaps = UsualGaps()
        self._recent = np.empty((0, MAX_RUN_OPS, size))
        self._entered_s = np.empty((0, MAX_RUN_OPS, size))
        self._history = np.empty((0, size, FIRST_HISTORY_OPS))
        self._usual = np.zeros((0, size))
        self._worst = np.zeros((0, MIN_RUN_OPS))
        self._standing: dict[int, set[int]] = {}

    @property
    def standing(self) -> list[tuple[int, int]]:
        """Communicators, by number, and members of theirs that are late for good and have been named."""
        return [(int(self._table["comm"][row]), place) for row, late in self._standing.items() for place in late]

    @property
    def disturbed(self) -> bool:
        """Whether a rank that is not known to be late was very late just now."""
        return bool((self._worst > LAWFUL_SKEW_SHARE).any())

    def evaluate(self, ops: Finished, period_s: float) -> list[Straggler]:
        """Members that these operations show to be late, each once until it keeps up again."""
        usable = np.asarray(~np.isnan(ops.gap_s).any(axis=1))
        middle_s, awaited_s = usual_s(ops.gap_s), self._awaited_s(ops)
        found = []
        for turn in rounds(ops.comms):
            which = turn[usable[turn]]
            found += self._evaluate(ops.pick(which), middle_s[which], awaited_s[which], period_s)
        return found

    def _awaited_s(self, ops: Finished) -> Floats:
        """How long others waited for each member: by how much it was inside for less than most."""
        awaited_s: Floats = np.sort(ops.duration_s, axis=1)[:, [self._size // 2]] - ops.duration_s
        return awaited_s

    def _evaluate(self, ops: Finished, middle_s: Floats, awaited_s: Floats, period_s: float) -> list[Straggler]:
        """The same of one operation of each communicator; `middle_s` and `awaited_s` as in `ComputeIntervals`."""
        rows, ops, shares = self._shares(ops, middle_s, awaited_s, period_s)
        if not len(rows):
            return []
        self._remember(rows, shares, ops.entered_s)
        skew = self._skew(rows)
        beyond = shares - skew
        taught = self._table["taught"][rows]
        known = taught >= MIN_HISTORY_OPS
        # Most operations show nobody late and go no further.
        telling = np.flatnonzero(known & (beyond.max(axis=1) > MATERIAL_SHARE))
        if len(telling):
            telling = telling[self._lasting(rows[telling], skew[telling])]
        found = ((index, self._late(int(rows[index]), skew[index], period_s)) for index in telling.tolist())
        stragglers = {index: late for index, late in found if late}
        known[list(stragglers)] = False
        passing = np.flatnonzero(known)
        stragglers |= self._intermittent_late(rows, ops, beyond, passing, benign_stall_s(period_s))
        young = taught < FIRST_HISTORY_OPS
        young[list(stragglers)] = False
        self._learn(rows[young], shares[young])
        worst = beyond.max(axis=1)
        fresh = []
        for index in sorted(stragglers.keys() | self._late_before(rows)):
            fresh += self._name(int(rows[index]), stragglers.get(index, []))
            others = np.delete(beyond[index], list(self._standing.get(int(rows[index]), ())))
            worst[index] = others.max(initial=0.0)
        self._worst[rows, self._table["judged"][rows] % MIN_RUN_OPS] = worst
        return fresh

    def forget(self, comm: int) -> None:
        """Forget a communicator by its number, which another may have later."""
        if (row := self._rows.get(comm, -1)) < 0:
            return
        for name, blank in _BLANK.items():
            self._table[name][row] = blank
        self._intervals.forget(row)
        self._gaps.forget(row)
        self._usual[row], self._worst[row] = 0.0, 0.0
        self._standing.pop(row, None)

    def _late_before(self, rows: Ints) -> set[int]:
        """Which of the rows are of communicators with members that are known to be late."""
        return set(np.flatnonzero(np.isin(rows, list(self._standing))).tolist()) if self._standing else set()

    def _rows_of(self, comms: Ints) -> Ints:
        keys = comms.tolist()
        rows = self._rows.rows(keys, len(keys))
        for index in np.flatnonzero(rows < 0).tolist():
            rows[index] = self._rows[keys[index]] = self._table.add()
            self._table["comm"][rows[index]] = keys[index]
        if self._table.count > len(self._worst):
            self._make_room(len(self._table["comm"]))
        return rows

    def _make_room(self, rows: int) -> None:
        self._intervals.make_room(rows)
        self._gaps.make_room(rows)
        self._recent, self._entered_s = enlarged(self._recent, rows), enlarged(self._entered_s, rows)
        self._history, self._usual = enlarged(self._history, rows), enlarged(self._usual, rows)
        self._worst = enlarged(self._worst, rows)

    def _shares(
        self, ops: Finished, middle_s: Floats, awaited_s: Floats, period_s: float
    ) -> tuple[Ints, Finished, Floats]:
        """Each member's lateness as a share of the median gap, where enough operations tell of computing."""
        rows = self._rows_of(ops.comms)
        telling = self._gaps.add(rows, middle_s[:, 0])
        rows, ops = rows[telling], ops.pick(telling)
        interval = self._intervals.add(rows, awaited_s[telling], ops, middle_s[telling], INTERVAL_SHARE * period_s)
        rows, ops = rows[interval.rows], ops.pick(interval.rows)._replace(gap_s=interval.lasted_s)
        self._table["lawful"][rows] = LAWFUL_SKEW_SHARE * np.maximum(1.0, period_s / interval.middle_s[:, 0])
        return rows, ops, np.minimum(interval.awaited_s, interval.longer_s) / interval.middle_s

    def _remember(self, rows: Ints, shares: Floats, entered_s: Floats) -> None:
        judged = self._table["judged"][rows]
        oldest = judged % MAX_RUN_OPS
        due = (judged >= MAX_RUN_OPS) & (self._table["taught"][rows] >= FIRST_HISTORY_OPS)
        self._learn(rows[due], self._recent[rows[due], oldest[due]])
        self._recent[rows, oldest], self._entered_s[rows, oldest] = shares, entered_s
        self._table["judged"][rows] = judged + 1

    def _newest_first(self, row: int, kept: Floats) -> Floats:
        """What was kept of the last operations of a communicator."""
        judged = int(self._table["judged"][row])
        newest_first: Floats = kept[row, (judged - 1 - np.arange(min(judged, MAX_RUN_OPS))) % MAX_RUN_OPS]
        return newest_first

    def _skew(self, rows: Ints) -> Floats:
        """Each member's usual lateness, as far as it is small enough to be how the job is built."""
        taught, usual_of = self._table["taught"][rows], self._table["usual_of"][rows]
        due = (usual_of < 0) | (taught % _SKEW_EVERY == 0) | (taught <= FIRST_HISTORY_OPS)
        due &= (taught > 0) & (usual_of != taught)
        known = np.minimum(taught[due], _HISTORY_OPS)
        for count in set(known.tolist()):
            which = rows[due][known == count]
            self._usual[which] = medians(self._history[which, :, :count])
        self._table["usual_of"][rows[due]] = taught[due]
        skew: Floats = np.clip(self._usual[rows], 0.0, self._table["lawful"][rows, None])
        return skew

    def _learn(self, rows: Ints, shares: Floats) -> None:
        if not len(rows):
            return
        known = np.isin(rows, list(self._standing)) if self._standing else np.zeros(len(rows), np.bool_)
        rows, shares = rows[~known], shares[~known]
        taught = self._table["taught"][rows]
        room = self._history.shape[2]
        if int(taught.max(initial=0)) >= room < _HISTORY_OPS:
            self._history = np.concatenate([self._history, np.empty_like(self._history)], axis=2)
        self._history[rows, :, taught % _HISTORY_OPS] = shares
        self._table["taught"][rows] = taught + 1

    def _lasting(self, rows: Ints, skew: Floats) -> Bools:
        """Whether a member was late on average in any run of the latest operations that is long enough."""
        judged, places = self._table["judged"][rows, None], np.arange(MAX_RUN_OPS)
        recent = self._recent[rows[:, None], (judged - 1 - places) % MAX_RUN_OPS] - skew[:, None]
        means = np.cumsum(recent, axis=1) / (places + 1)[:, None]
        late = (means > MATERIAL_SHARE).any(axis=2) & (places >= MIN_RUN_OPS - 1) & (places < judged)
        return np.asarray(late.any(axis=1))

    def _late(self, row: int, skew: Floats, period_s: float) -> list[Straggler]:
        """Members whose latest operations were all late, by more than jitter and their usual lateness."""
        recent = self._newest_first(row, self._recent) - skew
        runs = np.arange(1, len(recent) + 1)[:, None]
        means = np.cumsum(recent, axis=0) / runs
        taught = min(int(self._table["taught"][row]), _HISTORY_OPS)
        null = EmpiricalNull(self._history[row, :, :taught].T - skew)
        hit = null.forbids(np.minimum.accumulate(recent, axis=0), means, runs) & (runs >= MIN_RUN_OPS)
        if not hit.any():
            return []
        entered_s = self._newest_first(row, self._entered_s)
        iteration = operations_per_iteration(entered_s[:, 0], period_s)
        hit &= runs > MIN_RUN_PERIODS * iteration
        comm = int(self._table["comm"][row])
        runs_of = {place: np.flatnonzero(hit[:, place]) + 1 for place in np.flatnonzero(hit.any(axis=0)).tolist()}
        longest = {place: null.longest(of, recent[:, place], iteration) for place, of in runs_of.items()}
        return [
            Straggler(comm, place, float(means[run - 1, place]), run, float(entered_s[run - 1, place]))
            for place, run in longest.items()
            if run
        ]

    def _intermittent_late(
        self, rows: Ints, ops: Finished, beyond: Floats, passing: Ints, stall_s: float
    ) -> dict[int, list[Straggler]]:
        """Members that are late again and again without a run that is long enough; in the order of operations."""
        table, stragglers = self._table, {}
        late = beyond[passing] > table["lawful"][rows[passing], None]
        odd = late.any(axis=1) | ~table["counted"][rows[passing]]
        table["counted"][rows[passing]] = True
        begin = 0
        for end in np.flatnonzero(odd).tolist():
            self._intermittent.skip(ops.ranks[passing[begin:end]])
            begin, index = end + 1, int(passing[end])
            op = ops.pick(passing[end : end + 1])
            if named := self._newly_intermittent(int(rows[index]), op, beyond[index], late[end], stall_s):
                stragglers[index] = named
        self._intermittent.skip(ops.ranks[passing[begin:]])
        return stragglers

    def _newly_intermittent(
        self, row: int, op: Finished, beyond: Floats, late: Bools, stall_s: float
    ) -> list[Straggler]:
        standing, ranks = self._standing.get(row, set()), op.ranks[0].tolist()
        came_s, since_s = op.entered_s[0].tolist(), (op.entered_s - op.gap_s)[0].tolist()
        places = {ranks[place]: place for place in np.flatnonzero(late).tolist() if place not in standing}
        spells = {rank: (since_s[place], came_s[place]) for rank, place in places.items()}
        counts = self._intermittent.evaluate(spells, ranks, stall_s)
        comm = int(self._table["comm"][row])
        return [
            Straggler(comm, place, float(beyond[place]), count, came_s[place], lasting=False)
            for place, count in ((places[rank], count) for rank, count in counts.items() if rank in places)
        ]

    def _name(self, row: int, stragglers: list[Straggler]) -> list[Straggler]:
        """Those found that were not named; members that keep up again are no longer named."""
        standing = self._heal(row)
        fresh = [late for late in stragglers if late.member not in standing]
        standing |= {late.member for late in fresh if late.lasting}
        self._standing.pop(row, None)
        if standing:
            self._standing[row] = standing
        return fresh

    def _heal(self, row: int) -> set[int]:
        standing = self._standing.get(row, set())
        if not standing:
            return set()
        latest = self._newest_first(row, self._recent)[MIN_RUN_OPS - 1 :: -1]
        last = (latest - self._skew(np.asarray([row]))[0]).mean(axis=0)
        return {place for place in standing if last[place] >= MATERIAL_SHARE}
