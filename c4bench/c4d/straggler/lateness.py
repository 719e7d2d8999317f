"""By how much members of communicators were late: in their latest operations, while all was well, and usually."""

from typing import NamedTuple

import numpy as np

from c4bench.c4d.columns import Bools, Floats, Ints, Table, earlier, enlarged, medians
from c4bench.c4d.thresholds import (
    CHANCE,
    FIRST_HISTORY_OPS,
    ITERATION_SHARE,
    MATERIAL_SHARE,
    MAX_RUN_OPS,
    MIN_RUN_OPS,
    SIGMAS,
    TAIL_POWER,
)

# A share of lateness in place of 0, to divide by.
_TINY = 1e-9


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
            rest = _but_worst(shares[:run], iteration)
            if self.forbids(rest.min(), rest.mean(), np.asarray(len(rest))):
                return int(run)
        return 0


def _forbids(healthy: Floats, least: Floats, mean: Floats, ops: Ints) -> Bools:
    """The same by one sorted sample."""
    beyond = len(healthy) - np.searchsorted(healthy, least, side="left")
    rarity = np.clip(max(healthy[-1], _TINY) / np.maximum(least, _TINY), 0.0, 1.0) ** TAIL_POWER
    unlikely = (rarity * (beyond + 1) / (len(healthy) + 1)) ** ops < CHANCE
    strong = mean > np.maximum(MATERIAL_SHARE, SIGMAS * float(healthy.std()) / np.sqrt(ops))
    return np.asarray(unlikely & strong)


def operations_per_iteration(entered_s: Floats, period_s: float) -> int:
    """How many operations (newest first) an iteration has: so many come in most periods, however long some are."""
    enough_s = ITERATION_SHARE * period_s
    counts = range(1, len(entered_s))
    return next((n for n in counts if np.median(entered_s[:-n] - entered_s[n:]) >= enough_s), len(entered_s))


def _but_worst(shares: Floats, ops: int) -> Floats:
    """All but the so many operations in a row that have most."""
    worst = int(np.argmax(np.convolve(shares, np.ones(ops), "valid")))
    rest: Floats = np.delete(shares, slice(worst, worst + ops))
    return rest


# Operations whose lateness is kept as the healthy history, the latest ones.
_HISTORY_OPS = 256
# Operations between two updates of a member's usual lateness, which changes slowly.
USUAL_EVERY = 8
# Communicators before and behind one whose histories count beside its own, which may be even by chance; and shares
# in a history, which need nothing beside them.
_BESIDE, _ENOUGH = 16, 1 << 16
# A communicator of which no operation is known.
_BLANK = {"judged": 0, "taught": 0, "usual_of": -1}


class Additions(NamedTuple):
    """Operations of communicators (by row), in order, and what adding them makes of what is known.

    `nth` counts the added operations of a row before each. By operation: `shares` are each member's lateness, `judged`
    how many came before, `learns` whether the oldest of the latest operations is learnt, `taught` how many have been
    learnt by then, and what is `usual` then. `due` are those from which on that is another.
    """

    rows: Ints
    nth: Ints
    shares: Floats
    judged: Ints
    learns: Bools
    taught: Ints
    due: Ints
    usual: Floats


