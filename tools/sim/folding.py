"""The windows of simulated agents: the state at one time, combined into one window for each host."""

from collections.abc import Sequence

import msgspec
import numpy as np

from c4bench.model.telemetry import RankRecord
from c4bench.model.window import OP, STATES, Caller, CallName, EndName, HostNames, Numbers, Window
from c4bench.model.window_columns import ARRIVAL_ROW, CONN_ROW, Rows
from tools.sim.arrays import Floats, Ints
from tools.sim.counters import Counters
from tools.sim.marks import MarkCounter
from tools.sim.model import SimJob
from tools.sim.places import Places, host_of, nic_of
from tools.sim.trace import OpTrace
from tools.sim.world import FaultState

_PORT_BASE = 0xC000
_PID_BASE = 1000
_ALGORITHM = {"all_to_all": "linear_shift", "send": "direct"}


class Seen(msgspec.Struct):
    """The content of shared memory at `time_s`, each rank's up to `seen_s`."""

    world: FaultState
    time_s: float
    seen_s: Floats
    exits_s: Floats
    counters: Counters
    running: tuple[OpTrace, ...]


class Folder:
    """Makes the windows of a job; `connections` are pairs of communicators and the shift to the receiving rank."""

    def __init__(self, job: SimJob, connections: Sequence[tuple[Places, int]]) -> None:
        self._job = job
        self._connections = connections
        self._hosts = [host_of(job, rank) for rank in range(job.ranks)]
        self._nics = [nic_of(job, rank) for rank in range(job.ranks)]
        self._offset_s: Floats = self._offsets()
        self._places = list(dict.fromkeys(places for places, _ in connections))
        self._calls: Numbers[CallName] = Numbers()
        self._marks = MarkCounter(job, connections) if job.ecn else None
        self._names: list[HostNames | None] = [None for _ in range(0, job.ranks, job.ranks_per_host)]

    def _offsets(self) -> Floats:
        hosts = -(-self._job.ranks // self._job.ranks_per_host)
        offsets = np.asarray(self._job.clock_offsets_s or (0.0,) * hosts)
        return np.repeat(offsets, self._job.ranks_per_host)[: self._job.ranks]

    def windows(self, sequence: int, seen: Seen) -> tuple[Window, ...]:
        """One window for each host."""
        since_s = seen.time_s - self._job.window_s
        ops = self._op_rows(seen, since_s)
        processes = self._processes(seen)
        conns, arrivals = self._conn_rows(seen), self._arrival_rows(seen.counters)
        nics = self._marks.records(self._nics, seen.world, seen.time_s, seen.counters) if self._marks else []
        step = self._job.ranks_per_host
        return tuple(
            Window(
                self._hosts[first],
                sequence,
                since_s + float(self._offset_s[first]),
                seen.time_s + float(self._offset_s[first]),
                self._names_of(first // step),
                tuple(processes[first : first + step]),
                b"".join(ops[first : first + step]),
                b"",
                conns[first : first + step].tobytes(),
                arrivals[first : first + step].tobytes(),
                tuple(nics[first : first + step]),
            )
            for first in range(0, self._job.ranks, step)
        )

    def _names_of(self, host: int) -> HostNames:
        """The names of a host's numbers: callers and ends are numbered rank by rank, in the order of connections."""
        known = self._names[host]
        if known is None or known.calls is not self._calls.listed:
            first = host * self._job.ranks_per_host
            ranks = range(first, min(first + self._job.ranks_per_host, self._job.ranks))
            records = (places.comms[rank] for places, _ in self._connections for rank in ranks)
            known = self._names[host] = HostNames(
                tuple({record.comm: record for record in records}.values()),
                tuple(
                    Caller(places.comms[rank].comm, int(places.position[rank]))
                    for rank in ranks
                    for places in self._places
                ),
                tuple(self._send(index, rank) for rank in ranks for index in range(len(self._connections))),
                tuple(self._receive(index, rank) for rank in ranks for index in range(len(self._connections))),
                self._calls.listed,
            )
        return known

    def _send(self, index: int, rank: int) -> EndName:
        places, shift = self._connections[index]
        place, peer = int(places.position[rank]), int(places.peer(shift)[rank])
        ranks = place, (place + shift) % places.size
        return EndName(places.comms[rank].comm, *ranks, self._nics[rank], self._nics[peer], index)

    def _receive(self, index: int, rank: int) -> EndName:
        places, shift = self._connections[index]
        place, source = int(places.position[rank]), int(places.peer(-shift)[rank])
        ranks = place, (place - shift) % places.size
        return EndName(places.comms[rank].comm, *ranks, self._nics[source], self._nics[rank], index)

    def _rows(self, row: "np.dtype[np.void]") -> Rows:
        """A row for each end of each rank, with its number."""
        ends = len(self._connections)
        rows = np.zeros((self._job.ranks, ends), row)
        rows["end"] = np.arange(self._job.ranks)[:, None] % self._job.ranks_per_host * ends + np.arange(ends)
        return rows

    def _conn_rows(self, seen: Seen) -> Rows:
        rows, counters = self._rows(CONN_ROW), seen.counters
        offset_s = self._offset_s
        rows["source_port"] = _PORT_BASE + np.arange(len(self._connections))
        for name in ("messages", "size_bytes", "outstanding", "owed"):
            rows[name] = counters[name].T
        rows["wait_credit"], rows["wait_data"] = _ns(counters["wait_credit_s"]).T, _ns(counters["wait_data_s"]).T
        # A rank sends to one peer at a time.
        rows["transfer"] = rows["shared"] = _ns(counters["transfer_s"]).T
        moved_s = counters["last_progress_s"]
        rows["last_progress"] = _ns(np.where(moved_s > 0, moved_s + offset_s, 0.0)).T
        under_way = counters["outstanding"] > 0
        rows["state"] = np.where(under_way, STATES.index("transfer"), STATES.index("idle")).T
        # A rank that is stopped sees later that a message has arrived: until then its state has not lasted.
        since_s = counters["posted_s"] + (seen.time_s - seen.seen_s) + offset_s
        rows["state_since"] = _ns(np.where(under_way, since_s, 0.0)).T
        return rows

    def _arrival_rows(self, counters: Counters) -> Rows:
        rows = self._rows(ARRIVAL_ROW)
        rows["messages"] = counters["arrived"].T
        return rows

    def _op_rows(self, seen: Seen, since_s: float) -> list[bytes]:
        rows = [b""] * self._job.ranks
        for trace in seen.running:
            mismatched = seen.world.mismatched(trace.entered)
            ranks = np.flatnonzero((trace.entered <= seen.seen_s) & (trace.finished > since_s))
            times_ns = self._op_times_ns(trace, ranks, seen.seen_s[ranks])
            for rank, times in zip(ranks.tolist(), times_ns, strict=True):
                wrong = seen.world.wrong_calls[rank] if mismatched[rank] else ""
                rows[rank] += self._op_row(trace, rank, times, wrong)
        return rows

    def _op_times_ns(self, trace: OpTrace, ranks: Ints, seen_s: Floats) -> list[list[int]]:
        """When each of the ranks entered, began and finished, as its host's clock said; 0 for what it has not seen."""
        times_s = np.stack([trace.entered[ranks], trace.start[0, ranks], trace.finished[ranks]])
        passed = times_s <= seen_s
        times_ns: list[list[int]] = _ns(np.where(passed, times_s + self._offset_s[ranks], 0.0)).T.tolist()
        return times_ns

    def _op_row(self, trace: OpTrace, rank: int, times_ns: list[int], wrong: str) -> bytes:
        place = rank % self._job.ranks_per_host * len(self._places) + self._places.index(trace.places)
        call = CallName(wrong or trace.op.kind, _ALGORITHM.get(trace.op.kind, "ring"), "float32")
        size_bytes = 0 if wrong == "barrier" else trace.op.size_bytes
        return OP.pack(place, self._calls.number(call), trace.seq, size_bytes, *times_ns, 0)

    def _processes(self, seen: Seen) -> list[RankRecord]:
        stopped = seen.world.stopped(seen.time_s)
        return [
            RankRecord(self._job.name, rank, self._hosts[rank], _PID_BASE + rank, *self._state(seen, rank, stopped))
            for rank in range(self._job.ranks)
        ]

    def _state(self, seen: Seen, rank: int, stopped: set[int]) -> tuple[str, int | None]:
        if seen.world.ended_s[rank] <= seen.time_s:
            return ("exited", 1) if rank in seen.world.raised else ("killed", -9)
        if seen.exits_s[rank] <= seen.time_s:
            return "exited", 1
        return ("stopped" if rank in stopped else "running"), None


def _ns(seconds: Floats) -> Ints:
    ns: Ints = np.rint(seconds * 1e9).astype(np.int64)
    return ns
