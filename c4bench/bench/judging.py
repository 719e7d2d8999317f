"""What judging telemetry costs the master, by the size of a job; outside any lab, on the machine's clock.

A program of its own (`python -m c4bench.bench.judging RANKS SECONDS`), so that its memory is read whole.
"""

import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

from c4bench.bench.notes import note
from c4bench.c4d.detector import Detector
from c4bench.errors import UnhealthyError
from c4bench.model.measurement import Clock
from c4bench.model.step import RankGroup, StepOp
from c4bench.record import RunDirectory
from c4bench.sim.job import simulate
from c4bench.sim.model import SimJob

_RANKS = {False: (1_000, 3_200, 10_000, 32_000, 100_000), True: (1_000, 3_200, 10_000)}
_SECONDS = 8
# By then every connection and communicator is known, and the detector has something to hold them against.
_WARM_UP = 4
_NICS_PER_HOST = 8
# One iteration a second: tensor groups inside a host, data groups across 25.
_STEP = (
    StepOp("all_reduce", 64 << 20, 0.45, RankGroup("tensor", _NICS_PER_HOST)),
    StepOp("all_reduce", 256 << 20, 0.45, RankGroup("data", 25, _NICS_PER_HOST)),
)
_RATE_BPS = 400e9
_AT_MOST_S, _AT_MOST_BYTES = 1.0, 2 << 30


class Cost(msgspec.Struct, frozen=True):
    """`judge_s`: processor time of one core a second of telemetry; `resident_bytes`: the most, simulator included."""

    ranks: int
    records: int
    judge_s: float
    resident_bytes: int


def cost(ranks: int, seconds: int) -> Cost:
    """Feed a detector a healthy job's windows, one a host and second, and judge after each round."""
    job = SimJob(ranks, _STEP, rate_bps=_RATE_BPS, ranks_per_host=_NICS_PER_HOST, window_s=1.0)
    detector, spent, records = Detector(), [], 0
    for tick in simulate(job, duration_s=float(seconds)):
        began_s = time.process_time()
        for window in tick.windows:
            detector.feed(window)
        detector.judge(tick.time_s)
        spent.append(time.process_time() - began_s)
        records = sum(len(w.ops) + len(w.conns) + len(w.arrivals) + len(w.ranks) for w in tick.windows)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Cost(ranks, records, statistics.median(spent[_WARM_UP:]), resident)


def measure(run: RunDirectory, *, quick: bool) -> None:
    """Judge jobs of several sizes, each in a process of its own, and say how the cost grows."""
    found = [_apart(ranks) for ranks in _RANKS[quick]]
    for one in found:
        largest = one is found[-1] and not quick
        limits = {"at_most": _AT_MOST_S} if largest else {}
        note(run, "detector", "scale.judge_s", one.judge_s, unit="s", clock=Clock.MACHINE, ranks=one.ranks, **limits)
        limits = {"at_most": float(_AT_MOST_BYTES)} if largest else {}
        resident = float(one.resident_bytes)
        note(run, "detector", "scale.rss_bytes", resident, unit="B", clock=Clock.MACHINE, ranks=one.ranks, **limits)
    note(run, "detector", "scale.ranks", found[-1].ranks, clock=Clock.NONE, records=found[-1].records)
    note(run, "detector", "scale.exponent", exponent(found), clock=Clock.MACHINE, at_most=_n_log_n(found))


def exponent(costs: Sequence[Cost]) -> float:
    """The slope of log cost over log ranks."""
    return _slope([math.log(one.ranks) for one in costs], [math.log(one.judge_s) for one in costs])


def _n_log_n(costs: Sequence[Cost]) -> float:
    """The slope that n log n has over the same sizes."""
    sizes = [math.log(one.ranks) for one in costs]
    return _slope(sizes, [size + math.log(size) for size in sizes])


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return statistics.linear_regression(x, y).slope


def _apart(ranks: int) -> Cost:
    command = [sys.executable, "-m", "c4bench.bench.judging", str(ranks), str(_SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnhealthyError(f"judging {ranks} ranks failed: {' '.join(done.stderr.split()[-30:])}")
    return msgspec.json.decode(done.stdout, type=Cost)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(cost(int(sys.argv[1]), int(sys.argv[2]))))