class Lateness:
    """Shares of lateness of members, a row for each communicator of `size` of them."""

    def __init__(self, size: int) -> None:
        self._table = Table(**_BLANK)
        # The latest operations, `MAX_RUN_OPS` of each row.
        self._recent, self._entered_s = np.empty((0, size)), np.empty((0, size))
        self._history = np.empty((0, size, FIRST_HISTORY_OPS))
        self._usual = np.zeros((0, size))

    def make_room(self, rows: int) -> None:
        """For so many communicators."""
        self._table.add(rows - self._table.count)
        latest = rows * MAX_RUN_OPS
        self._recent, self._entered_s = enlarged(self._recent, latest), enlarged(self._entered_s, latest)
        self._history, self._usual = enlarged(self._history, rows), enlarged(self._usual, rows)

    def forget(self, row: int) -> None:
        """Forget what a row had; another communicator may use it."""
        for name, blank in _BLANK.items():
            self._table[name][row] = blank
        self._usual[row] = 0.0

    def taught(self, rows: Ints) -> Ints:
        """How many operations of each of these rows are, or were, in its healthy history."""
        taught: Ints = self._table["taught"][rows]
        return taught

    def recent(self, row: int) -> Floats:
        """The latest shares of a row, newest first."""
        return self._newest_first(row, self._recent)

    def entered_s(self, row: int) -> Floats:
        """When members entered the latest operations of a row, newest first."""
        return self._newest_first(row, self._entered_s)

    def _newest_first(self, row: int, kept: Floats) -> Floats:
        judged = int(self._table["judged"][row])
        newest_first: Floats = kept[_place(row, judged - 1 - np.arange(min(judged, MAX_RUN_OPS)))]
        return newest_first

    def history(self, row: int) -> Floats:
        """The healthy shares of a row; shape (members, operations)."""
        healthy: Floats = self._history[row, :, : min(int(self._table["taught"][row]), _HISTORY_OPS)]
        return healthy

    def healthy(self, row: int, lawful: Floats) -> tuple[Floats, Floats]:
        """How late members of a row were beyond what is usual while all was well, and those of the rows beside it too.

        `lawful` is, by row, how much of what is usual may be how the job is built.
        """
        beside = min(_BESIDE, _ENOUGH // (_HISTORY_OPS * self._history.shape[1]))
        rows = np.arange(max(0, row - beside), min(self._table.count, row + beside + 1))
        rows = rows[self.taught(rows) > 0]
        skews = lawful_skew(self.usual(rows), lawful[rows])
        shares = {one: (self.history(one).T - skew).ravel() for one, skew in zip(rows.tolist(), skews, strict=True)}
        return shares[row], np.concatenate(list(shares.values()))

    def usual(self, rows: Ints) -> Floats:
        """Each member's usual share; no row twice."""
        taught = self._table["taught"][rows]
        due = np.flatnonzero(self._due(rows, taught))
        if len(due):
            self._usual[rows[due]] = _usual(self._history[rows[due]], taught[due])
            self._table["usual_of"][rows[due]] = taught[due]
        return self._usual.take(rows, axis=0)

    def _due(self, rows: Ints, taught: Ints) -> Bools:
        """Whether what is usual is another once so many operations have been learnt."""
        usual_of = self._table["usual_of"][rows]
        often: Bools = (usual_of < 0) | (taught % USUAL_EVERY == 0) | (taught <= FIRST_HISTORY_OPS)
        due: Bools = often & (taught > 0) & (usual_of != taught)
        return due

    def plan(self, rows: Ints, shares: Floats, healthy: Bools) -> Additions:
        """What it means to add an operation of each of these rows; only of `healthy` rows are they learnt later.

        A row may be there up to `USUAL_EVERY` times once `FIRST_HISTORY_OPS` of it have been learnt.
        """
        nth = earlier(rows)
        judged, before = self._table["judged"][rows] + nth, self._table["taught"][rows]
        open_ = healthy & (before >= FIRST_HISTORY_OPS)
        taught = before + np.where(open_, np.clip(judged + 1 - MAX_RUN_OPS, 0, nth + 1), 0)
        learns = open_ & (judged >= MAX_RUN_OPS)
        due = np.flatnonzero(self._due(rows, taught) & (learns | (nth == 0)))
        additions = Additions(rows, nth, shares, judged, learns, taught, due, self._usual.take(rows, axis=0))
        return additions._replace(usual=self._usual_along(additions)) if len(due) else additions

    def _usual_along(self, new: Additions) -> Floats:
        """What is usual at each of these operations."""
        self._make_history_room(int(new.taught.max()))
        changed = new.rows[new.due]
        place, since = np.full(len(self._usual), -1), np.zeros(len(self._usual), np.int64)
        place[changed], since[changed] = np.arange(len(changed)), new.nth[new.due]
        at = place[new.rows]
        later = (at >= 0) & (new.nth >= since[new.rows])
        learnt = np.flatnonzero(new.learns & (at >= 0) & (new.nth <= since[new.rows]))
        history = self._history[changed]
        history[at[learnt], :, (new.taught[learnt] - 1) % _HISTORY_OPS] = self._oldest(new, learnt)
        return np.where(later[:, None], _usual(history, new.taught[new.due]).take(at, axis=0), new.usual)

    def _oldest(self, new: Additions, which: Ints) -> Floats:
        """The oldest of the latest operations, which these take the place of."""
        return self._recent.take(_place(new.rows[which], new.judged[which]), axis=0)

    def add(self, new: Additions, entered_s: Floats) -> None:
        """Add operations, which members entered at these times."""
        rows, learns = new.rows, np.flatnonzero(new.learns)
        if len(learns):
            self._make_history_room(int(new.taught.max()))
            self._history[rows[learns], :, (new.taught[learns] - 1) % _HISTORY_OPS] = self._oldest(new, learns)
        places = _place(rows, new.judged)
        self._recent[places], self._entered_s[places] = new.shares, entered_s
        self._table["judged"][rows], self._table["taught"][rows] = new.judged + 1, new.taught
        self._usual[rows[new.due]], self._table["usual_of"][rows[new.due]] = new.usual[new.due], new.taught[new.due]

    def learn(self, rows: Ints, shares: Floats) -> None:
        """Add to the healthy history; no row twice."""
        if len(rows):
            taught = self._table["taught"][rows]
            self._make_history_room(int(taught.max()) + 1)
            self._history[rows, :, taught % _HISTORY_OPS] = shares
            self._table["taught"][rows] = taught + 1

    def _make_history_room(self, taught: int) -> None:
        if taught > self._history.shape[2] < _HISTORY_OPS:
            self._history = np.concatenate([self._history, np.empty_like(self._history)], axis=2)

    def lasting(self, new: Additions, which: Ints, skew: Floats) -> Bools:
        """Whether at these of the new operations a member was late on average in any run that is long enough.

        `skew` is the lateness of each that does not count. To be called before they are added.
        """
        places, judged, nth = np.arange(MAX_RUN_OPS), new.judged[which, None], new.nth[which, None]
        recent = self._recent.take(_place(new.rows[which, None], judged - places), axis=0)
        order = np.argsort(new.rows, kind="stable")
        at = np.empty_like(order)
        at[order] = np.arange(len(order))
        added = places <= nth
        recent[added] = new.shares.take(order[(at[which, None] - places)[added]], axis=0)
        means = np.cumsum(recent - skew[:, None], axis=1) / (places + 1)[:, None]
        late = (means > MATERIAL_SHARE).any(axis=2) & (places >= MIN_RUN_OPS - 1) & (places <= judged)
        return np.asarray(late.any(axis=1))


def _place(rows: Ints | int, nth: Ints) -> Ints:
    """Where the nth operation of a row is kept among the latest."""
    return rows * MAX_RUN_OPS + nth % MAX_RUN_OPS


def _usual(history: Floats, taught: Ints) -> Floats:
    """The median of each member's share in histories of so many operations; puts these into another order."""
    known, usual = np.minimum(taught, _HISTORY_OPS), np.empty(history.shape[:2])
    if known.min() == known.max():
        return medians(history[..., : known[0]])
    for count in set(known.tolist()):
        which = known == count
        usual[which] = medians(history[which, :, :count])
    return usual


def lawful_skew(usual: Floats, most: Floats) -> Floats:
    """Each member's usual lateness, as far as it is small enough to be how the job is built."""
    skew: Floats = np.clip(usual, 0.0, most[:, None])
    return skew
