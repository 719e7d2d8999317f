"""CPU and memory cost of the detector by job size, without a lab, on the machine's clock.

It is a separate program (`python -m tools.bench.detector_cost RANKS`), so that its peak memory can be read.
"""

import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from c4bench.bench.figures import note
from c4bench.c4d.detector import Detector
from c4bench.errors import UnhealthyError
from c4bench.model.measurement import Clock
from c4bench.model.recording import LearntPath, PathsLearnt
from c4bench.model.step import RankGroup, StepOp
from c4bench.model.window import Window
from c4bench.record import RunDirectory
from tools.sim.job import simulate
from tools.sim.model import SimJob

_RANKS = {False: (1_000, 3_200, 10_000, 32_000, 100_000), True: (1_000, 3_200, 10_000)}
_SECONDS = 36
# By then the detector knows every connection and communicator, and has learnt its baselines.
_WARM_UP = 26
# The round in which C4P reports the paths of all connections.
_PLANNED = 2
_HOSTS_PER_LEAF, _SPINES = 32, 16
_NICS_PER_HOST = 8
# One iteration a second: tensor groups inside a host, data groups across 25.
_STEP = (
    StepOp("all_reduce", 64 << 20, 0.45, RankGroup("tensor", _NICS_PER_HOST)),
    StepOp("all_reduce", 256 << 20, 0.45, RankGroup("data", 25, _NICS_PER_HOST)),
)
_RATE_BPS = 400e9
_AT_MOST_S, _AT_MOST_BYTES = 1.0, 2 << 30


class Cost(msgspec.Struct, frozen=True):
    """`judge_s`: CPU seconds per second of telemetry, median; `worst_s` the maximum.

    `resident_bytes`: peak resident memory, simulator included.
    """

    ranks: int
    records: int
    evaluate_s: float
    worst_s: float
    resident_bytes: int


def cost(ranks: int) -> Cost:
    """Ingest a healthy job's windows, one per host and second, and evaluate after each round.

    C4P plans its connections.
    """
    job = SimJob(ranks, _STEP, rate_bps=_RATE_BPS, ranks_per_host=_NICS_PER_HOST, window_s=1.0)
    detector, records = Detector(), 0
    spent: list[float] = []
    for tick in simulate(job, duration_s=float(_SECONDS)):
        if len(spent) == _PLANNED:
            detector.ingest(PathsLearnt(tick.time_s, tuple(_learnt_paths(tick.windows))))
        began_s = time.process_time()
        for window in tick.windows:
            detector.ingest_window(window)
        detector.evaluate(tick.time_s)
        spent.append(time.process_time() - began_s)
        records = sum(len(w.ops) + len(w.conns) + len(w.arrivals) + len(w.ranks) for w in tick.windows)
        # A master does not keep windows either while the next come.
        del tick, window
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    warm = spent[_WARM_UP:]
    return Cost(ranks, records, statistics.median(warm), max(warm), resident)


def _learnt_paths(windows: Iterable[Window]) -> Iterator[LearntPath]:
    """Paths of the connections in a leaf-spine fabric where each NIC of a host has its own leaf."""
    for conn in (conn for window in windows for conn in window.conns):
        first, last = _leaf(conn.source), _leaf(conn.destination)
        spine = f"spine{conn.source_port % _SPINES}"
        across = () if first == last else (f"{first}>{spine}", f"{spine}>{last}")
        yield conn.source, conn.destination, conn.source_port, (*across, f"{last}>{conn.destination}")


def _leaf(nic: str) -> str:
    host, rail = nic.removeprefix("h").split("/")
    return f"leaf{int(host) // _HOSTS_PER_LEAF}.{rail}"


def measure(run: RunDirectory, *, quick: bool) -> None:
    """Measure jobs of several sizes, each in its own process, and how the cost grows."""
    costs = [_cost_in_subprocess(ranks) for ranks in _RANKS[quick]]
    for point in costs:
        largest = point is costs[-1] and not quick
        limits = {"at_most": _AT_MOST_S} if largest else {}
        note(
            run,
            "detector",
            "scale.judge_s",
            point.evaluate_s,
            unit="s",
            clock=Clock.MACHINE,
            ranks=point.ranks,
            **limits,
        )
        note(run, "detector", "scale.worst_s", point.worst_s, unit="s", clock=Clock.MACHINE, ranks=point.ranks)
        limits = {"at_most": float(_AT_MOST_BYTES)} if largest else {}
        resident = float(point.resident_bytes)
        note(run, "detector", "scale.rss_bytes", resident, unit="B", clock=Clock.MACHINE, ranks=point.ranks, **limits)
    note(run, "detector", "scale.ranks", costs[-1].ranks, clock=Clock.NONE, records=costs[-1].records)
    note(run, "detector", "scale.exponent", exponent(costs), clock=Clock.MACHINE, at_most=_n_log_n(costs))


def exponent(costs: Sequence[Cost]) -> float:
    """The slope of log cost over log ranks."""
    return _slope([math.log(point.ranks) for point in costs], [math.log(point.evaluate_s) for point in costs])


def _n_log_n(costs: Sequence[Cost]) -> float:
    """The slope that n log n has over the same sizes."""
    sizes = [math.log(one.ranks) for one in costs]
    return _slope(sizes, [size + math.log(size) for size in sizes])


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return statistics.linear_regression(x, y).slope


def _cost_in_subprocess(ranks: int) -> Cost:
    command = [sys.executable, "-m", "tools.bench.detector_cost", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnhealthyError(f"evaluating {ranks} ranks failed: {' '.join(done.stderr.split()[-30:])}")
    return msgspec.json.decode(done.stdout, type=Cost)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(cost(int(sys.argv[1]))))
