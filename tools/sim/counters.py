"""Cumulative connection counters of all ranks at any time, computed from traces."""

from collections.abc import Callable

import numpy as np

from tools.sim.arrays import Bools, Floats, Ints
from tools.sim.trace import OpTrace

_SUMS = (
    "messages",
    "size_bytes",
    "wait_credit_s",
    "wait_data_s",
    "transfer_s",
    "outstanding",
    "owed",
    "arrived",
)
_MOMENTS = ("last_progress_s", "posted_s")


class Counters:
    """The counters of each rank's connections by name, from 0; each array has shape (connections, ranks).

    `arrived` counts the messages from the rank whose messages the connection is shifted by. `transfer_s` is of
    acknowledged messages; those that are `outstanding` have been since `posted_s`, 0 without any.
    """

    def __init__(self, connections: int, ranks: int) -> None:
        self._sums: Floats = np.zeros((len(_SUMS), connections, ranks))
        self._moments: Floats = np.zeros((len(_MOMENTS), connections, ranks))

    def __getitem__(self, name: str) -> Floats:
        """Counter `name`; raises ValueError without such a counter."""
        array: Floats = self._moments[_MOMENTS.index(name)] if name in _MOMENTS else self._sums[_SUMS.index(name)]
        return array

    def add(self, trace: OpTrace, seen_s: Floats) -> None:
        """Add what `trace` does to its connections by the time `seen_s` of each rank."""
        rows = trace.steps.connections
        self._sums[:, rows] += _sums(trace, seen_s)
        self._moments[:, rows] = np.maximum(self._moments[:, rows], _moments(trace, seen_s))


def _sums(trace: OpTrace, seen_s: Floats) -> Floats:
    """One counter after the other: each step of each rank has one of every kind, which together take much memory."""
    free, ready, start, end = (np.minimum(times, seen_s) for times in (trace.free, trace.ready, trace.start, trace.end))
    done, begun = trace.end <= seen_s, trace.start <= seen_s
    figures: tuple[Callable[[], Floats | Bools], ...] = (
        lambda: done,
        lambda: done,
        lambda: start - ready,
        lambda: ready - free,
        lambda: (end - start) * done,
        lambda: begun & ~done,
        lambda: (trace.entered <= seen_s) & ~begun,
        lambda: trace.arrived <= seen_s,
    )
    sums: Floats = np.stack([_by_connection(np.add, trace.steps.firsts, figure().astype(float)) for figure in figures])
    sums[1] *= trace.message_bytes
    sums[3, -1] += np.minimum(trace.finished, seen_s) - end[-1]
    return sums


def _moments(trace: OpTrace, seen_s: Floats) -> Floats:
    done = trace.end <= seen_s
    under_way = (trace.start <= seen_s) & ~done
    moments = np.where(done, trace.end, 0.0), np.where(under_way, trace.start, 0.0)
    return np.stack([_by_connection(np.maximum, trace.steps.firsts, moment) for moment in moments])


def _by_connection(combine: np.ufunc, firsts: Ints, values: Floats) -> Floats:
    """Combine the rows of the steps of each connection, whose first ones these are."""
    combined: Floats = values if len(firsts) == len(values) else combine.reduceat(values, firsts)
    return combined
