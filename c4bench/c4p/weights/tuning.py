"""Corrects the weights of a connection's QPs by their measured throughput, once the connection has become slower."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from c4bench.errors import UsageError
from c4bench.model.telemetry import ConnRecord

# A QP is slow if it takes longer for a byte than in the sample before by this factor.
_SLOWER = 1.25
# Seconds without progress, with bytes outstanding, after which a QP is slow.
_NO_PROGRESS_S = 0.1

# A QP that has not been reported for so long (s) is gone, with its communicator.
_GONE_AFTER_S = 60.0

# Communicator, rank, peer, source NIC, destination NIC.
Connection = tuple[str, int, int, str, str]
# A connection, and the QP's index.
QpKey = tuple[str, int, int, str, str, int]


class ThroughputSample(msgspec.Struct, frozen=True):
    """What a QP did between two records: bytes acknowledged, and the seconds for which any were in flight."""

    size_bytes: int
    transfer_s: float

    @property
    def s_per_byte(self) -> float | None:
        """Transfer time per byte; None if nothing was carried."""
        return self.transfer_s / self.size_bytes if self.size_bytes and self.transfer_s > 0 else None

    def plus(self, other: "ThroughputSample") -> "ThroughputSample":
        """The sum of both."""
        return ThroughputSample(self.size_bytes + other.size_bytes, self.transfer_s + other.transfer_s)


class _LastRecord(msgspec.Struct):
    record: ConnRecord
    at_s: float
    s_per_byte: float | None = None


class _Nic(msgspec.Struct):
    """The QPs that send on a NIC, and when (its host's time, s) those that are gone were forgotten last."""

    looked_s: float
    last: dict[QpKey, _LastRecord] = {}

    def gone(self, now_s: float) -> list[QpKey]:
        """Forget QPs that have not been reported for a while, if it is time to; return them."""
        if abs(now_s - self.looked_s) < _GONE_AFTER_S:
            return []
        self.looked_s = now_s
        gone = [key for key, last in self.last.items() if abs(now_s - last.at_s) > _GONE_AFTER_S]
        for key in gone:
            del self.last[key]
        return gone


class QpThroughput:
    """The newest record of every QP, and its transfer time per byte in the sample before."""

    def __init__(self) -> None:
        self._nics: dict[str, _Nic] = {}

    def ingest(self, records: Iterable[ConnRecord], now_s: float) -> tuple[dict[QpKey, ThroughputSample], set[QpKey]]:
        """Each QP's sample since its last record, and the QPs that are much slower than before or make no progress."""
        samples: dict[QpKey, ThroughputSample] = {}
        slow: set[QpKey] = set()
        for record in records:
            key = (record.comm, record.rank, record.peer, record.source, record.destination, record.qp)
            known = self._nics.get(record.source)
            if known is None:
                known = self._nics[record.source] = _Nic(now_s)
            last = known.last.get(key)
            if last is None:
                known.last[key] = _LastRecord(record, now_s)
                continue
            transfer_s = _transfer_until(record, now_s) - _transfer_until(last.record, last.at_s)
            sample = ThroughputSample(record.size_bytes - last.record.size_bytes, transfer_s)
            samples[key] = sample
            s_per_byte = sample.s_per_byte
            if record.outstanding and now_s - record.last_progress_s > _NO_PROGRESS_S:
                slow.add(key)
            elif s_per_byte is not None:
                if last.s_per_byte is not None and s_per_byte > _SLOWER * last.s_per_byte:
                    slow.add(key)
                last.s_per_byte = s_per_byte
            last.record, last.at_s = record, now_s
        return samples, slow

    def forget(self, comms: Iterable[str]) -> None:
        """Forget communicators that have ended."""
        ended = set(comms)
        for nic in self._nics.values():
            nic.last = {key: last for key, last in nic.last.items() if key[0] not in ended}

    def gone(self, records: Iterable[ConnRecord], now_s: float) -> list[QpKey]:
        """Forget QPs of these records' NICs that are no longer reported; return them."""
        return [
            key for nic in dict.fromkeys(record.source for record in records) for key in self._nics[nic].gone(now_s)
        ]


class WeightTuner:
    """Throughput of every connection's QPs since its weights last changed.

    Samples are added up for `tuning_s` seconds; weights change once a connection is slower than at first by the
    fraction `min_slowdown`.
    """

    def __init__(self, tuning_s: float, min_slowdown: float) -> None:
        self._tuning_s, self._min_slowdown = tuning_s, min_slowdown
        self._throughput = QpThroughput()
        self._sums: dict[Connection, tuple[float, list[ThroughputSample]]] = {}
        self._baselines: dict[Connection, float] = {}

    def ingest(
        self, records: Iterable[ConnRecord], now_s: float
    ) -> tuple[dict[Connection, list[ThroughputSample]], set[Connection]]:
        """The samples of every connection's QPs, in order of their numbers; and the connections with a slow QP."""
        records = list(records)
        samples, slow = self._throughput.ingest(records, now_s)
        for key in self._throughput.gone(records, now_s):
            self._sums.pop(key[:5], None)
            self._baselines.pop(key[:5], None)
        by_connection: dict[Connection, list[ThroughputSample]] = defaultdict(list)
        for key in sorted(samples):
            by_connection[key[:5]].append(samples[key])
        return by_connection, {key[:5] for key in slow}

    def correct(
        self, connection: Connection, weights: Sequence[float], samples: Sequence[ThroughputSample], now_s: float
    ) -> tuple[float, ...] | None:
        """New weights for a connection's QPs; None if the present ones stay.

        The first sample after a change is left out, because it began before the change.
        """
        if connection not in self._sums:
            self._sums[connection] = now_s, [ThroughputSample(0, 0.0)] * len(samples)
            return None
        since_s, before = self._sums[connection]
        sums = [total.plus(sample) for total, sample in zip(before, samples, strict=True)]
        if now_s - since_s < self._tuning_s:
            self._sums[connection] = since_s, sums
            return None
        del self._sums[connection]
        s_per_byte = max(sample.transfer_s for sample in sums) / (sum(sample.size_bytes for sample in sums) or 1)
        baseline = self._baselines.setdefault(connection, s_per_byte)
        # Unless it became slower the plan's shares stay: a QP with little load always looks fast.
        return self._corrected(weights, sums) if s_per_byte > (1 + self._min_slowdown) * baseline else None

    def _corrected(self, weights: Sequence[float], sums: Sequence[ThroughputSample]) -> tuple[float, ...] | None:
        """Weights by the QPs' throughput; None if a QP with a weight has carried nothing."""
        carrying = [sample for weight, sample in zip(weights, sums, strict=True) if weight]
        if not any(sample.size_bytes for sample in carrying) or any(sample.transfer_s <= 0 for sample in carrying):
            return None
        # A QP without weight has no completion time; any number will do, since it keeps weight 0.
        completion_s = [
            weight * sample.s_per_byte if weight and sample.s_per_byte else (None if weight else 1.0)
            for weight, sample in zip(weights, sums, strict=True)
        ]
        return reweigh(weights, completion_s, self._min_slowdown)

    def clear(self) -> None:
        """Discard all sums and baselines, because weights or paths change."""
        self._sums.clear()
        self._baselines.clear()

    def forget(self, comms: Iterable[str]) -> None:
        """Forget communicators that have ended."""
        self._throughput.forget(comms)


def reweigh(
    weights: Sequence[float], completion_s: Sequence[float | None], min_gain: float = 0.05, least: float = 0.01
) -> tuple[float, ...]:
    """New weights for a connection's QPs, from the seconds that each took for its part of an operation; they sum to 1.

    `completion_s` is None for a QP that did not finish; it gets 0. A QP of weight 0 keeps 0. At unchanged rates all QPs
    finish together after this one step. The weights stay if the operation would become faster by less than the fraction
    `min_gain`. A slow QP keeps the share `least`, so that its recovery shows.

    Raises UsageError if the lists do not fit, a time is not positive, or no QP has finished.
    """
    if len(weights) != len(completion_s) or any(time is not None and not time > 0 for time in completion_s):
        raise UsageError("give each QP's weight and its completion time in seconds, above zero, or None")
    total = sum(weights)
    pairs = [(weight / total if total else 0.0, time) for weight, time in zip(weights, completion_s, strict=True)]
    rates = [weight / time if time is not None else 0.0 for weight, time in pairs]
    if not any(rates):
        raise UsageError("no QP of the connection has finished; move it to other paths before reweighing it")
    carrying = [time for weight, time in pairs if weight]
    slowest = max((time for time in carrying if time is not None), default=0.0)
    if None not in carrying and slowest * sum(rates) <= 1 + min_gain:
        return tuple(weight for weight, _ in pairs)
    raised = [max(rate / sum(rates), least) if rate else 0.0 for rate in rates]
    return tuple(rate / sum(raised) for rate in raised)


def _transfer_until(record: ConnRecord, now_s: float) -> float:
    """Transfer time, including the present state's time since it was last stored."""
    running_s = max(0.0, now_s - record.state_since_s) if record.state == "transfer" else 0.0
    return record.transfer_s + running_s
