"""The simulated job: iterations of computing and collectives, and the windows of its agents."""

from collections.abc import Iterator, Sequence
from copy import deepcopy

import msgspec
import numpy as np

from c4bench.model.step import RankGroup
from c4bench.model.window import Window
from tools.sim.arrays import Floats
from tools.sim.counters import Counters
from tools.sim.folding import Folder, Seen
from tools.sim.model import SimFault, SimJob
from tools.sim.places import Places
from tools.sim.trace import OpTrace, Steps, run_op, shifts_of
from tools.sim.world import FaultState

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
        # One for each operation, and the connections of all of them.
        self._steps: list[Steps] = []
        connections: dict[tuple[Places, int], int] = {}
        for op in job.ops:
            places = self._places.setdefault(op.group, Places(job, op.group))
            shifts = shifts_of(op.kind, places.size)
            numbers = [connections.setdefault((places, shift), len(connections)) for shift in dict.fromkeys(shifts)]
            firsts = [shifts.index(shift) for shift in dict.fromkeys(shifts)]
            self._steps.append(Steps(shifts, np.asarray(numbers), np.asarray(firsts)))
        self._total = Counters(len(connections), job.ranks)
        self._folder = Folder(job, list(connections))

    def tick(self, sequence: int) -> Tick:
        """Advance to the end of the tick, and make windows of what each rank's shared memory then contains."""
        end_s = sequence * self._job.window_s
        self._world.forget(end_s - self._job.window_s)
        while self._clock.min() <= end_s:
            self._advance()
        exits_s = self._exits_s()
        seen_s = np.minimum(self._world.seen(end_s), exits_s)
        seen = Seen(self._world, end_s, seen_s, exits_s, self._counters(seen_s), tuple(self._running))
        self._running = [trace for trace in self._running if not _ended(trace, seen_s)]
        return Tick(end_s, self._folder.windows(sequence, seen))

    def _advance(self) -> None:
        turn = self._ops % len(self._job.ops)
        op = self._job.ops[turn]
        places = self._places[op.group]
        noise = 1.0 + self._job.jitter * self._random.standard_normal(self._job.ranks)
        compute_s = op.compute_s * np.maximum(noise, 0.0) * self._world.compute_factor(self._clock)
        seq = self._seqs[places] = self._seqs.get(places, -1) + 1
        entered = self._world.acts(self._clock + compute_s)
        trace = run_op(self._world, op, places, self._steps[turn], seq, entered)
        self._running.append(trace)
        self._clock = trace.finished
        self._ops += 1

    def _exits_s(self) -> Floats:
        """When each rank exits: one of its messages is never acknowledged, or another rank has notified it."""
        exits_s: Floats = np.full(self._job.ranks, np.inf)
        ended_s = self._world.ended_s
        for trace in self._running:
            if np.isfinite(trace.end).all():
                continue
            for shift, start, end in zip(trace.steps.shifts, trace.start, trace.end, strict=True):
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

    def _counters(self, seen_s: Floats) -> Counters:
        """The counters at `seen_s`; what ended operations add to them is kept."""
        for trace in self._running:
            if _ended(trace, seen_s):
                self._total.add(trace, seen_s)
        counters = deepcopy(self._total)
        for trace in self._running:
            if not _ended(trace, seen_s):
                counters.add(trace, seen_s)
        return counters


def _ended(trace: OpTrace, seen_s: Floats) -> bool:
    """Whether all ranks have seen the end of it."""
    return bool((trace.finished <= seen_s).all())
