"""Corrects the weights of a connection's QPs by their measured throughput, once the connection has become slower."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from c4bench.errors import UsageError
from c4bench.model.window import STATES, EndName, Window
from c4bench.model.window_columns import CONN_ROW, Rows, lasting_ns

# A QP is slow if it takes longer for a byte than in the sample before by this factor.
_SLOWER = 1.25
# Seconds without progress, with bytes outstanding, after which a QP is slow.
_NO_PROGRESS_S = 0.1

_TRANSFER = STATES.index("transfer")

# Communicator, rank, peer, source NIC, destination NIC.
Connection = tuple[str, int, int, str, str]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_Number = TypeVar("_Number", np.int64, np.float64)


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


class HostSamples(NamedTuple):
    """What a host's QPs did since its last window, by their numbers.

    `slow` are connections with a slow QP, `slow_ports` the NICs and the source ports of these QPs.
    """

    connections: Mapping[Connection, Sequence[int]]
    names: Sequence[EndName | None]
    size_bytes: Ints
    transfer_s: Floats
    sampled: Bools
    slow: frozenset[Connection]
    slow_ports: frozenset[tuple[str, str, int]]

    def bytes_by_qp(self, connection: Connection) -> dict[int, int]:
        """What each QP of a connection has sent, by its number on the host."""
        sampled = [number for number in self.connections[connection] if self.sampled[number]]
        return {name.qp: int(self.size_bytes[number]) for number in sampled if (name := self.names[number])}

    def of(self, connection: Connection) -> list[ThroughputSample]:
        """The samples of a connection's QPs, in order of their numbers."""
        return [
            ThroughputSample(int(self.size_bytes[number]), float(self.transfer_s[number]))
            for number in self.connections[connection]
            if self.sampled[number]
        ]


class _Qps:
    """The QPs that a host numbers, and what their newest rows said."""

    def __init__(self, names: Sequence[EndName | None]) -> None:
        self.names = names
        self.known = np.zeros(len(names), np.bool_)
        self.size_bytes = np.zeros(len(names), np.int64)
        self.transfer_s = np.zeros(len(names))
        self.s_per_byte = np.full(len(names), np.nan)
        self.connections: dict[Connection, list[int]] = {}
        numbered = ((name, number) for number, name in enumerate(names) if name is not None)
        for name, number in sorted(numbered):
            self.connections.setdefault(name[:5], []).append(number)

    def renamed(self, names: Sequence[EndName | None]) -> "_Qps":
        """The same QPs by other numbers; those that are gone are forgotten."""
        qps, numbers = _Qps(names), {name: number for number, name in enumerate(self.names) if name is not None}
        kept = [(number, numbers[name]) for number, name in enumerate(names) if name is not None and name in numbers]
        new, old = [number for number, _ in kept], [number for _, number in kept]
        for mine, known in zip(qps._columns(), self._columns(), strict=True):
            mine[new] = known[old]
        return qps

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.known, self.size_bytes, self.transfer_s, self.s_per_byte

    def ingest(self, window: Window) -> HostSamples:
        """Each QP's sample since its last row, and who is much slower than before or makes no progress."""
        conns = np.frombuffer(window.conn_table, CONN_ROW)
        if len(conns) and not 0 <= conns["end"].min() <= conns["end"].max() < len(self.names):
            conns = conns[(conns["end"] >= 0) & (conns["end"] < len(self.names))]
        ends, listed = conns["end"], np.zeros(len(self.names), np.bool_)
        listed[ends] = True
        sampled = listed & self.known
        size_bytes = _since(self.size_bytes, ends, conns["size_bytes"])
        transfer_s = _since(self.transfer_s, ends, _transfer_s(conns, window.end_s))
        stuck = self._stuck(conns, window.end_s) & sampled
        carried = sampled & (size_bytes != 0) & (transfer_s > 0) & ~stuck
        before, self.s_per_byte = self.s_per_byte, self.s_per_byte.copy()
        np.divide(transfer_s, size_bytes, out=self.s_per_byte, where=carried)
        slow = stuck | (carried & (self.s_per_byte > _SLOWER * before))
        self.known |= listed
        rows = conns[slow[ends]]
        named = zip((self.names[end] for end in rows["end"].tolist()), rows["source_port"].tolist(), strict=True)
        late = [(name, port) for name, port in named if name is not None]
        connections = frozenset(name[:5] for name, _ in late)
        ports = frozenset((name.source, name.destination, port) for name, port in late)
        return HostSamples(self.connections, self.names, size_bytes, transfer_s, sampled, connections, ports)

    def _stuck(self, conns: Rows, end_s: float) -> Bools:
        """Which QPs have bytes outstanding and make no progress."""
        stuck = np.zeros(len(self.names), np.bool_)
        if conns["outstanding"].any():
            still = end_s - conns["last_progress"] / 1e9 > _NO_PROGRESS_S
            stuck[conns["end"]] = still & (conns["outstanding"] > 0)
        return stuck


def _since(known: NDArray[_Number], ends: Ints, now: NDArray[_Number]) -> NDArray[_Number]:
    """By how much the numbers of these ends have grown; they are known as they are now."""
    before = known.copy()
    known[ends] = now
    grown: NDArray[_Number] = known - before
    return grown


def _transfer_s(conns: Rows, end_s: float) -> Floats:
    """Transfer time (s) of connections when their window ends."""
    transferring = conns["state"] == _TRANSFER
    if not transferring.any():
        return np.asarray(conns["transfer"] / 1e9)
    transfer_s: Floats = (conns["transfer"] + np.where(transferring, lasting_ns(conns, end_s), 0)) / 1e9
    return transfer_s


class WeightTuner:
    """Throughput of every connection's QPs since its weights last changed.

    Samples are added up for `tuning_s` seconds; weights change once a connection is slower than at first by the
    fraction `min_slowdown`.
    """

    def __init__(self, tuning_s: float, min_slowdown: float) -> None:
        self._tuning_s, self._min_slowdown = tuning_s, min_slowdown
        self._hosts: dict[str, _Qps] = {}
        self._sums: dict[Connection, tuple[float, list[ThroughputSample]]] = {}
        self._baselines: dict[Connection, float] = {}

    def connections(self, window: Window) -> Mapping[Connection, Sequence[int]]:
        """The connections that a window names; the same object until names change."""
        return self._qps(window).connections

    def ingest(self, window: Window) -> HostSamples:
        """What the QPs of a host did since its last window. Those that it does not name any more are forgotten."""
        return self._qps(window).ingest(window)

    def skip(self, host: str) -> None:
        """Leave out a window of a host: what its QPs do until the next one will not be a sample."""
        self._hosts[host].known[:] = False

    def _qps(self, window: Window) -> _Qps:
        names, qps = window.names.sends, self._hosts.get(window.host)
        if qps is None:
            qps = self._hosts[window.host] = _Qps(names)
        elif qps.names is not names:
            before, qps = qps, qps.renamed(names)
            self._hosts[window.host] = qps
            for connection in before.connections.keys() - qps.connections.keys():
                self._sums.pop(connection, None)
                self._baselines.pop(connection, None)
        return qps

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

    def forget(self, comms: Collection[str]) -> None:
        """Forget communicators that have ended."""
        for host, qps in self._hosts.items():
            names = [None if name is None or name.comm in comms else name for name in qps.names]
            self._hosts[host] = qps.renamed(names)
        for known in (self._sums, self._baselines):
            for connection in [connection for connection in known if connection[0] in comms]:
                del known[connection]


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
