"""Corrects the weights of a connection's QPs by their measured throughput."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from c4bench.errors import UsageError
from c4bench.model.telemetry import ConnRecord

_SLOWER = 1.25
_STILL_S = 0.1

QpKey = tuple[str, int, int, str, str, int]


class ThroughputSample(msgspec.Struct, frozen=True):
    """What a QP did between two looks: bytes acknowledged, and for how long any were on their way."""

    size_bytes: int
    transfer_s: float

    @property
    def s_per_byte(self) -> float | None:
        """Transfer time per byte; None where nothing was carried."""
        return self.transfer_s / self.size_bytes if self.size_bytes and self.transfer_s > 0 else None

    def plus(self, other: "ThroughputSample") -> "ThroughputSample":
        """Both together."""
        return ThroughputSample(self.size_bytes + other.size_bytes, self.transfer_s + other.transfer_s)


class _Seen(msgspec.Struct):
    record: ConnRecord
    at_s: float
    usual: float | None = None


def key(record: ConnRecord) -> QpKey:
    """What identifies a QP."""
    return record.comm, record.rank, record.peer, record.source, record.destination, record.qp


class QpThroughput:
    """The newest record of every QP, and how fast it usually is."""

    def __init__(self) -> None:
        self._seen: dict[QpKey, _Seen] = {}

    def feed(self, records: Iterable[ConnRecord], now_s: float) -> tuple[dict[QpKey, ThroughputSample], set[QpKey]]:
        """What each QP did since it was last fed, and those that are amiss: much slower than before, or at a stand."""
        laps: dict[QpKey, ThroughputSample] = {}
        amiss: set[QpKey] = set()
        for record in records:
            name = key(record)
            before = self._seen.get(name)
            if before is None:
                self._seen[name] = _Seen(record, now_s)
                continue
            transfer_s = transfer_until(record, now_s) - transfer_until(before.record, before.at_s)
            lap = ThroughputSample(record.size_bytes - before.record.size_bytes, transfer_s)
            laps[name] = lap
            pace = lap.s_per_byte
            if record.outstanding and now_s - record.last_progress_s > _STILL_S:
                amiss.add(name)
            elif pace is not None:
                if before.usual is not None and pace > _SLOWER * before.usual:
                    amiss.add(name)
                before.usual = pace
            before.record, before.at_s = record, now_s
        return laps, amiss

    def forget(self, comms: Iterable[str]) -> None:
        """These communicators are gone."""
        gone = set(comms)
        self._seen = {name: seen for name, seen in self._seen.items() if name[0] not in gone}


def transfer_until(record: ConnRecord, now_s: float) -> float:
    """Transfer time with what the state has lasted since it was last stored."""
    running = max(0.0, now_s - record.state_since_s) if record.state == "transfer" else 0.0
    return record.transfer_s + running


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


def reweigh(
    weights: Sequence[float], completion_s: Sequence[float | None], calm: float = 0.05, least: float = 0.01
) -> tuple[float, ...]:
    """New weights for a connection's QPs, from how long each took for its share of an operation; they sum to 1.

    None where a QP did not finish: it is spared. A QP of weight 0 stays at 0 until it is given some. With rates as
    they were, all QPs would finish together after this one step. The weights stay as they are while the operation
    would become faster by less than the fraction `calm`. A slow QP keeps the share `least`, so that its recovery shows.

    Raises UsageError where the lists do not fit or a time is not positive, and when no QP has finished.
    """
    if len(weights) != len(completion_s) or any(time is not None and not time > 0 for time in completion_s):
        raise UsageError("give each QP's weight and its completion time in seconds, above zero, or None")
    total = sum(weights)
    pairs = [(weight / total if total else 0.0, time) for weight, time in zip(weights, completion_s, strict=True)]
    rates = [weight / time if time is not None else 0.0 for weight, time in pairs]
    if not any(rates):
        raise UsageError("no QP of the connection has finished; move it to other paths before sharing its load anew")
    carrying = [time for weight, time in pairs if weight]
    slowest = max((time for time in carrying if time is not None), default=0.0)
    if None not in carrying and slowest * sum(rates) <= 1 + calm:
        return tuple(weight for weight, _ in pairs)
    raised = [max(rate / sum(rates), least) if rate else 0.0 for rate in rates]
    return tuple(rate / sum(raised) for rate in raised)
