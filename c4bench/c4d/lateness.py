"""Non-communication slowness: the rank the others wait for, operation after operation.

In each operation the rank that waits least, the one with the shortest time inside, is the last to come (C4D's
receiver-driven wait analysis). It is late by its own doing only if it also computed longer before. Both times are
differences on the rank's own clock, so host clock offsets do not matter.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from c4bench.c4d.comm_view import OpSample
from c4bench.c4d.thresholds import (
    CHANCE,
    FIRST_HISTORY_OPS,
    LAWFUL_SKEW_SHARE,
    MATERIAL_SHARE,
    MAX_RUN_OPS,
    MIN_HISTORY_OPS,
    MIN_RUN_OPS,
    MIN_RUN_PERIODS,
    SETTLE_OPS,
    SIGMAS,
    TAIL_POWER,
)
from c4bench.c4d.wandering import Wandering

Floats = NDArray[np.float64]

# An operation after less computing than this share of the usual long gap tells nothing about computing; nor does one
# after less than a material share of the period, such as a collective called right behind another.
_BEARING_SHARE = 0.2
_GAPS_KEPT = 64
_TINY = 1e-9
_HISTORY_OPS = 256
# What is usual changes slowly once it is known.
_SKEW_EVERY = 8


class Late(msgspec.Struct, frozen=True):
    """A rank that is late: by which share of the compute time, over how many operations, since which operation.

    One that is not `lasting` comes and goes; `ops` are then the times it was late, `share` is that of the last.
    """

    rank: int
    share: float
    ops: int
    onset_s: float
    lasting: bool = True


class Lateness:
    """Follows one communicator; shares are of the median compute time before the same operation.

    `seats` are its members' ranks in the job, `wandering` counts the whole job's stragglers that come and go.
    """

    def __init__(self, ranks: list[int], seats: Mapping[int, int], wandering: Wandering) -> None:
        self._ranks = ranks
        self._seats = seats
        self._gaps_s: deque[float] = deque(maxlen=_GAPS_KEPT)
        self._seen = 0
        self._recent: deque[Floats] = deque(maxlen=MAX_RUN_OPS)
        self._entries: deque[dict[int, float]] = deque(maxlen=MAX_RUN_OPS)
        self._history: deque[Floats] = deque(maxlen=_HISTORY_OPS)
        self._taught = 0
        self._lawful = LAWFUL_SKEW_SHARE
        self._standing: set[int] = set()
        self._worst: deque[float] = deque(maxlen=MIN_RUN_OPS)
        self._usual: Floats | None = None
        self._wandering = wandering

    @property
    def standing(self) -> frozenset[int]:
        """Members that are late and have been named."""
        wanders = self._wandering.standing
        return frozenset(self._standing) | {rank for rank in self._ranks if self._seats[rank] in wanders}

    @property
    def disturbed(self) -> bool:
        """Whether a rank that is not known to be late was very late just now."""
        return any(worst > LAWFUL_SKEW_SHARE for worst in self._worst)

    def judge(self, op: OpSample, period_s: float | None) -> list[Late]:
        """Ranks that `op` shows to be late for good, each once until it keeps up again."""
        shares = self._shares(op, period_s or 0.0)
        if shares is None:
            return []
        self._lawful = LAWFUL_SKEW_SHARE * max(1.0, (period_s or 0.0) / self._gaps_s[-1])
        if len(self._recent) == MAX_RUN_OPS and self._taught >= FIRST_HISTORY_OPS:
            self._teach(self._recent[0])
        self._recent.append(shares)
        self._entries.append(op.entered_s)
        beyond = shares - self._skew()
        # Most operations show nobody late, and are done with here.
        telling = self._taught >= MIN_HISTORY_OPS and float(beyond.max()) > MATERIAL_SHARE
        found = self._late(period_s or 0.0) if telling else []
        found += self._come_and_gone(beyond) if self._taught >= MIN_HISTORY_OPS and not found else []
        if self._taught < FIRST_HISTORY_OPS and not found:
            self._teach(shares)
        self._heal()
        fresh = [late for late in found if late.rank not in self._standing]
        self._standing.update(late.rank for late in fresh if late.lasting)
        unknown = beyond if not self._standing else beyond[[rank not in self._standing for rank in self._ranks]]
        self._worst.append(float(unknown.max(initial=0.0)))
        return fresh

    def _shares(self, op: OpSample, period_s: float) -> Floats | None:
        """Each rank's lateness as a share of the median gap; None if the operation tells nothing about computing."""
        gaps = [op.gap_s[rank] for rank in self._ranks]
        known = [gap for gap in gaps if gap is not None]
        if len(known) < len(gaps):
            return None
        middle_s = statistics.median_low(known)
        self._gaps_s.append(middle_s)
        self._seen += 1
        bearing_s = max(_BEARING_SHARE * _long(self._gaps_s), MATERIAL_SHARE * period_s)
        if self._seen <= SETTLE_OPS or middle_s <= bearing_s:
            return None
        durations = [op.duration_s[rank] for rank in self._ranks]
        awaited = statistics.median_high(durations) - np.asarray(durations)
        late: Floats = np.minimum(awaited, np.asarray(known) - middle_s) / middle_s
        return late

    def _skew(self) -> Floats:
        """The lateness each rank always had, as far as it is small enough to be how the job is built."""
        if not self._history:
            return np.zeros(len(self._ranks))
        if self._usual is None or self._taught % _SKEW_EVERY == 0 or self._taught <= FIRST_HISTORY_OPS:
            self._usual = np.median(np.asarray(self._history), axis=0)
        return np.clip(self._usual, 0.0, self._lawful)

    def _teach(self, shares: Floats) -> None:
        if not self._standing:
            self._history.append(shares)
            self._taught += 1

    def _late(self, period_s: float) -> list[Late]:
        """Ranks whose last few operations were all late, more than jitter and habit allow."""
        skew = self._skew()
        recent = (np.asarray(self._recent) - skew)[::-1]
        history = np.sort(np.asarray(self._history) - skew, axis=None)
        runs = np.arange(1, len(recent) + 1)[:, None]
        means = np.cumsum(recent, axis=0) / runs
        least = np.minimum.accumulate(recent, axis=0)
        beyond = len(history) - np.searchsorted(history, least, side="left")
        rarity = np.clip(max(history[-1], _TINY) / np.maximum(least, _TINY), 0.0, 1.0) ** TAIL_POWER
        unlikely = (rarity * (beyond + 1) / (len(history) + 1)) ** runs < CHANCE
        strong = means > np.maximum(MATERIAL_SHARE, SIGMAS * float(history.std()) / np.sqrt(runs))
        hit = unlikely & strong & (runs >= MIN_RUN_OPS) & self._lasting(period_s)[:, None]
        return [self._describe(hit, means, column) for column in np.flatnonzero(hit.any(axis=0))]

    def _come_and_gone(self, beyond: Floats) -> list[Late]:
        late = {self._ranks[column]: float(beyond[column]) for column in np.flatnonzero(beyond > self._lawful)}
        seats = {self._seats[rank]: rank for rank in late if rank not in self._standing}
        found = self._wandering.judge(seats, [self._seats[rank] for rank in self._ranks])
        return [
            Late(rank, late[rank], count, self._entries[-1][rank], lasting=False)
            for rank, count in ((seats[seat], count) for seat, count in found.items() if seat in seats)
        ]

    def _lasting(self, period_s: float) -> NDArray[np.bool_]:
        """Which runs are longer than one uneven iteration can make them, however many operations it has."""
        rank = self._ranks[0]
        entered = np.asarray([entry[rank] for entry in self._entries])[::-1]
        lasting: NDArray[np.bool_] = entered[0] - entered >= MIN_RUN_PERIODS * period_s
        return lasting

    def _describe(self, hit: NDArray[np.bool_], means: Floats, column: np.intp) -> Late:
        ops = int(np.flatnonzero(hit[:, column])[-1]) + 1
        rank = self._ranks[int(column)]
        return Late(rank, float(means[ops - 1, column]), ops, self._entries[-ops][rank])

    def _heal(self) -> None:
        if not self._standing:
            return
        last = (np.asarray(self._recent)[-MIN_RUN_OPS:] - self._skew()).mean(axis=0)
        well = {rank for rank, share in zip(self._ranks, last, strict=True) if share < MATERIAL_SHARE}
        self._standing -= well


def _long(gaps_s: Iterable[float]) -> float:
    """The usual long gap: nine in ten are no longer."""
    ordered = sorted(gaps_s)
    return ordered[(len(ordered) - 1) * 9 // 10]
