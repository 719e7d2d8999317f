"""By how much members of communicators were late: in their latest operations, while all was well, and usually."""

import numpy as np

from c4bench.c4d.columns import Bools, Floats, Ints, Table, enlarged, medians
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

# Operations whose lateness is kept as the healthy history, the latest ones.
_HISTORY_OPS = 256
# Operations between two updates of a member's usual lateness, which changes slowly.
_USUAL_EVERY = 8
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
        # `usual` is of the time when so many operations had been learnt; `lawful` is how much of it may be how the
        # job is built.
        self.table = Table(judged=0, taught=0, usual=each, usual_of=-1, lawful=0.0, recent=latest, entered_s=latest)
        self._history = np.zeros((0, size, FIRST_HISTORY_OPS))

    def recent(self, row: int) -> Floats:
        """The latest shares of a row, newest first."""
        return self._newest_first(row, "recent")

    def entered_s(self, row: int) -> Floats:
        """When members entered the latest operations of a row, newest first."""
        return self._newest_first(row, "entered_s")

    def _newest_first(self, row: int, name: str) -> Floats:
        judged = int(self.table["judged"][row])
        newest_first: Floats = self.table[name][row, (judged - 1 - np.arange(min(judged, MAX_RUN_OPS))) % MAX_RUN_OPS]
        return newest_first

    def _healthy_history(self, row: int) -> Floats:
        """The healthy shares of a row; shape (members, operations)."""
        healthy: Floats = self._history[row, :, : min(int(self.table["taught"][row]), _HISTORY_OPS)]
        return healthy

    def healthy(self, row: int) -> tuple[Floats, Floats]:
        """How late members of a row were beyond what is usual while all was well, and those of the rows beside it."""
        beside = min(_BESIDE, _ENOUGH // (_HISTORY_OPS * self._history.shape[1]))
        rows = np.arange(max(0, row - beside), min(self.table.count, row + beside + 1))
        rows = rows[self.table["taught"][rows] > 0]
        skews = self.skew(rows)
        shares = {
            one: (self._healthy_history(one).T - skew).ravel() for one, skew in zip(rows.tolist(), skews, strict=True)
        }
        return shares[row], np.concatenate(list(shares.values()))

    def skew(self, rows: Ints) -> Floats:
        """Each member's usual share, as far as it is small enough to be how the job is built."""
        table = self.table
        taught, usual_of = table["taught"][rows], table["usual_of"][rows]
        often = (usual_of < 0) | (taught % _USUAL_EVERY == 0) | (taught <= FIRST_HISTORY_OPS)
        due = rows[often & (taught > 0) & (usual_of != taught)]
        if len(due):
            table["usual"][due] = self._medians(due)
            table["usual_of"][due] = table["taught"][due]
        skew: Floats = np.clip(table["usual"].take(rows, axis=0), 0.0, table["lawful"][rows, None])
        return skew

    def _medians(self, rows: Ints) -> Floats:
        """The median of each member's shares in these rows' histories."""
        known = np.minimum(self.table["taught"][rows], _HISTORY_OPS)
        if known.min() == known.max():
            return medians(self._history[rows, :, : known[0]])
        usual = np.empty((len(rows), self._history.shape[1]))
        for count in set(known.tolist()):
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
