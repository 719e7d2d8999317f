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
from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from c4bench.attribution.weigh import CHANCE
from c4bench.c4d.observe.columns import Bools, Floats, Ints, SortedIndex, Table, distinct, enlarged, medians, rounds
from c4bench.c4d.observe.operations import Finished
from c4bench.c4d.thresholds import (
    BEARING_SHARE,
    FIRST_HISTORY_OPS,
    INTERVAL_SHARE,
    ITERATION_SHARE,
    KEPT,
    LAWFUL_SKEW_SHARE,
    MATERIAL_SHARE,
    MAX_RUN_OPS,
    MEMORY_OPS,
    MIN_HISTORY_OPS,
    MIN_RUN_OPS,
    MIN_RUN_PERIODS,
    SETTLE_OPS,
    SIGMAS,
    TAIL_POWER,
    benign_stall_s,
)
from c4bench.chance import binomial_tail


class IntermittentStragglers:
    """Counts the episodes of lateness of each of a job's members."""

    def __init__(self) -> None:
        self._members: set[int] = set()
        self._episodes: deque[tuple[int, float]] = deque(maxlen=KEPT)
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
        self._last = {rank: last for rank, last in self._last.items() if self._ops - last < KEPT}
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
            self._last = {rank: last for rank, last in self._last.items() if self._ops - last < KEPT}

    def _beyond_chance(self) -> dict[int, int]:
        while self._episodes and self._ops - self._episodes[0][1] > MEMORY_OPS:
            self._episodes.popleft()
        counts = Counter(member for member, _ in self._episodes)
        total = counts.total()
        beyond = {rank: count for rank, count in counts.items() if self._by_chance(count, total) < CHANCE}
        self._last.update(dict.fromkeys(beyond, self._ops))
        self._episodes = deque((e for e in self._episodes if e[0] not in beyond), maxlen=KEPT)
        return beyond

    def _by_chance(self, count: int, total: int) -> float:
        """The probability that some member has `count` or more of `total` episodes that hit all alike."""
        members = len(self._members)
        return members * binomial_tail(count, total, 1 / members)


