"""The simulated job: iterations of computing and collectives, and the windows of its agents."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from c4bench.model.step import RankGroup
from c4bench.model.window import Window
from c4bench.sim.counters import Counters, op_counters
from c4bench.sim.folding import Folder, Seen
from c4bench.sim.model import SimFault, SimJob
from c4bench.sim.places import Places
from c4bench.sim.trace import OpTrace, run_op, shifts_of
from c4bench.sim.world import FaultState, Floats

_NOTIFIED_AFTER_S = 0.001


class Tick(msgspec.Struct, frozen=True):
    """The windows that all agents send at `time_s` of the master's clock."""

    time_s: float
    windows: tuple[Window, ...]


def simulate(job: SimJob, faults: Sequence[SimFault] = (), duration_s: float = 10.0) -> Iterator[Tick]:
    """Simulate `job` for `duration_s`, one tick every `job.window_s`; the same arguments give the same windows.

    Raises ValueError if the ranks cannot be divided into the groups of an operation.
    """
    simulation = _Simulation(job, faults)
    for sequence in range(1, int(duration_s / job.window_s) + 1):
        yield simulation.tick(sequence)


class _Simulation:
    def __init__(self, job: SimJob, faults: Sequence[SimFault]) -> None:
        self._job = job
        self._world = FaultState(job, faults)
        self._random = np.random.default_rng(job.seed)
        self._clock: Floats = np.zeros(job.ranks)
        self._running: list[OpTrace] = []
        self._ops = 0
        self._places: dict[RankGroup | None, Places] = {}
        self._seqs: dict[Places, int] = {}
        self._total: dict[tuple[Places, int], Counters] = {}
        for op in job.ops:
            places = self._places.setdefault(op.group, Places(job, op.group))
            for shift in shifts_of(op.kind, places.size):
                self._total.setdefault((places, shift), Counters.zero(job.ranks))
        self._folder = Folder(job, list(self._total))

    def tick(self, sequence: int) -> Tick:
        """Advance to the end of the tick, and make windows of what each rank's shared memory then contains."""
        end_s = sequence * self._job.window_s
        self._world.forget(end_s - self._job.window_s)
        while self._clock.min() <= end_s:
            self._advance()
        exits_s = self._exits_s()
        seen_s = np.minimum(self._world.seen(end_s), exits_s)
        counters = [self._counters(places, shift, seen_s) for places, shift in self._total]
        seen = Seen(self._world, end_s, seen_s, exits_s, counters, tuple(self._running))
        windows = self._folder.windows(sequence, seen)
        self._commit(seen_s)
        return Tick(end_s, windows)

    def _advance(self) -> None:
        op = self._job.ops[self._ops % len(self._job.ops)]
        places = self._places[op.group]
        noise = 1.0 + self._job.jitter * self._random.standard_normal(self._job.ranks)
        compute_s = op.compute_s * np.maximum(noise, 0.0) * self._world.compute_factor(self._clock)
        seq = self._seqs[places] = self._seqs.get(places, -1) + 1
        trace = run_op(self._world, op, places, seq, self._world.acts(self._clock + compute_s))
        self._running.append(trace)
        self._clock = trace.finished
        self._ops += 1

    def _exits_s(self) -> Floats:
        """When each rank exits: one of its messages is never acknowledged, or another rank has notified it."""
        exits_s: Floats = np.full(self._job.ranks, np.inf)
        ended_s = self._world.ended_s
        for trace in self._running:
            for shift, start, end in zip(trace.shifts, trace.start, trace.end, strict=True):
                stuck = np.isfinite(start) & np.isinf(end) & (start < ended_s)
                peer_ended_s = ended_s[trace.places.peer(shift)]
                since_s = np.where(np.isfinite(peer_ended_s), np.maximum(start, peer_ended_s), start)
                exits_s = np.where(stuck, np.minimum(exits_s, since_s + self._job.exit_after_s), exits_s)
        if self._job.notify_failure:
            exits_s = np.minimum(exits_s, self._first_notified_s(exits_s) + _NOTIFIED_AFTER_S)
        return exits_s

    def _first_notified_s(self, exits_s: Floats) -> float:
        """When the first rank notified the others of its failure; a killed rank notifies nobody."""
        raised_s = (self._world.ended_s[rank] for rank in self._world.raised)
        mismatches = [trace.entered[self._world.mismatched(trace.entered)] for trace in self._running]
        return float(min(exits_s.min(), *raised_s, np.inf, *(times.min(initial=np.inf) for times in mismatches)))

    def _commit(self, seen_s: Floats) -> None:
        """Add traces that all ranks have finished to the totals."""
        done = [trace for trace in self._running if (trace.finished <= seen_s).all()]
        for trace in done:
            for shift in set(trace.shifts):
                key = (trace.places, shift)
                self._total[key] = self._total[key].plus(op_counters(trace, shift, seen_s))
        self._running = [trace for trace in self._running if not (trace.finished <= seen_s).all()]

    def _counters(self, places: Places, shift: int, seen_s: Floats) -> Counters:
        counters = self._total[places, shift]
        for trace in self._running:
            if trace.places is places and shift in trace.shifts:
                counters = counters.plus(op_counters(trace, shift, seen_s))
        return counters
