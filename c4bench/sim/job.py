"""The simulated job: iterations of computing and collectives, and the windows its agents ship."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from c4bench.model.telemetry import CommRecord, ConnRecord, Member, OpRecord, RankRecord, Window
from c4bench.sim.counters import Counters, op_counters
from c4bench.sim.model import SimFault, SimJob
from c4bench.sim.trace import OpTrace, run_op, shifts_of
from c4bench.sim.world import Floats, World

_PORT_BASE = 0xC000


class Tick(msgspec.Struct, frozen=True):
    """The windows that all agents ship at `time_s` of the master's clock."""

    time_s: float
    windows: tuple[Window, ...]


def simulate(job: SimJob, faults: Sequence[SimFault] = (), duration_s: float = 10.0) -> Iterator[Tick]:
    """Play `job` for `duration_s`, one tick every `job.window_s`; the same arguments give the same windows."""
    play = _Play(job, faults)
    for sequence in range(1, int(duration_s / job.window_s) + 1):
        yield play.tick(sequence)


class _Play:
    def __init__(self, job: SimJob, faults: Sequence[SimFault]) -> None:
        self._job = job
        self._world = World(job, faults)
        self._random = np.random.default_rng(job.seed)
        self._clock: Floats = np.zeros(job.ranks)
        self._running: list[OpTrace] = []
        self._ops = 0
        shifts = {shift for op in job.ops for shift in shifts_of(op.kind, job.ranks)}
        self._total = {shift: Counters.zero(job.ranks) for shift in sorted(shifts)}
        offsets = job.clock_offsets_s or (0.0,) * job.ranks
        self._offset_s = np.asarray(offsets)
        members = tuple(Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(job.ranks))
        self._comm = CommRecord(f"{job.name}.world", job.name, members)

    def tick(self, sequence: int) -> Tick:
        """Advance to the tick's end and fold what each rank's shared memory then shows."""
        end_s = sequence * self._job.window_s
        while self._clock.min() <= end_s:
            self._advance()
        exits_s = self._exits_s()
        seen_s = np.minimum(self._world.seen(end_s), exits_s)
        conns = self._conns(seen_s)
        ops = self._op_records(seen_s, end_s - self._job.window_s)
        ranks = self._rank_records(end_s, exits_s)
        self._commit(seen_s)
        windows = (self._window(rank, sequence, ops[rank], conns[rank], ranks) for rank in range(self._job.ranks))
        return Tick(end_s, tuple(windows))

    def _advance(self) -> None:
        op = self._job.ops[self._ops % len(self._job.ops)]
        noise = 1.0 + self._job.jitter * self._random.standard_normal(self._job.ranks)
        compute_s = op.compute_s * np.maximum(noise, 0.0) * self._world.compute_factor(self._clock)
        trace = run_op(self._world, op, self._ops, self._world.acts(self._clock + compute_s))
        self._running.append(trace)
        self._clock = trace.finished
        self._ops += 1

    def _exits_s(self) -> Floats:
        """When each rank gives up because a message of its own will never be acknowledged."""
        exits_s: Floats = np.full(self._job.ranks, np.inf)
        for trace in self._running:
            for shift, start, end in zip(trace.shifts, trace.start, trace.end, strict=True):
                stuck = np.isfinite(start) & np.isinf(end) & (start < self._world.killed_s)
                peer_killed_s = self._world.killed_s[(self._world.ranks + shift) % self._job.ranks]
                since_s = np.where(np.isfinite(peer_killed_s), np.maximum(start, peer_killed_s), start)
                exits_s = np.where(stuck, np.minimum(exits_s, since_s + self._job.exit_after_s), exits_s)
        return exits_s

    def _commit(self, seen_s: Floats) -> None:
        """Fold traces that everybody has finished into the totals."""
        done = [trace for trace in self._running if (trace.finished <= seen_s).all()]
        for trace in done:
            for shift in set(trace.shifts):
                self._total[shift] = self._total[shift].plus(op_counters(trace, shift, seen_s))
        self._running = [trace for trace in self._running if not (trace.finished <= seen_s).all()]

    def _conns(self, seen_s: Floats) -> list[tuple[ConnRecord, ...]]:
        columns = []
        for shift, total in self._total.items():
            counters = total
            for trace in self._running:
                if shift in trace.shifts:
                    counters = counters.plus(op_counters(trace, shift, seen_s))
            columns.append(self._conn_records(shift, counters))
        return list(zip(*columns, strict=True))

    def _conn_records(self, shift: int, counters: Counters) -> list[ConnRecord]:
        ranks = self._job.ranks
        progress_s = np.where(counters.last_progress_s > 0, counters.last_progress_s + self._offset_s, 0.0)
        rows = zip(
            counters.messages.astype(int).tolist(),
            counters.size_bytes.astype(int).tolist(),
            counters.wait_credit_s.tolist(),
            counters.wait_data_s.tolist(),
            counters.transfer_s.tolist(),
            progress_s.tolist(),
            counters.outstanding.astype(int).tolist(),
            counters.owed.astype(int).tolist(),
            strict=True,
        )
        return [
            ConnRecord(
                self._comm.comm,
                rank,
                (rank + shift) % ranks,
                f"h{rank}/0",
                f"h{(rank + shift) % ranks}/0",
                shift,
                _PORT_BASE + shift,
                *row,
            )
            for rank, row in enumerate(rows)
        ]

    def _op_records(self, seen_s: Floats, since_s: float) -> list[tuple[OpRecord, ...]]:
        records: list[list[OpRecord]] = [[] for _ in range(self._job.ranks)]
        for trace in self._running:
            for rank in np.flatnonzero((trace.entered <= seen_s) & (trace.finished > since_s)).tolist():
                records[rank].append(self._op_record(trace, rank, float(seen_s[rank])))
        return [tuple(mine) for mine in records]

    def _op_record(self, trace: OpTrace, rank: int, seen_s: float) -> OpRecord:
        times = (trace.entered[rank], trace.start[0, rank], trace.finished[rank])
        entered, started, ended = (float(t + self._offset_s[rank]) if t <= seen_s else 0.0 for t in times)
        algorithm = "ring" if trace.op.kind == "all_reduce" else "linear_shift"
        kind, size_bytes = trace.op.kind, trace.op.size_bytes
        return OpRecord(
            self._comm.comm, rank, trace.seq, kind, algorithm, "float32", size_bytes, entered, started, ended
        )

    def _rank_records(self, time_s: float, exits_s: Floats) -> list[tuple[RankRecord, ...]]:
        if not self._job.process_info:
            return [()] * self._job.ranks
        stopped = self._world.stopped(time_s)
        records: list[tuple[RankRecord, ...]] = []
        for rank in range(self._job.ranks):
            state, code = "stopped" if rank in stopped else "running", None
            if self._world.killed_s[rank] <= time_s:
                state, code = "killed", -9
            elif exits_s[rank] <= time_s:
                state, code = "exited", 1
            records.append((RankRecord(self._job.name, rank, f"h{rank}", 1000 + rank, state, code),))
        return records

    def _window(
        self,
        rank: int,
        sequence: int,
        ops: tuple[OpRecord, ...],
        conns: tuple[ConnRecord, ...],
        ranks: list[tuple[RankRecord, ...]],
    ) -> Window:
        offset_s = float(self._offset_s[rank])
        start_s, end_s = (sequence - 1) * self._job.window_s + offset_s, sequence * self._job.window_s + offset_s
        return Window(f"h{rank}", sequence, start_s, end_s, (self._comm,), ranks[rank], ops, conns)
