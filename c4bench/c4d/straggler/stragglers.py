"""Non-communication slowness: the rank that the others wait for, operation after operation.

In each operation the rank that waits least, the one with the shortest time inside, is the last to come (C4D's
receiver-driven wait analysis). It is late by its own doing only if it also computed longer before. Both times are
differences on the rank's own clock, so host clock offsets do not matter.

Intermittent stragglers: always the same rank is late, in some operations only.

Uneven work, garbage collection and slow reads hit all ranks alike. If one rank has so many episodes that chance would
give them to it less than once in ten million, that rank is the cause. The whole job's episodes are counted together,
as a group of a few ranks would need many more.

Lateness in consecutive operations is one episode; what outlasts any benign stall begins another.
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise, starmap
from typing import NamedTuple

import msgspec
import numpy as np

from c4bench.c4d.columns import Bools, Floats, Index, Ints, Table, earlier, enlarged, rounds
from c4bench.c4d.ingest.operations import Finished
from c4bench.c4d.straggler.lateness import USUAL_EVERY, EmpiricalNull, Lateness, lawful_skew, operations_per_iteration
from c4bench.c4d.thresholds import (
    BEARING_SHARE,
    CHANCE,
    FIRST_HISTORY_OPS,
    INTERVAL_SHARE,
    LAWFUL_SKEW_SHARE,
    MATERIAL_SHARE,
    MIN_HISTORY_OPS,
    MIN_RUN_OPS,
    MIN_RUN_PERIODS,
    SETTLE_OPS,
    benign_stall_s,
)
from c4bench.chance import binomial_tail

# The latest episodes are enough to tell one member from all others.
_EPISODES = 64
# Episodes older than this, in operations of all members, say nothing about the present.
_MEMORY_OPS = 512
# A named member that was not late in so many operations of all members has recovered.
_WELL_OPS = 64


class IntermittentStragglers:
    """Counts the episodes of lateness of each of a job's members."""

    def __init__(self) -> None:
        self._members: set[int] = set()
        self._episodes: deque[tuple[int, float]] = deque(maxlen=_EPISODES)
        # Since when (s) those are late that were in their last operation.
        self._late: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._ops = 0.0

    @property
    def standing(self) -> frozenset[int]:
        """Named members that have been late again recently."""
        return frozenset(self._last)

    def evaluate(
        self, late: Mapping[int, tuple[float, float]], members: Collection[int], stall_s: float
    ) -> dict[int, int]:
        """Add an operation of these members; return those newly found with their number of episodes.

        Of those that were late it is known since when they had computed, and when they came (s). No benign stall lasts
        longer than `stall_s`.
        """
        self._members.update(members)
        self._ops += len(members) / len(self._members)
        began = {
            rank: since_s for rank, (since_s, at_s) in late.items() if at_s - self._late.get(rank, -math.inf) > stall_s
        }
        kept = {rank: since_s for rank, since_s in self._late.items() if rank in late or rank not in members}
        self._late = kept | began
        self._last = {rank: last for rank, last in self._last.items() if self._ops - last < _WELL_OPS}
        for member in began:
            if member in self._last:
                self._last[member] = self._ops
            else:
                self._episodes.append((member, self._ops))
        return self._beyond_chance() if began else {}

    def skip(self, members: Ints) -> None:
        """Add operations in which nobody was late, of members known before; shape (operations, members)."""
        if self._late:
            for op in members.tolist():
                self.evaluate({}, op, math.inf)
        elif members.size:
            self._ops += members.size / len(self._members)
            self._last = {rank: last for rank, last in self._last.items() if self._ops - last < _WELL_OPS}

    def _beyond_chance(self) -> dict[int, int]:
        while self._episodes and self._ops - self._episodes[0][1] > _MEMORY_OPS:
            self._episodes.popleft()
        counts = Counter(member for member, _ in self._episodes)
        total = counts.total()
        beyond = {rank: count for rank, count in counts.items() if self._by_chance(count, total) < CHANCE}
        self._last.update(dict.fromkeys(beyond, self._ops))
        self._episodes = deque((e for e in self._episodes if e[0] not in beyond), maxlen=_EPISODES)
        return beyond

    def _by_chance(self, count: int, total: int) -> float:
        """The probability that some member has `count` or more of `total` episodes that hit all alike."""
        members = len(self._members)
        return members * binomial_tail(count, total, 1 / members)


