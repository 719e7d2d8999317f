"""Cumulative connection counters of all ranks at any time, computed from traces."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from c4bench.sim.trace import OpTrace
from c4bench.sim.world import Floats


class Counters(msgspec.Struct):
    """The counters of every rank's connection to the rank `shift` positions on; each array has shape (ranks,).

    `arrived` counts the messages from the rank `shift` positions back. `transfer_s` is of acknowledged messages;
    those that are outstanding have been since `posted_s`, 0 without any.
    """

    messages: Floats
    size_bytes: Floats
    wait_credit_s: Floats
    wait_data_s: Floats
    transfer_s: Floats
    last_progress_s: Floats
    outstanding: Floats
    posted_s: Floats
    owed: Floats
    arrived: Floats

    @classmethod
    def zero(cls, ranks: int) -> "Counters":
        """The counters before anything is sent."""
        return cls(*(np.zeros(ranks) for _ in cls.__struct_fields__))

    def plus(self, other: "Counters") -> "Counters":
        """The sum of these and `other`; of the moments the later ones."""
        total = Counters(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))
        total.last_progress_s = np.maximum(self.last_progress_s, other.last_progress_s)
        total.posted_s = np.maximum(self.posted_s, other.posted_s)
        return total


def op_counters(trace: OpTrace, shift: int, seen_s: Floats) -> Counters:
    """The counters that `trace` adds to the connections of `shift` by the time `seen_s` of each rank."""
    steps = np.flatnonzero(np.asarray(trace.shifts) == shift)
    free, ready, start, end = (array[steps] for array in (trace.free, trace.ready, trace.start, trace.end))
    done = end <= seen_s
    under_way = (start <= seen_s) & ~done
    waited = _elapsed(free, ready, seen_s).sum(axis=0)
    if steps.size and steps[-1] == len(trace.shifts) - 1:
        waited = waited + _elapsed(end[-1:], trace.finished[None], seen_s)[0]
    return Counters(
        messages=_count(done),
        size_bytes=_count(done) * trace.message_bytes,
        wait_credit_s=_elapsed(ready, start, seen_s).sum(axis=0),
        wait_data_s=waited,
        transfer_s=(_elapsed(start, end, seen_s) * done).sum(axis=0),
        last_progress_s=np.where(done, end, 0.0).max(axis=0, initial=0.0),
        outstanding=_count(under_way),
        posted_s=np.where(under_way, start, 0.0).max(axis=0, initial=0.0),
        owed=_count((trace.entered <= seen_s) & (start > seen_s)),
        arrived=_count(end[:, trace.places.peer(-shift)] <= seen_s),
    )


def _elapsed(begin: Floats, end: Floats, seen_s: Floats) -> Floats:
    elapsed: Floats = np.minimum(end, seen_s) - np.minimum(begin, seen_s)
    return elapsed


def _count(which: NDArray[np.bool_]) -> Floats:
    count: Floats = which.sum(axis=0, dtype=np.float64)
    return count
