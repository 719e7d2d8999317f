"""Witnesses of GPU faults: nvidia-smi, or for a simulated GPU a rank that computes on it."""

import math
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from c4bench.inject import gpus, processes
from c4bench.inject.registry import witness
from c4bench.inject.witness import figure
from c4bench.inject.witness.base import Aftermath, Evidence, Polled, Values, Witness, wait_until
from c4bench.model.fault import FaultRequest
from c4bench.model.telemetry import OpRecord

_STOPPED = frozenset("Tt")
_ENDED = frozenset("ZX")


def process_state(expected: str, request: FaultRequest) -> Polled:
    """`running`, `stopped`, `ended`: one of them is 1. Seen when the process is in the state `expected`.

    It has recovered when it runs; nothing recovers a process that has ended.
    """
    pid = processes.find(request).pid

    def read() -> Values:
        state = processes.state(pid)
        stopped, ended = state in _STOPPED, state in _ENDED
        return {"running": float(not stopped and not ended), "stopped": float(stopped), "ended": float(ended)}

    return Polled(
        request.witness_s,
        read,
        lambda _, now: bool(now[expected]),
        lambda _, now: None if now["ended"] else not now["stopped"],
    )


@witness("process_ended")
def process_ended(request: FaultRequest) -> Polled:
    """Witness of a process that has ended."""
    return process_state("ended", request)


@witness("process_stopped")
def process_stopped(request: FaultRequest) -> Polled:
    """Witness of a stopped process."""
    return process_state("stopped", request)


@witness("gpu_clock")
def clock(request: FaultRequest) -> Witness:
    """Witness of a low clock."""
    return figure.gpu_clock(request) if _real() else ComputePace(gpus.as_rank(request))


@witness("gpu_power")
def power(request: FaultRequest) -> Witness:
    """Witness of a low power limit."""
    return figure.gpu_power(request) if _real() else ComputePace(gpus.as_rank(request))


@witness("gpu_standstill")
def standstill(request: FaultRequest) -> Witness:
    """Witness of a kernel that does not return."""
    return RankStandstill(gpus.as_rank(request))


@witness("gpu_ended")
def rank_ended(request: FaultRequest) -> Witness:
    """Witness of a rank that ended on an error."""
    return process_ended(gpus.as_rank(request))


def _real() -> bool:
    return gpus.hardware() == "nvidia"


_POLL_S = 5e-3
_GAPS_MIN = 2
_COMPUTING_SHARE = 0.1
# A rank stands still after this many usual compute times.
_STANDSTILL_FACTOR = 5


class ComputeGap(NamedTuple):
    """A time between operations (host's clock)."""

    began_s: float
    ended_s: float

    @property
    def length_s(self) -> float:
        """The length of the gap, s."""
        return self.ended_s - self.began_s


@witness("compute_pace")
class ComputePace:
    """`gap_s`: the rank's median compute time, from the end of all operations to the start of the next."""

    def __init__(self, request: FaultRequest) -> None:
        self._ring = processes.find(request).ring
        self._factor = request.number("factor")
        self._window_s = request.witness_s
        self._gap_before_s = 0.0

    def before(self) -> Values:
        """`gap_s` before the fault; 0 where there is no gap yet."""
        self._gap_before_s = usual_gap_s(self._ring, self._window_s)
        return {"gap_s": self._gap_before_s}

    def during(self, onset_s: float) -> Evidence:
        """`gap_s` of the gaps since the onset. Seen when it has grown by at least half of the requested slowdown."""
        # A gap is longer by the factor, and the one during the onset does not count.
        timeout_s = self._window_s + (_GAPS_MIN + 1) * self._gap_before_s * self._factor
        wait_until(lambda: len(self.gaps_since(onset_s)) >= _GAPS_MIN, timeout_s, _POLL_S)
        gaps = self.gaps_since(onset_s)
        slow = [gap for gap in gaps if gap.length_s >= self._threshold_s]
        seen = self._gap_before_s > 0 and _median_s(gaps) >= self._threshold_s
        return Evidence({"gap_s": _median_s(gaps)}, slow[0].began_s + self._threshold_s if seen else None)

    def after(self) -> Aftermath:
        """`gap_s` of the newest gap. A short one proves recovery; a long one may have begun during the fault."""
        newest = self.gaps_since(0.0)[-1:]
        length_s = _median_s(newest)
        return Aftermath({"gap_s": length_s}, True if 0 < length_s < self._threshold_s else None)

    @property
    def _threshold_s(self) -> float:
        return self._gap_before_s * (1 + self._factor) / 2

    def gaps_since(self, since_s: float) -> list[ComputeGap]:
        """The gaps that began since then; those between a few operations in a row are short beside the usual ones."""
        return gaps(processes.telemetry(self._ring).ops, since_s, self._gap_before_s)


