"""Figures of merit from what ranks report: durations to bandwidths, pairs to ratios."""

from collections.abc import Sequence
from typing import Any

from c4bench.report.statistics import median
from c4bench.workload.collectives import Kind

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
