"""One-way delays without common clocks: which side of a NIC is slow.

A round trip cannot tell: acknowledgements leave and arrive through the very queues that are slow, so a NIC that
receives slowly also looks slow as a sender. A message's one-way delay crosses only the sender's transmitter and the
receiver's receiver. The clocks' offset is in every delay alike, and drops out of the difference to
the connection's own past.
"""

import math
import statistics
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from c4bench.attribution.weigh import Cell
from c4bench.c4d.observe.columns import Bools, Floats, Ints, distinct, enlarged
from c4bench.c4d.observe.connections import Pairs, Sums
from c4bench.c4d.thresholds import KEPT

# Snapshots of an end that are kept until the other end's window with the same count arrives.
_SNAPSHOTS_KEPT = 32
# The ratio by which one side must have slowed more than the other before it alone is blamed: if both are slow they slow
# alike; if one is, every other message of the other side may wait for the acknowledgement of the one before it.
_CLEAR = math.sqrt(2)
# The ratio to the change of delays elsewhere, up or down, which is what chance does.
_BEYOND_CHANCE = 2.0


class _Snapshots:
    """The newest snapshots of one end of many connections, a row each: counts of messages and sums of times (ns)."""

    def __init__(self) -> None:
        self.counts: Ints = np.zeros((0, _SNAPSHOTS_KEPT), np.int64)
        self._sums_ns: NDArray[np.uint64] = np.zeros((0, _SNAPSHOTS_KEPT), np.uint64)
        self._added: Ints = np.zeros(0, np.int64)
        # The counts that were added last, with their sums; and the highest that are kept.
        self.last: Ints = np.zeros(0, np.int64)
        self.last_ns: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._highest: Ints = np.zeros(0, np.int64)

    def make_room(self, rows: int) -> None:
        """For so many connections."""
        self.counts, self._sums_ns = enlarged(self.counts, rows), enlarged(self._sums_ns, rows)
        self._added, self._highest = enlarged(self._added, rows), enlarged(self._highest, rows)
        self.last, self.last_ns = enlarged(self.last, rows), enlarged(self.last_ns, rows)

    def add(self, rows: Ints, counts: Ints, sums_ns: "NDArray[np.uint64]") -> None:
        """Add a snapshot of each of these rows; one with a count that is kept already replaces it."""
        places, new = self._added[rows] % _SNAPSHOTS_KEPT, np.ones(len(rows), np.bool_)
        # Only one that has begun to count again can have a count that is kept.
        low = np.flatnonzero(counts <= self._highest[rows])
        if len(low):
            kept = self.counts[rows[low]] == counts[low, None]
            new[low] = ~kept.any(axis=1)
            places[low] = np.where(new[low], places[low], kept.argmax(axis=1))
        self.counts[rows, places], self._sums_ns[rows, places] = counts, sums_ns
        self._added[rows] += new
        self._highest[rows] = np.maximum(self._highest[rows], counts)
        self.last[rows], self.last_ns[rows] = counts, sums_ns

    def sums_ns(self, rows: Ints, counts: Ints) -> "tuple[Bools, NDArray[np.uint64]]":
        """Whether snapshots with these counts are kept, and their sums."""
        kept = self.counts[rows] == counts[:, None]
        return kept.any(axis=1) & (counts != 0), self._sums_ns[rows, kept.argmax(axis=1)]

    def forget(self, rows: list[int]) -> None:
        """Forget what these rows had; other connections may use them."""
        self.counts[rows], self._added[rows], self._highest[rows], self.last[rows] = 0, 0, 0, 0


