"""The figures of a bench: how they follow from what ranks report, and how they are recorded.

A lab in virtual time cannot read the machine's clock. A directory that it makes in the run directory is created by
the machine, so its modification time is the machine's: that is a mark.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from c4bench.errors import UnhealthyError
from c4bench.model.measurement import Measurement
from c4bench.record import Ledger, RunDirectory
from c4bench.report.headlines import sentence
from c4bench.report.statistics import median
from c4bench.workload.collectives import Kind

BEGIN, END = "begin", "end"
Pairs = Sequence[tuple[float, float]]


def bus_factor(collective: Kind, ranks: int) -> float:
    """Bytes that cross each rank's NIC, per byte of array: nccl-tests, PERFORMANCE.md, "Bus Bandwidth".

    `barrier`, `send` and `recv` have no bus bandwidth: KeyError.
    """
    shared_out = (ranks - 1) / ranks
    return {
        "all_reduce": 2 * shared_out,
        "reduce_scatter": shared_out,
        "all_gather": shared_out,
        "all_to_all": shared_out,
        "broadcast": 1.0,
        "reduce": 1.0,
    }[collective]


def bus_bandwidth_bps(collective: Kind, size_bytes: int, results: Sequence[dict[str, Any]]) -> float:
    """Bus bandwidth of operations back to back, by the `spans` of every rank's `bandwidth` result, in rank order.

    Each rank's time is taken on its own clock, from its first operation's begin to its last one's end; the slowest
    rank's counts.
    """
    took_s: float = max(result["spans"][-1][1] - result["spans"][0][0] for result in results)
    operations = len(results[0]["spans"])
    return bus_factor(collective, len(results)) * size_bytes * 8 * operations / took_s


def median_ratio(pairs: Pairs) -> float:
    """The median of first over second."""
    return median([first / second for first, second in pairs])


def cost_fractions(by_rank: Sequence[Pairs]) -> list[float]:
    """Bandwidth that is lost by what is on in the first of each pair of durations, and off in the second, per round.

    `by_rank` holds every rank's pairs; in each round the slowest rank's durations count.
    """
    rounds = zip(*by_rank, strict=True)
    slowest = [(max(on for on, _ in each), max(off for _, off in each)) for each in rounds]
    return [1 - off / on for on, off in slowest]


def note(
    run: RunDirectory,
    suite: str,
    name: str,
    value: float,
    unit: str = "1",
    **rest: Any,  # noqa: ANN401
) -> Measurement:
    """Compare a figure with its limit, if any, record it in `run` and print it."""
    measurement = Ledger(run, f"bench.{suite}").measure(name, value, unit, **rest)
    sys.stdout.write(f"{measurement.outcome:<13} {sentence(measurement)}\n")
    sys.stdout.flush()
    return measurement


def mark(run: RunDirectory, name: str) -> None:
    """Inside the lab: mark this moment. Each name can be used once until `between` removes the marks."""
    folder = _folder(run)
    folder.mkdir(exist_ok=True)
    (folder / name).mkdir()


def between(run: RunDirectory) -> float:
    """Outside the lab: the machine's seconds from BEGIN to END; removes all marks. UnhealthyError without these two."""
    folder = _folder(run)
    times = {mark.name: mark.stat().st_mtime for mark in folder.iterdir()} if folder.is_dir() else {}
    for name in times:
        (folder / name).rmdir()
    if folder.is_dir():
        folder.rmdir()
    if not {BEGIN, END} <= times.keys():
        raise UnhealthyError("the lab left no begin and end marks; run the bench again")
    return times[END] - times[BEGIN]


def _folder(run: RunDirectory) -> Path:
    return run.path / "lab" / "marks"