class ComputeIntervals:
    """Computing before operations of communicators of `size` members, a row each.

    What is between two operations is added up until there is enough of it: an iteration has few intervals.
    """

    def __init__(self, size: int) -> None:
        each = np.zeros(size)
        # The latest gaps before operations; and of an interval that has not enough computing yet how long others waited
        # for each member, how much longer than usual it computed, since when, and the usual time (0 where it begins).
        self.table = Table(
            seen=0, gaps_s=np.zeros(KEPT), awaited_s=each, longer_s=each, since_s=each, middle_s=np.zeros(1)
        )

    def add(self, rows: Ints, ops: Finished, enough_s: float) -> tuple[Ints, Floats, Floats, Floats]:
        """Add an operation of each row; return those that end intervals in which members computed for `enough_s`.

        Of each interval: the lateness of each member, as a share of the usual time; since when it computed (s); and
        the usual time (s). A member is late by as much as others waited for it and it computed longer.
        """
        size = ops.gap_s.shape[1]
        # The median gap, of an even number the lower one; and by how much each was inside for less than most.
        middle_s = np.sort(ops.gap_s, axis=1)[:, [(size - 1) // 2]]
        awaited_s = np.sort(ops.duration_s, axis=1)[:, [size // 2]] - ops.duration_s
        which = np.flatnonzero(self._tells(rows, middle_s[:, 0]))
        rows, middle_s, gap_s, table = rows[which], middle_s[which], ops.gap_s[which], self.table
        begins = table["middle_s"][rows] == 0
        since_s = np.where(begins, ops.entered_s[which] - gap_s, table["since_s"][rows])
        awaited_s = table["awaited_s"][rows] + awaited_s[which]
        longer_s = table["longer_s"][rows] + (gap_s - middle_s)
        middle_s = table["middle_s"][rows] + middle_s
        table["since_s"][rows], table["awaited_s"][rows] = since_s, awaited_s
        table["longer_s"][rows], table["middle_s"][rows] = longer_s, middle_s
        full = middle_s[:, 0] >= enough_s
        table.clear(rows[full], "awaited_s", "longer_s", "middle_s")
        shares = np.minimum(awaited_s[full], longer_s[full]) / middle_s[full]
        return which[full], shares, since_s[full], middle_s[full, 0]

    def _tells(self, rows: Ints, gap_s: Floats) -> Bools:
        """Add the gap before an operation of each row; return whether it tells of computing.

        A communicator's first operations, which set it up, do not, nor do those after a gap that is much shorter than
        the usual long one: nine in ten are no longer.
        """
        seen = self.table["seen"][rows]
        self.table["gaps_s"][rows, seen % KEPT], self.table["seen"][rows] = gap_s, seen + 1
        kept_s = self.table["gaps_s"][rows]
        telling: Bools = gap_s > BEARING_SHARE * kept_s.max(axis=1)
        short = np.flatnonzero(~telling)
        if len(short):
            known = np.minimum(seen[short] + 1, KEPT)
            ordered = np.sort(kept_s[short], axis=1)
            usual = ordered[np.arange(len(short)), (known - 1) * 9 // 10 - known]
            telling[short] = gap_s[short] > BEARING_SHARE * usual
        return telling & (seen >= SETTLE_OPS)


# Operations whose lateness is kept as the healthy history, the latest ones.
_HISTORY_OPS = 256
# Communicators before and behind one whose histories count beside its own, which may be even by chance; and shares
# in a history, which need nothing beside them.
_BESIDE, _ENOUGH = 16, 1 << 16


class EmpiricalNull:
    """The distribution of shares (any shape) by which healthy members were late, by each of these samples."""

    def __init__(self, *samples: Floats) -> None:
        self._samples = [np.sort(shares, axis=None) for shares in samples]

    def forbids(self, least: Floats, mean: Floats, ops: Ints) -> Bools:
        """Whether runs of `ops` operations, late by `least` at least and `mean` on average, exceed jitter and chance.

        They do by every sample. Beyond all that a sample has the chance is taken to fall with a power (`TAIL_POWER`).
        """
        return np.asarray(np.all([_forbids(healthy, least, mean, ops) for healthy in self._samples], axis=0))

    def longest(self, runs: Ints, shares: Floats, iteration: int) -> int:
        """The longest of `runs` (of so many operations, newest first) that tells without its worst iteration, or 0.

        One uneven iteration, which is benign, makes several operations late: beside a few that are late by chance it
        would pass for a run. An `iteration` has so many operations.
        """
        for run in runs[::-1].tolist():
            worst = int(np.argmax(np.convolve(shares[:run], np.ones(iteration), "valid")))
            rest: Floats = np.delete(shares[:run], slice(worst, worst + iteration))
            if self.forbids(rest.min(), rest.mean(), np.asarray(len(rest))):
                return int(run)
        return 0


def _forbids(healthy: Floats, least: Floats, mean: Floats, ops: Ints) -> Bools:
    """The same by one sorted sample."""
    beyond = len(healthy) - np.searchsorted(healthy, least, side="left")
    latest = max(0.0, healthy[-1])
    rarity = np.divide(latest, least, where=least > latest, out=np.ones_like(least))
    unlikely = (rarity**TAIL_POWER * (beyond + 1) / (len(healthy) + 1)) ** ops < CHANCE
    strong = mean > np.maximum(MATERIAL_SHARE, SIGMAS * float(healthy.std()) / np.sqrt(ops))
    return np.asarray(unlikely & strong)


def operations_per_iteration(entered_s: Floats, period_s: float) -> int:
    """How many operations (newest first) an iteration has: so many come in most periods, however long some are."""
    enough_s = ITERATION_SHARE * period_s
    counts = range(1, len(entered_s))
    return next((n for n in counts if np.median(entered_s[:-n] - entered_s[n:]) >= enough_s), len(entered_s))


class Lateness:
    """Shares of lateness of members, a row for each communicator of `size` of them.

    An operation is added of some rows at once, none of them twice.
    """

    def __init__(self, size: int) -> None:
        each, latest = np.zeros(size), np.zeros((MAX_RUN_OPS, size))
        # `usual` is what it was once `usual_of` operations had been learnt; `lawful` is how much of it may be how the
        # job is built.
        self.table = Table(judged=0, taught=0, usual=each, usual_of=-1, lawful=0.0, recent=latest, entered_s=latest)
        self._history = np.zeros((0, size, FIRST_HISTORY_OPS))

    def latest(self, row: int, name: str = "recent") -> Floats:
        """The shares, or times of entry, of the latest operations of a row, newest first."""
        judged = int(self.table["judged"][row])
        newest_first: Floats = self.table[name][row, (judged - 1 - np.arange(min(judged, MAX_RUN_OPS))) % MAX_RUN_OPS]
        return newest_first

    def healthy(self, row: int) -> tuple[Floats, Floats]:
        """How late members of a row were beyond what is usual while all was well, and those of the rows beside it."""
        beside = min(_BESIDE, _ENOUGH // (_HISTORY_OPS * self._history.shape[1]))
        rows = np.arange(max(0, row - beside), min(self.table.count, row + beside + 1))
        rows = rows[self.table["taught"][rows] > 0]
        shares = {}
        for one, skew in zip(rows.tolist(), self.skew(rows), strict=True):
            shares[one] = (self._history[one, :, : self.table["taught"][one]].T - skew).ravel()
        return shares[row], np.concatenate(list(shares.values()))

    def skew(self, rows: Ints) -> Floats:
        """Each member's usual share, as far as it is small enough to be how the job is built; it changes slowly."""
        table = self.table
        taught, usual_of = table["taught"][rows], table["usual_of"][rows]
        often = (usual_of < 0) | (taught % MIN_HISTORY_OPS == 0) | (taught <= FIRST_HISTORY_OPS)
        due = rows[often & (taught > 0) & (usual_of != taught)]
        if len(due):
            table["usual"][due] = self._medians(due)
            table["usual_of"][due] = table["taught"][due]
        skew: Floats = np.clip(table["usual"].take(rows, axis=0), 0.0, table["lawful"][rows, None])
        return skew

    def _medians(self, rows: Ints) -> Floats:
        """The median of each member's shares in these rows' histories."""
        known, usual = self.table["taught"][rows], np.empty((len(rows), self._history.shape[1]))
        known = np.minimum(known, _HISTORY_OPS)
        for count in distinct(known).tolist():
            usual[known == count] = medians(self._history[rows[known == count], :, :count])
        return usual

    def add(self, rows: Ints, shares: Floats, entered_s: Floats, lawful: Floats, healthy: Bools) -> Floats:
        """Add an operation of each row, that members entered at these times; return what is lawful of each share.

        Of `healthy` rows the oldest of the latest operations, whose place it takes, is learnt.
        """
        table, judged = self.table, self.table["judged"][rows]
        place = judged % MAX_RUN_OPS
        learnt = healthy & (judged >= MAX_RUN_OPS) & (table["taught"][rows] >= FIRST_HISTORY_OPS)
        self.learn(rows[learnt], table["recent"][rows[learnt], place[learnt]])
        table["lawful"][rows] = lawful
        table["recent"][rows, place], table["entered_s"][rows, place] = shares, entered_s
        table["judged"][rows] = judged + 1
        return self.skew(rows)

    def learn(self, rows: Ints, shares: Floats) -> None:
        """Add to the healthy history of each row."""
        if not len(rows):
            return
        taught = self.table["taught"][rows]
        if self.table.count > len(self._history):
            self._history = enlarged(self._history, len(self.table["taught"]))
        if self._history.shape[2] <= int(taught.max()) and self._history.shape[2] < _HISTORY_OPS:
            self._history = np.concatenate([self._history, np.empty_like(self._history)], axis=2)
        self._history[rows, :, taught % _HISTORY_OPS] = shares
        self.table["taught"][rows] = taught + 1

    def lasting(self, rows: Ints, skew: Floats) -> Bools:
        """Whether a member of each row was late beyond `skew` on average in any of its latest runs, if long enough."""
        places, judged = np.arange(MAX_RUN_OPS), self.table["judged"][rows, None]
        recent = self.table["recent"][rows[:, None], (judged - 1 - places) % MAX_RUN_OPS]
        means = np.cumsum(recent - skew[:, None], axis=1) / (places + 1)[:, None]
        late = (means > MATERIAL_SHARE).any(axis=2) & (places >= MIN_RUN_OPS - 1) & (places < judged)
        return np.asarray(late.any(axis=1))


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


class StragglerDetector:
    """Follows a job's communicators of `size` members; shares are of the median compute time before the same operation.

    Every table has a row for each communicator. `intermittent` counts the whole job's stragglers that come and go.
    """

    def __init__(self, size: int, intermittent: IntermittentStragglers) -> None:
        self._intermittent = intermittent
        self._rows = SortedIndex()
        # `counted` are those whose members `intermittent` knows; `worst` is how late any member was that is not known
        # to be, in the latest operations.
        self._table = Table(comm=0, counted=False, worst=np.zeros(MIN_RUN_OPS))
        self._intervals = ComputeIntervals(size)
        self._lateness = Lateness(size)
        self._standing: dict[int, set[int]] = {}

    @property
    def standing(self) -> list[tuple[int, int]]:
        """Communicators, by number, and members of theirs that are late for good and have been named."""
        return [(int(self._table["comm"][row]), place) for row, late in self._standing.items() for place in late]

    @property
    def disturbed(self) -> bool:
        """Whether a rank that is not known to be late was very late just now."""
        return bool((self._table.used("worst") > LAWFUL_SKEW_SHARE).any())

    def evaluate(self, ops: Finished, period_s: float) -> list[Straggler]:
        """Members that these operations show to be late, each once until it keeps up again."""
        usable = np.asarray(~np.isnan(ops.gap_s).any(axis=1))
        found = []
        for turn in rounds(ops.comms):
            found += self._evaluate(ops.pick(turn[usable[turn]]), period_s)
        return found

    def _evaluate(self, ops: Finished, period_s: float) -> list[Straggler]:
        """The same of one operation of each communicator. Most show nobody late."""
        rows = self._rows_of(ops.comms)
        which, shares, since_s, middle_s = self._intervals.add(rows, ops, INTERVAL_SHARE * period_s)
        if not len(which):
            return []
        rows, ops, well = rows[which], ops.pick(which), ~self._late_before(rows[which])
        lawful = LAWFUL_SKEW_SHARE * np.maximum(1.0, period_s / middle_s)
        skew = self._lateness.add(rows, shares, ops.entered_s, lawful, well)
        beyond, taught = shares - skew, self._lateness.table["taught"][rows]
        worst, known = beyond.max(axis=1), taught >= MIN_HISTORY_OPS
        stragglers = self._lasting(rows, np.flatnonzero(known & (worst > MATERIAL_SHARE)), skew, period_s)
        known[list(stragglers)] = False
        late = beyond > lawful[:, None]
        stragglers |= self._intermittent_late(rows, ops, since_s, beyond, late, np.flatnonzero(known), period_s)
        young = well & (taught < FIRST_HISTORY_OPS)
        young[list(stragglers)] = False
        self._lateness.learn(rows[young], shares[young])
        fresh = []
        for index in sorted(stragglers.keys() | set(np.flatnonzero(~well).tolist())):
            fresh += self._name(int(rows[index]), stragglers.get(index, []))
            others = np.delete(beyond[index], list(self._standing.get(int(rows[index]), ())))
            worst[index] = others.max(initial=0.0)
        self._table["worst"][rows, self._lateness.table["judged"][rows] % MIN_RUN_OPS] = worst
        return fresh

    def forget(self, comm: int) -> None:
        """Forget a communicator by its number, which another may have later."""
        (row,) = self._rows.rows(np.asarray([comm])).tolist()
        if row >= 0:
            self._table.clear(row, "counted", "worst")
            self._intervals.table.clear(row)
            self._lateness.table.clear(row)
            self._standing.pop(row, None)

    def _late_before(self, rows: Ints) -> Bools:
        """Which of the rows are of communicators with members that are known to be late."""
        return np.isin(rows, list(self._standing)) if self._standing else np.zeros(len(rows), np.bool_)

    def _rows_of(self, comms: Ints) -> Ints:
        rows = self._rows.open(comms)
        for table in (self._table, self._intervals.table, self._lateness.table):
            table.add(len(self._rows) - table.count)
        self._table["comm"][rows] = comms
        return rows

    def _lasting(self, rows: Ints, telling: Ints, skew: Floats, period_s: float) -> dict[int, list[Straggler]]:
        """Members of `telling` rows whose latest operations were all late, by the row's place among these."""
        if len(telling):
            telling = telling[self._lateness.lasting(rows[telling], skew[telling])]
        found = {index: self._late(int(rows[index]), skew[index], period_s) for index in telling.tolist()}
        return {index: late for index, late in found.items() if late}

    def _late(self, row: int, skew: Floats, period_s: float) -> list[Straggler]:
        """Members whose latest operations were all late, by more than jitter and their usual lateness."""
        recent = self._lateness.latest(row) - skew
        runs = np.arange(1, len(recent) + 1)[:, None]
        means = np.cumsum(recent, axis=0) / runs
        null = EmpiricalNull(*self._lateness.healthy(row))
        hit = null.forbids(np.minimum.accumulate(recent, axis=0), means, runs) & (runs >= MIN_RUN_OPS)
        if not hit.any():
            return []
        entered_s = self._lateness.latest(row, "entered_s")
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
        self,
        rows: Ints,
        ops: Finished,
        since_s: Floats,
        beyond: Floats,
        late: Bools,
        passing: Ints,
        period_s: float,
    ) -> dict[int, list[Straggler]]:
        """Members that are `late` again and again without a run that is long enough, of the operations `passing`."""
        stragglers: dict[int, list[Straggler]] = {}
        counted, begin = self._table["counted"], 0
        odd = late[passing].any(axis=1) | ~counted[rows[passing]]
        counted[rows[passing]] = True
        for end in np.flatnonzero(odd).tolist():
            self._intermittent.skip(ops.ranks[passing[begin:end]])
            begin, index = end + 1, int(passing[end])
            row, ranks, came_s = int(rows[index]), ops.ranks[index].tolist(), ops.entered_s[index].tolist()
            standing = self._standing.get(row, set())
            places = {ranks[place]: place for place in np.flatnonzero(late[index]).tolist() if place not in standing}
            spells = {rank: (float(since_s[index, place]), came_s[place]) for rank, place in places.items()}
            counts = self._intermittent.evaluate(spells, ranks, benign_stall_s(period_s))
            for rank in [rank for rank in counts if rank in places]:
                place, comm = places[rank], int(ops.comms[index])
                named = Straggler(comm, place, float(beyond[index, place]), counts[rank], came_s[place], lasting=False)
                stragglers.setdefault(index, []).append(named)
        self._intermittent.skip(ops.ranks[passing[begin:]])
        return stragglers

    def _name(self, row: int, stragglers: list[Straggler]) -> list[Straggler]:
        """Those found that were not named; members that keep up again are no longer named."""
        standing = self._standing.pop(row, set())
        if standing:
            latest = self._lateness.latest(row)[MIN_RUN_OPS - 1 :: -1]
            last = (latest - self._lateness.skew(np.asarray([row]))[0]).mean(axis=0)
            standing = {place for place in standing if last[place] >= MATERIAL_SHARE}
        fresh = [late for late in stragglers if late.member not in standing]
        standing |= {late.member for late in fresh if late.lasting}
        if standing:
            self._standing[row] = standing
        return fresh
