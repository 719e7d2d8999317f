"""The windows of simulated agents: the state at one time, combined into one window for each host."""

from collections.abc import Sequence

import msgspec
import numpy as np

from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, OpRecord, RankRecord, Window
from c4bench.sim.counters import Counters
from c4bench.sim.model import SimJob
from c4bench.sim.places import Places, host_of, nic_of
from c4bench.sim.trace import OpTrace
from c4bench.sim.world import FaultState, Floats

_PORT_BASE = 0xC000
_PID_BASE = 1000
_ALGORITHM = {"all_to_all": "linear_shift", "send": "direct"}


class Seen(msgspec.Struct):
    """The content of shared memory at `time_s`: each rank up to `seen_s`, counters in the order of the connections."""

    world: FaultState
    time_s: float
    seen_s: Floats
    exits_s: Floats
    counters: list[Counters]
    running: tuple[OpTrace, ...]


class Folder:
    """Makes the windows of a job; `connections` are pairs of communicators and the shift to the receiving rank."""

    def __init__(self, job: SimJob, connections: Sequence[tuple[Places, int]]) -> None:
        self._job = job
        self._connections = connections
        self._hosts = [host_of(job, rank) for rank in range(job.ranks)]
        self._nics = [nic_of(job, rank) for rank in range(job.ranks)]
        self._offset_s: Floats = self._offsets()

    def _offsets(self) -> Floats:
        hosts = -(-self._job.ranks // self._job.ranks_per_host)
        offsets = np.asarray(self._job.clock_offsets_s or (0.0,) * hosts)
        return np.repeat(offsets, self._job.ranks_per_host)[: self._job.ranks]

    def windows(self, sequence: int, seen: Seen) -> tuple[Window, ...]:
        """One window for each host."""
        since_s = seen.time_s - self._job.window_s
        ops = self._op_records(seen, since_s)
        processes = self._processes(seen)
        ends = list(zip(self._connections, seen.counters, strict=True))
        conns = list(zip(*(self._conns(i, *end) for i, end in enumerate(ends)), strict=True))
        arrivals = list(zip(*(self._arrivals(i, *end) for i, end in enumerate(ends)), strict=True))
        step = self._job.ranks_per_host
        return tuple(
            Window(
                self._hosts[first],
                sequence,
                since_s + float(self._offset_s[first]),
                seen.time_s + float(self._offset_s[first]),
                self._comms(range(first, min(first + step, self._job.ranks))),
                tuple(processes[first : first + step]),
                tuple(record for mine in ops[first : first + step] for record in mine),
                tuple(record for mine in conns[first : first + step] for record in mine),
                tuple(record for mine in arrivals[first : first + step] for record in mine),
            )
            for first in range(0, self._job.ranks, step)
        )

    def _comms(self, ranks: range) -> tuple[CommRecord, ...]:
        records = (places.comms[rank] for places, _ in self._connections for rank in ranks)
        return tuple({record.comm: record for record in records}.values())

    def _conns(self, index: int, end: tuple[Places, int], counters: Counters) -> list[ConnRecord]:
        places, shift = end
        moved_s = np.where(counters.last_progress_s > 0, counters.last_progress_s + self._offset_s, 0.0)
        rows = zip(
            places.position.tolist(),
            ((places.position + shift) % places.size).tolist(),
            places.peer(shift).tolist(),
            counters.messages.astype(int).tolist(),
            counters.size_bytes.astype(int).tolist(),
            counters.wait_credit_s.tolist(),
            counters.wait_data_s.tolist(),
            counters.transfer_s.tolist(),
            counters.transfer_s.tolist(),  # a rank sends to one peer at a time
            moved_s.tolist(),
            counters.outstanding.astype(int).tolist(),
            counters.owed.astype(int).tolist(),
            strict=True,
        )
        nics, port = self._nics, _PORT_BASE + index
        return [
            ConnRecord(places.comms[rank].comm, place, peer_place, nics[rank], nics[peer], index, port, *row)
            for rank, (place, peer_place, peer, *row) in enumerate(rows)
        ]

    def _arrivals(self, index: int, end: tuple[Places, int], counters: Counters) -> list[ArrivalRecord]:
        places, shift = end
        rows = zip(
            places.position.tolist(),
            ((places.position - shift) % places.size).tolist(),
            places.peer(-shift).tolist(),
            counters.arrived.astype(int).tolist(),
            strict=True,
        )
        nics = self._nics
        return [
            ArrivalRecord(places.comms[rank].comm, place, source_place, nics[source], nics[rank], index, messages)
            for rank, (place, source_place, source, messages) in enumerate(rows)
        ]

    def _op_records(self, seen: Seen, since_s: float) -> list[list[OpRecord]]:
        records: list[list[OpRecord]] = [[] for _ in range(self._job.ranks)]
        for trace in seen.running:
            mismatched = seen.world.mismatched(trace.entered)
            shown = (trace.entered <= seen.seen_s) & (trace.finished > since_s)
            for rank in np.flatnonzero(shown).tolist():
                wrong = seen.world.wrong_calls[rank] if mismatched[rank] else ""
                records[rank].append(self._op_record(trace, rank, seen.seen_s[rank], wrong))
        return records

    def _op_record(self, trace: OpTrace, rank: int, seen_s: float, wrong: str) -> OpRecord:
        times = (trace.entered[rank], trace.start[0, rank], trace.finished[rank])
        entered, started, ended = (float(t + self._offset_s[rank]) if t <= seen_s else 0.0 for t in times)
        return OpRecord(
            trace.places.comms[rank].comm,
            int(trace.places.position[rank]),
            trace.seq,
            wrong or trace.op.kind,
            _ALGORITHM.get(trace.op.kind, "ring"),
            "float32",
            0 if wrong == "barrier" else trace.op.size_bytes,
            entered,
            started,
            ended,
        )

    def _processes(self, seen: Seen) -> list[RankRecord]:
        if not self._job.process_info:
            return []
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
