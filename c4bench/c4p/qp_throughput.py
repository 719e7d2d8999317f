"""How fast each QP carries its share, from cumulative telemetry: what corrects weights, and what looks amiss."""

from collections.abc import Iterable

import msgspec

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