# Gaps before a communicator's operations that are kept, the latest: several iterations.
_GAPS_KEPT = 64


class UsualGaps:
    """The latest gaps (s) before the operations of communicators, a row each."""

    def __init__(self) -> None:
        self._gaps_s: Floats = np.full((0, _GAPS_KEPT), np.inf)
        self._seen: Ints = np.zeros(0, np.int64)

    def make_room(self, rows: int) -> None:
        """For so many communicators."""
        more = rows - len(self._seen)
        self._gaps_s = np.concatenate([self._gaps_s, np.full((more, _GAPS_KEPT), np.inf)])
        self._seen = np.concatenate([self._seen, np.zeros(more, np.int64)])

    def forget(self, row: int) -> None:
        """Forget what a row had; another communicator may use it."""
        self._gaps_s[row], self._seen[row] = np.inf, 0

    def add(self, rows: Ints, gap_s: Floats) -> Bools:
        """Add gaps before operations of these rows, in order; return which of the operations tell of computing.

        A communicator's first operations, which set it up, do not. No row may be there more often than gaps are kept.
        """
        nth = earlier(rows)
        seen = self._seen[rows] + nth
        telling = gap_s > BEARING_SHARE * self._longest(rows, nth, gap_s)
        if telling.all():
            self._gaps_s[rows, seen % _GAPS_KEPT], self._seen[rows] = gap_s, seen + 1
        else:
            for turn in rounds(rows):
                telling[turn] = self._add(rows[turn], gap_s[turn])
        return telling & (seen >= SETTLE_OPS)

    def _longest(self, rows: Ints, nth: Ints, gap_s: Floats) -> Floats:
        """The longest gap of each row, among those kept and those that are added: no usual one is longer."""
        longest_s, each = np.zeros(len(self._seen)), rows[nth == 0]
        kept_s = self._gaps_s.take(each, axis=0)
        longest_s[each] = np.where(kept_s < np.inf, kept_s, 0.0).max(axis=1, initial=0.0)
        np.maximum.at(longest_s, rows, gap_s)
        found: Floats = longest_s[rows]
        return found

    def _add(self, rows: Ints, gap_s: Floats) -> Bools:
        """Add a gap of each of these rows; return which are not much shorter than the usual long one."""
        seen = self._seen[rows]
        self._gaps_s[rows, seen % _GAPS_KEPT], self._seen[rows] = gap_s, seen + 1
        telling: Bools = gap_s > BEARING_SHARE * self._long(rows)
        return telling

    def _long(self, rows: Ints) -> Floats:
        """The usual long gap: nine in ten are no longer."""
        known = np.minimum(self._seen[rows], _GAPS_KEPT)
        longest = int(known.max(initial=1))
        ordered: Floats = np.sort(self._gaps_s[rows, :longest], axis=1)
        usual: Floats = ordered[np.arange(len(rows)), (known - 1) * 9 // 10]
        return usual


class ComputeInterval(NamedTuple):
    """Computing of members (columns) up to an operation of theirs, a row for each communicator that has enough.

    `rows` are those of what was added; by member how long others waited for it at the ends, how much longer than
    `middle_s`, which is usual, it computed, and how long the interval lasted; all in seconds.
    """

    rows: Bools
    awaited_s: Floats
    longer_s: Floats
    middle_s: Floats
    lasted_s: Floats


class ComputeIntervals:
    """The intervals that have not enough computing yet, by communicator row, of `size` members each."""

    def __init__(self, size: int) -> None:
        self._size = size
        # By member (s): how long others waited, how much longer it computed, and since when.
        self._awaited_s, self._longer_s, self._since_s = (np.zeros((0, size)) for _ in range(3))
        # The usual time (s), 0 where an interval begins.
        self._middle_s = np.zeros((0, 1))

    def make_room(self, rows: int) -> None:
        """For so many communicators."""
        more = rows - len(self._middle_s)
        room = np.zeros((more, self._size))
        self._awaited_s, self._longer_s, self._since_s = (
            np.concatenate([sums_s, room]) for sums_s in (self._awaited_s, self._longer_s, self._since_s)
        )
        self._middle_s = np.concatenate([self._middle_s, np.zeros((more, 1))])

    def forget(self, row: int) -> None:
        """Forget what a row had; another communicator may use it."""
        self._clear(np.asarray([row]))

    def _clear(self, rows: Ints) -> None:
        for sums_s in (self._awaited_s, self._longer_s, self._since_s, self._middle_s):
            sums_s[rows] = 0.0

    def add(self, rows: Ints, awaited_s: Floats, ops: Finished, middle_s: Floats, enough_s: float) -> ComputeInterval:
        """Add operations of these rows, in order, after gaps between operations in which their members computed.

        Others waited for its members for `awaited_s`, and `middle_s` is the usual gap of each, shape (rows, 1).
        Intervals that have computed for `enough_s` are returned and start again.
        """
        longer_s = ops.gap_s - middle_s
        if (self._middle_s[rows] == 0).all() and (middle_s >= enough_s).all():  # each operation is one of its own
            return ComputeInterval(np.ones(len(rows), np.bool_), awaited_s, longer_s, middle_s, ops.gap_s)
        full = np.zeros(len(rows), np.bool_)
        ends = ComputeInterval(full, awaited_s.copy(), longer_s, middle_s.copy(), ops.gap_s.copy())
        for turn in rounds(rows):
            self._add(rows[turn], turn, ops, ends, enough_s)
        return ComputeInterval(full, *(values[full] for values in ends[1:]))

    def _add(self, rows: Ints, turn: Ints, ops: Finished, ends: ComputeInterval, enough_s: float) -> None:
        """Add one operation of each of these rows, which `ends` has at `turn`; what it has becomes the interval's."""
        before_s, gap_s, entered_s = self._middle_s[rows], ops.gap_s[turn], ops.entered_s[turn]
        begins, sum_s = before_s == 0, before_s + ends.middle_s[turn]
        since_s = np.where(begins, entered_s - gap_s, self._since_s[rows])
        awaited_s = self._awaited_s[rows] + ends.awaited_s[turn]
        longer_s = self._longer_s[rows] + ends.longer_s[turn]
        self._awaited_s[rows], self._longer_s[rows], self._since_s[rows] = awaited_s, longer_s, since_s
        self._middle_s[rows] = sum_s
        full = sum_s[:, 0] >= enough_s
        self._clear(rows[full])
        lasted_s = np.where(begins, gap_s, entered_s - since_s)
        for values, found in zip(ends, (full, awaited_s, longer_s, sum_s, lasted_s), strict=True):
            values[turn] = found


def usual_s(gap_s: Floats) -> Floats:
    """The median gap of the members of each row; shape (rows, 1). Of an even number the lower one."""
    middle_s: Floats = np.sort(gap_s, axis=1)[:, [(gap_s.shape[1] - 1) // 2]]
    return middle_s


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
_BLANK: dict[str, float] = {"lawful": LAWFUL_SKEW_SHARE, "counted": False}


class _Judged(NamedTuple):
    """Operations of communicators (by row) that tell of computing, turn after turn: no turn has a row twice.

    `shares` are each member's lateness, and `lawful` is how much of it may be how the job is built.
    """

    rows: Ints
    round_of: Ints
    ops: Finished
    shares: Floats
    lawful: Floats

    def split(self) -> Iterator["_Judged"]:
        """Those of one turn after the other."""
        ends = np.flatnonzero(np.diff(self.round_of, append=-1)) + 1
        for turn in starmap(slice, pairwise([0, *ends.tolist()])):
            ops = Finished._make(values[turn] for values in self.ops)
            yield _Judged(self.rows[turn], self.round_of[turn], ops, self.shares[turn], self.lawful[turn])


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
        self._lateness = Lateness(size)
        self._worst = np.zeros((0, MIN_RUN_OPS))
        self._standing: dict[int, set[int]] = {}

    @property
    def standing(self) -> list[tuple[int, int]]:
        """Communicators, by number, and members of theirs that are late for good and have been named."""
        return [(int(self._table["comm"][row]), place) for row, late in self._standing.items() for place in late]

    def latest(self, comm: int, ops: int) -> list[float]:
        """How late each member of a communicator was on average in so many latest operations; empty if not known."""
        recent = self._lateness.recent(row)[:ops] if (row := self._rows.get(comm, -1)) >= 0 else self._worst[:0]
        return list(map(float, recent.mean(axis=0))) if len(recent) else []

    @property
    def disturbed(self) -> bool:
        """Whether a rank that is not known to be late was very late just now."""
        return bool((self._worst > LAWFUL_SKEW_SHARE).any())

    def evaluate(self, ops: Finished, period_s: float) -> list[Straggler]:
        """Members that these operations show to be late, each once until it keeps up again."""
        usable = np.asarray(~np.isnan(ops.gap_s).any(axis=1))
        middle_s, awaited_s = usual_s(ops.gap_s), self._awaited_s(ops)
        usable_rounds = [turn[usable[turn]] for turn in rounds(ops.comms)]
        found = []
        for first in range(0, len(usable_rounds), USUAL_EVERY):
            some = usable_rounds[first : first + USUAL_EVERY]
            which, turn = np.concatenate(some), np.repeat(np.arange(len(some)), list(map(len, some)))
            judged = self._judged(ops.pick(which), turn, middle_s[which], awaited_s.take(which, axis=0), period_s)
            if len(judged.rows) and not self._pass(judged):
                for late in judged.split():
                    found += self._evaluate(late, period_s)
        return found

    def _awaited_s(self, ops: Finished) -> Floats:
        """How long others waited for each member: by how much it was inside for less than most."""
        awaited_s: Floats = np.sort(ops.duration_s, axis=1)[:, [self._size // 2]] - ops.duration_s
        return awaited_s

    def _pass(self, judged: _Judged) -> bool:
        """Add operations, several of a communicator, in which nobody was late; add nothing if somebody was, or may be.

        Most operations are such, and one at a time they would take several times as long.
        """
        rows, shares = judged.rows, judged.shares
        young = self._lateness.taught(rows) < FIRST_HISTORY_OPS
        if self._standing or young.any() or not self._table["counted"][rows].all():
            return False
        new = self._lateness.plan(rows, shares, np.ones(len(rows), np.bool_))
        skew = lawful_skew(new.usual, judged.lawful)
        worst = (shares - skew).max(axis=1)
        if (worst > judged.lawful).any():
            return False
        telling = np.flatnonzero(worst > MATERIAL_SHARE)
        if len(telling) and self._lateness.lasting(new, telling, skew.take(telling, axis=0)).any():
            return False
        for turn in judged.split():
            self._intermittent.skip(turn.ops.ranks)
        self._lateness.add(new, judged.ops.entered_s)
        self._table["lawful"][rows] = judged.lawful
        self._worst[rows, (new.judged + 1) % MIN_RUN_OPS] = worst
        return True

    def _evaluate(self, judged: _Judged, period_s: float) -> list[Straggler]:
        """The same of one operation of each communicator."""
        rows, shares, lawful = judged.rows, judged.shares, judged.lawful
        new = self._lateness.plan(rows, shares, ~self._late_before(rows))
        skew = lawful_skew(new.usual, lawful)
        beyond = shares - skew
        known = new.taught >= MIN_HISTORY_OPS
        # Most operations show nobody late and go no further.
        telling = np.flatnonzero(known & (beyond.max(axis=1) > MATERIAL_SHARE))
        if len(telling):
            telling = telling[self._lateness.lasting(new, telling, skew[telling])]
        self._lateness.add(new, judged.ops.entered_s)
        self._table["lawful"][rows] = judged.lawful
        found = ((index, self._late(int(rows[index]), skew[index], period_s)) for index in telling.tolist())
        stragglers = {index: late for index, late in found if late}
        known[list(stragglers)] = False
        passing = np.flatnonzero(known)
        stragglers |= self._intermittent_late(judged, beyond, passing, benign_stall_s(period_s))
        young = (new.taught < FIRST_HISTORY_OPS) & ~self._late_before(rows)
        young[list(stragglers)] = False
        self._lateness.learn(rows[young], shares[young])
        worst = beyond.max(axis=1)
        fresh = []
        for index in sorted(stragglers.keys() | set(np.flatnonzero(self._late_before(rows)).tolist())):
            fresh += self._name(int(rows[index]), stragglers.get(index, []))
            others = np.delete(beyond[index], list(self._standing.get(int(rows[index]), ())))
            worst[index] = others.max(initial=0.0)
        self._worst[rows, (new.judged + 1) % MIN_RUN_OPS] = worst
        return fresh

    def forget(self, comm: int) -> None:
        """Forget a communicator by its number, which another may have later."""
        if (row := self._rows.get(comm, -1)) < 0:
            return
        for name, blank in _BLANK.items():
            self._table[name][row] = blank
        self._intervals.forget(row)
        self._gaps.forget(row)
        self._lateness.forget(row)
        self._worst[row] = 0.0
        self._standing.pop(row, None)

    def _late_before(self, rows: Ints) -> Bools:
        """Which of the rows are of communicators with members that are known to be late."""
        return np.isin(rows, list(self._standing)) if self._standing else np.zeros(len(rows), np.bool_)

    def _rows_of(self, comms: Ints) -> Ints:
        keys = comms.tolist()
        rows = self._rows.rows(keys, len(keys))
        for index in np.flatnonzero(rows < 0).tolist():
            if keys[index] not in self._rows:
                self._rows[keys[index]] = self._table.add()
            rows[index] = self._rows[keys[index]]
            self._table["comm"][rows[index]] = keys[index]
        if self._table.count > len(self._worst):
            self._make_room(len(self._table["comm"]))
        return rows

    def _make_room(self, rows: int) -> None:
        self._intervals.make_room(rows)
        self._gaps.make_room(rows)
        self._lateness.make_room(rows)
        self._worst = enlarged(self._worst, rows)

    def _judged(self, ops: Finished, round_of: Ints, middle_s: Floats, awaited_s: Floats, period_s: float) -> _Judged:
        """Those of these operations before which there was enough computing, each with what was before it.

        `middle_s` and `awaited_s` as in `ComputeIntervals`.
        """
        rows = self._rows_of(ops.comms)
        telling = np.flatnonzero(self._gaps.add(rows, middle_s[:, 0]))
        if len(telling) < len(rows):
            rows, round_of, ops, middle_s = rows[telling], round_of[telling], ops.pick(telling), middle_s[telling]
            awaited_s = awaited_s.take(telling, axis=0)
        interval = self._intervals.add(rows, awaited_s, ops, middle_s, INTERVAL_SHARE * period_s)
        ops = ops.pick(interval.rows)._replace(gap_s=interval.lasted_s)
        lawful = LAWFUL_SKEW_SHARE * np.maximum(1.0, period_s / interval.middle_s[:, 0])
        shares = np.minimum(interval.awaited_s, interval.longer_s) / interval.middle_s
        return _Judged(rows[interval.rows], round_of[interval.rows], ops, shares, lawful)

    def _late(self, row: int, skew: Floats, period_s: float) -> list[Straggler]:
        """Members whose latest operations were all late, by more than jitter and their usual lateness."""
        recent = self._lateness.recent(row) - skew
        runs = np.arange(1, len(recent) + 1)[:, None]
        means = np.cumsum(recent, axis=0) / runs
        null = EmpiricalNull(*self._lateness.healthy(row, self._table["lawful"]))
        hit = null.forbids(np.minimum.accumulate(recent, axis=0), means, runs) & (runs >= MIN_RUN_OPS)
        if not hit.any():
            return []
        entered_s = self._lateness.entered_s(row)
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
        self, judged: _Judged, beyond: Floats, passing: Ints, stall_s: float
    ) -> dict[int, list[Straggler]]:
        """Members that are late again and again without a run that is long enough; in the order of operations."""
        rows, ops, counted, stragglers = judged.rows, judged.ops, self._table["counted"], {}
        late = beyond[passing] > judged.lawful[passing, None]
        odd = late.any(axis=1) | ~counted[rows[passing]]
        counted[rows[passing]] = True
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
        latest, rows = self._lateness.recent(row)[MIN_RUN_OPS - 1 :: -1], np.asarray([row])
        skew = lawful_skew(self._lateness.usual(rows), self._table["lawful"][rows])[0]
        last = (latest - skew).mean(axis=0)
        return {place for place in standing if last[place] >= MATERIAL_SHARE}
