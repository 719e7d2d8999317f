"""One-way delays without common clocks: which side of a NIC is slow.

A round trip cannot tell: acknowledgements leave and arrive through the very queues that are slow, so a NIC that
receives slowly also looks slow as a sender. A message's one-way delay crosses only the sender's transmitter and the
receiver's receiver. The clocks' offset is in every delay alike, and drops out of the difference to
the connection's own past.
"""

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping

import msgspec

from c4bench.attribution.localise import Cell
from c4bench.model.telemetry import ArrivalRecord, ConnRecord

_End = tuple[str, str, str, int]  # communicator, source, destination, QP of the sending end
_Sums = dict[int, int]  # messages -> sum of times, ns

# Snapshots of an end that are kept until the other end's window with the same count arrives.
_SNAPSHOTS_KEPT = 32
# Delays of a connection that are kept: some before the onset of a slowdown, and some after it.
_DELAYS_KEPT = 64
# Sums of times are 64-bit numbers of ns, which wrap around.
_WRAP = 1 << 64
# The ratio by which one side must have slowed more than the other before it alone is blamed: if both are slow they slow
# alike; if one is, every other message of the other side may wait for the acknowledgement of the one before it.
_CLEAR = math.sqrt(2)
# The ratio to the change of delays elsewhere, up or down, which is what chance does.
_BEYOND_CHANCE = 2.0


class _Delay(msgspec.Struct, frozen=True):
    """The mean one-way delay (plus clock offset) of the messages between two matched snapshots, the later at `at_s`."""

    at_s: float
    delay_s: float


class _Pairing:
    """The two ends of one connection, as snapshots of their counters, and the delays that follow where these match."""

    def __init__(self) -> None:
        self._posted: _Sums = {}
        self._arrived: _Sums = {}
        # The counts that were added last.
        self._posted_last, self._arrived_last = 0, 0
        self.delays: deque[_Delay] = deque(maxlen=_DELAYS_KEPT)
        self._matched: tuple[int, int] | None = None

    def post(self, count: int, total_ns: int) -> None:
        """Add the newest counter of the sending end."""
        _keep(self._posted, count, total_ns)
        self._posted_last = count

    def arrive(self, count: int, total_ns: int) -> None:
        """Add the newest counter of the receiving end."""
        _keep(self._arrived, count, total_ns)
        self._arrived_last = count

    def match(self, now_s: float) -> None:
        """Where both ends have counted equally many messages, the sums differ by their delays.

        Only counts that were added since the last call can match anew.
        """
        count = self._arrived_last if self._arrived_last in self._posted else -1
        if self._posted_last > count and self._posted_last in self._arrived:
            count = self._posted_last
        if count < 0:
            return
        total_ns = (self._arrived[count] - self._posted[count]) % _WRAP
        if self._matched and count > self._matched[0]:
            gained_ns = (total_ns - self._matched[1] + _WRAP // 2) % _WRAP - _WRAP // 2
            self.delays.append(_Delay(now_s, gained_ns / 1e9 / (count - self._matched[0])))
        if self._matched is None or count > self._matched[0]:
            self._matched = (count, total_ns)


class OneWayDelays:
    """Follows one job's connections."""

    def __init__(self) -> None:
        self._pairings: dict[_End, _Pairing] = {}

    def add(self, conns: Iterable[ConnRecord], arrivals: Iterable[ArrivalRecord], now_s: float) -> None:
        """Add the newest counters of both ends, those that are new since the last call."""
        touched: dict[int, _Pairing] = {}
        for conn in conns:
            if conn.posted:
                pairing = self._pairing(conn)
                touched[id(pairing)] = pairing
                pairing.post(conn.posted, conn.posted_sum_ns)
        for end in arrivals:
            if end.arrived:
                pairing = self._pairing(end)
                touched[id(pairing)] = pairing
                pairing.arrive(end.arrived, end.arrived_sum_ns)
        for pairing in touched.values():
            pairing.match(now_s)

    def forget(self, comms: Collection[str]) -> None:
        """Forget the connections of communicators that have ended."""
        self._pairings = {key: pairing for key, pairing in self._pairings.items() if key[0] not in comms}

    def _pairing(self, end: ConnRecord | ArrivalRecord) -> _Pairing:
        key = (end.comm, end.source, end.destination, end.qp)
        pairing = self._pairings.get(key)
        if pairing is None:
            pairing = self._pairings[key] = _Pairing()
        return pairing

    def side(self, nic: str, onset_s: float) -> str:
        """`rx` or `tx` when delays since `onset_s` have grown clearly more on that side of `nic`, else empty."""
        grown = self._grown(onset_s)
        received = _typical([value for (_, destination), value in grown.items() if destination == nic])
        sent = _typical([value for (source, _), value in grown.items() if source == nic])
        chance = _typical([abs(value) for cell, value in grown.items() if nic not in cell])
        if max(received, sent) <= _BEYOND_CHANCE * chance:
            return ""
        if received > _CLEAR * sent:
            return "rx"
        return "tx" if sent > _CLEAR * received else ""

    def _grown(self, onset_s: float) -> Mapping[Cell, float]:
        """Seconds by which the typical delay of each source and destination has grown."""
        grown: dict[Cell, float] = {}
        for (_, source, destination, _), pairing in self._pairings.items():
            before = [delay.delay_s for delay in pairing.delays if delay.at_s <= onset_s]
            since = [delay.delay_s for delay in pairing.delays if delay.at_s > onset_s]
            if before and since:
                growth = statistics.median(since) - statistics.median(before)
                grown[source, destination] = max(growth, grown.get((source, destination), growth))
        return grown


def _keep(sums: _Sums, count: int, total_ns: int) -> None:
    sums[count] = total_ns
    while len(sums) > _SNAPSHOTS_KEPT:
        del sums[next(iter(sums))]


def _typical(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0