class OneWayDelays:
    """Follows one job's connections, in the rows of `pairs`. Sums of times are 64-bit numbers of ns, and wrap."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._posted, self._arrived = _Snapshots(), _Snapshots()
        # Where both ends had counted equally many messages last: that count, and the difference of the sums.
        self._matched: Ints = np.zeros(0, np.int64)
        self._total_ns: NDArray[np.uint64] = np.zeros(0, np.uint64)
        # Mean one-way delays (plus clock offset) of the messages between two matches, by when the later one was.
        self._known: Ints = np.zeros(0, np.int64)
        self._delays_s: Floats = np.zeros((0, KEPT))
        self._at_s: Floats = np.zeros((0, KEPT))

    def add(self, posted: Sums, arrived: Sums, now_s: float) -> None:
        """Add the newest snapshots of both ends, those that are new since the last call: one of each at most."""
        touched = distinct(np.concatenate([posted.pairs, arrived.pairs]))
        if touched.size and touched[-1] >= len(self._matched):
            self._make_room(2 * int(touched[-1] + 1))
        self._posted.add(*posted)
        self._arrived.add(*arrived)
        self._match(touched, now_s)

    def _make_room(self, rows: int) -> None:
        self._posted.make_room(rows)
        self._arrived.make_room(rows)
        self._matched, self._total_ns = enlarged(self._matched, rows), enlarged(self._total_ns, rows)
        self._known = enlarged(self._known, rows)
        self._delays_s, self._at_s = enlarged(self._delays_s, rows), enlarged(self._at_s, rows)

    def _match(self, rows: Ints, now_s: float) -> None:
        """Where both ends have counted equally many messages, the sums differ by their delays.

        Only the newest counts of each end can match for the first time: older ones were compared when they came.
        """
        posted, arrived = self._posted.last[rows], self._arrived.last[rows]
        counts, total_ns = posted.copy(), self._arrived.last_ns[rows] - self._posted.last_ns[rows]
        apart = np.flatnonzero(posted != arrived)
        counts[apart], total_ns[apart] = self._match_apart(rows[apart], posted[apart], arrived[apart])
        newer = counts > self._matched[rows]
        rows, counts, total_ns = rows[newer], counts[newer], total_ns[newer]
        again = self._matched[rows] > 0
        gained_ns = (total_ns - self._total_ns[rows]).view(np.int64)
        self._keep(rows[again], gained_ns[again] / 1e9 / (counts - self._matched[rows])[again], now_s)
        self._matched[rows], self._total_ns[rows] = counts, total_ns

    def _match_apart(self, rows: Ints, posted: Ints, arrived: Ints) -> "tuple[Ints, NDArray[np.uint64]]":
        """The count at which ends with different newest ones match, 0 for none, and the difference of the sums."""
        by_posted = np.where(self._arrived.sums_ns(rows, posted)[0], posted, 0)
        by_arrived = np.where(self._posted.sums_ns(rows, arrived)[0], arrived, 0)
        counts = np.maximum(by_posted, by_arrived)
        return counts, self._arrived.sums_ns(rows, counts)[1] - self._posted.sums_ns(rows, counts)[1]

    def _keep(self, rows: Ints, delays_s: Floats, now_s: float) -> None:
        places = self._known[rows] % KEPT
        self._delays_s[rows, places], self._at_s[rows, places] = delays_s, now_s
        self._known[rows] += 1

    def forget(self, comms: Collection[str]) -> None:
        """Forget the connections of communicators that have ended."""
        rows = [row for row in self._pairs.remove(comms) if row < len(self._matched)]
        self._posted.forget(rows)
        self._arrived.forget(rows)
        self._matched[rows], self._known[rows] = 0, 0

    def means_s(self, rows: Ints, since_s: float) -> Floats:
        """The mean delays (s) of connections, by their rows, that have become known since then; nan where none has."""
        means_s = np.full(len(rows), math.nan)
        known = np.flatnonzero(rows < len(self._known))
        own = rows[known]
        newer = (self._at_s[own] > since_s) & (np.arange(KEPT) < self._known[own, None])
        counts = newer.sum(axis=1)
        some = counts > 0
        means_s[known[some]] = (self._delays_s[own] * newer).sum(axis=1)[some] / counts[some]
        return means_s

    def side(self, nic: str, onset_s: float) -> str:
        """`rx` or `tx` when delays since `onset_s` have grown clearly more on that side of `nic`, else empty."""
        sent, received, chance = self.growth(nic, onset_s)
        if max(received, sent) <= _BEYOND_CHANCE * chance:
            return ""
        if received > _CLEAR * sent:
            return "rx"
        return "tx" if sent > _CLEAR * received else ""

    def growth(self, nic: str, onset_s: float) -> tuple[float, float, float]:
        """By how much the delays of what a NIC sends, of what it receives, and of all else have changed since then (s).

        Of all else either way counts, which is what chance does.
        """
        grown = self._grown(onset_s)
        sent = _typical([value for (source, _), value in grown.items() if source == nic])
        received = _typical([value for (_, destination), value in grown.items() if destination == nic])
        return sent, received, _typical([abs(value) for cell, value in grown.items() if nic not in cell])

    def _grown(self, onset_s: float) -> Mapping[Cell, float]:
        """Seconds by which the typical delay of each source and destination has grown."""
        grown: dict[Cell, float] = {}
        for (_, source, destination, _), row in self._pairs.rows.items():
            if row >= len(self._known):
                continue
            known = min(int(self._known[row]), KEPT)
            delays_s, later = self._delays_s[row, :known], self._at_s[row, :known] > onset_s
            if later.any() and not later.all():
                growth = statistics.median(delays_s[later].tolist()) - statistics.median(delays_s[~later].tolist())
                grown[source, destination] = max(growth, grown.get((source, destination), growth))
        return grown


def _typical(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0
