"""Corrects the shares of a connection's QPs by their completion times, where it has become slower than it was."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from c4bench.c4p.qp_throughput import QpThroughput, ThroughputSample
from c4bench.c4p.weights import reweigh
from c4bench.model.telemetry import ConnRecord

Connection = tuple[str, int, int, str, str]


class WeightTuner:
    """What telemetry has said of every connection since shares were last changed."""

    def __init__(self, settle_s: float, calm: float) -> None:
        self._settle_s, self._calm = settle_s, calm
        self._pace = QpThroughput()
        self._gathered: dict[Connection, tuple[float, list[ThroughputSample]]] = {}
        self._usual: dict[Connection, float] = {}

    def feed(
        self, records: Iterable[ConnRecord], now_s: float
    ) -> tuple[dict[Connection, list[ThroughputSample]], set[Connection]]:
        """The laps of every connection's QPs, in order of their numbers; and the connections with one amiss."""
        laps, amiss = self._pace.feed(records, now_s)
        found: dict[Connection, list[ThroughputSample]] = defaultdict(list)
        for name in sorted(laps):
            found[name[:5]].append(laps[name])
        return found, {name[:5] for name in amiss}

    def judge(
        self, place: Connection, weights: Sequence[float], laps: Sequence[ThroughputSample], now_s: float
    ) -> tuple[float, ...] | None:
        """New weights for a connection, None where the present ones stand.

        Laps are gathered until they say something, beginning with the first that lies wholly after the last change.
        """
        if place not in self._gathered:
            self._gathered[place] = now_s, [ThroughputSample(0, 0.0)] * len(laps)
            return None
        since_s, before = self._gathered[place]
        gathered = [one.plus(other) for one, other in zip(before, laps, strict=True)]
        if now_s - since_s < self._settle_s:
            self._gathered[place] = since_s, gathered
            return None
        del self._gathered[place]
        pace = max(lap.transfer_s for lap in gathered) / (sum(lap.size_bytes for lap in gathered) or 1)
        usual = self._usual.setdefault(place, pace)
        # Where nothing has become slower the plan's shares stand: a QP with little to do always looks fast.
        return self._corrected(weights, gathered) if pace > (1 + self._calm) * usual else None

    def _corrected(self, weights: Sequence[float], laps: Sequence[ThroughputSample]) -> tuple[float, ...] | None:
        """Weights by what each QP carried in its time; None where not every QP has carried something."""
        carrying = [lap for weight, lap in zip(weights, laps, strict=True) if weight]
        if not any(lap.size_bytes for lap in carrying) or any(lap.transfer_s <= 0 for lap in carrying):
            return None
        # A spared QP has no time of its own; any will do.
        took = [
            weight * lap.s_per_byte if weight and lap.s_per_byte else (None if weight else 1.0)
            for weight, lap in zip(weights, laps, strict=True)
        ]
        return reweigh(weights, took, self._calm)

    def clear(self) -> None:
        """Shares or paths are being changed: what was said so far does not count any more."""
        self._gathered.clear()
        self._usual.clear()

    def forget(self, comms: Iterable[str]) -> None:
        """These communicators are gone."""
        self._pace.forget(comms)