@witness("late_step")
class LateStep:
    """`late`: how many compute times were as long as requested. Seen when one was."""

    def __init__(self, request: FaultRequest) -> None:
        self._pace = ComputePace(request)
        self._factor = request.number("factor")
        self._timeout_s = request.witness_s + 2 * request.number("period_s")
        self._usual_s = 0.0

    def before(self) -> Values:
        """`gap_s` before the fault."""
        values = self._pace.before()
        self._usual_s = values["gap_s"]
        return values

    def during(self, onset_s: float) -> Evidence:
        """Observed when the first late gap exceeded the threshold."""
        threshold_s = self._usual_s * (1 + self._factor) / 2
        wait_until(lambda: bool(self._late(onset_s, threshold_s)), self._timeout_s + threshold_s, _POLL_S)
        late = self._late(onset_s, threshold_s)
        return Evidence({"late": len(late)}, late[0].began_s + threshold_s if late and self._usual_s > 0 else None)

    def after(self) -> Aftermath:
        """A short newest gap proves recovery."""
        return self._pace.after()

    def _late(self, since_s: float, threshold_s: float) -> list[ComputeGap]:
        return [gap for gap in self._pace.gaps_since(since_s) if gap.length_s >= threshold_s]


@witness("standstill")
class RankStandstill:
    """`idle_s`: how long the rank has been in no operation. Seen when that is far longer than it usually computes.

    A rank that waits for its peers is in an operation and does not stand still.
    """

    def __init__(self, request: FaultRequest) -> None:
        self._ring = processes.find(request).ring
        self._window_s = request.witness_s
        self._threshold_s = 0.0

    def before(self) -> Values:
        """`gap_s`, the usual time of computing; 0 where it has none yet."""
        usual_s = usual_gap_s(self._ring, self._window_s)
        self._threshold_s = _STANDSTILL_FACTOR * usual_s
        return {"gap_s": usual_s}

    def during(self, onset_s: float) -> Evidence:
        """The first evidence is the moment at which the next operation, of a rank in health, was long overdue."""
        wait_until(lambda: time.time() >= self._overdue_s(onset_s), self._window_s + 2 * self._threshold_s, _POLL_S)
        now_s, overdue_s = time.time(), self._overdue_s(onset_s)
        return Evidence(
            {"idle_s": self._idle_s(now_s)}, overdue_s if self._threshold_s > 0 and overdue_s <= now_s else None
        )

    def after(self) -> Aftermath:
        """Recovered when an operation has begun again."""
        wait_until(lambda: self._idle_s(time.time()) < self._threshold_s, self._window_s, _POLL_S)
        idle_s = self._idle_s(time.time())
        return Aftermath({"idle_s": idle_s}, idle_s < self._threshold_s)

    def _overdue_s(self, onset_s: float) -> float:
        return max(onset_s, self._left_s()) + self._threshold_s

    def _idle_s(self, now_s: float) -> float:
        return max(0.0, now_s - self._left_s())

    def _left_s(self) -> float:
        """When it left its newest operation; never, within one."""
        return max((op.finished_s or math.inf for op in processes.telemetry(self._ring).ops), default=math.inf)


def usual_gap_s(ring: Path, window_s: float) -> float:
    """The median compute time, from gaps within `window_s`, else from the ring's older ones; 0 where there are none."""
    now_s = time.time()
    wait_until(lambda: len(gaps(processes.telemetry(ring).ops, now_s)) >= _GAPS_MIN, window_s, _POLL_S)
    return _median_s(gaps(processes.telemetry(ring).ops, now_s) or gaps(processes.telemetry(ring).ops))


def gaps(ops: Sequence[OpRecord], since_s: float = 0.0, usual_s: float = 0.0) -> list[ComputeGap]:
    """The times since then in which no operation of any communicator was running; `usual_s` as known before."""
    merged: list[ComputeGap] = []  # spans busy with operations
    for op in sorted(ops, key=lambda op: op.entered_s):
        ended_s = op.finished_s or float("inf")
        if merged and op.entered_s <= merged[-1].ended_s:
            merged[-1] = ComputeGap(merged[-1].began_s, max(merged[-1].ended_s, ended_s))
        else:
            merged.append(ComputeGap(op.entered_s, ended_s))
    between = [ComputeGap(before.ended_s, after.began_s) for before, after in pairwise(merged)]
    return _computing([gap for gap in between if gap.began_s >= since_s], usual_s)


def _computing(candidates: list[ComputeGap], usual_s: float) -> list[ComputeGap]:
    """Drop the short gaps between back-to-back operations, in which the rank does not compute."""
    longest_s = max([usual_s, *(gap.length_s for gap in candidates)])
    return [gap for gap in candidates if gap.length_s > _COMPUTING_SHARE * longest_s]


def _median_s(among: Sequence[ComputeGap]) -> float:
    return statistics.median(gap.length_s for gap in among) if among else 0.0
