"""The effects of faults on rates and ranks at any time, for all ranks at once."""

from collections.abc import Sequence

import numpy as np

from tools.sim.arrays import Bools, Floats, Ints
from tools.sim.model import SimFault, SimFaultKind, SimJob
from tools.sim.rate_faults import RateFaults

_RATES = (SimFaultKind.PATH_RATE, SimFaultKind.NIC_RATE)

# Faults that begin later than this after the requested time are not examined.
_AHEAD_S = 1.0
_WHOLE: Floats = np.ones(1)


class FaultState:
    """The faults of a job; every array is indexed by rank."""

    def __init__(self, job: SimJob, faults: Sequence[SimFault]) -> None:
        self.job = job
        self.ranks: Ints = np.arange(job.ranks)
        self._faults = faults
        # Those that may act soon: the faults of rates, and others.
        self._rates: RateFaults | None = None
        self._near: Sequence[SimFault] = ()
        self._near_until_s = -np.inf
        self._unimpaired_bytes_s: Floats = _WHOLE * (job.rate_bps / 8)
        self.ended_s: Floats = np.full(job.ranks, np.inf)
        for fault in faults:
            if fault.kind in (SimFaultKind.KILLED, SimFaultKind.RAISED):
                self.ended_s[fault.rank] = min(self.ended_s[fault.rank], fault.at_s)
        self.some_end = bool(np.isfinite(self.ended_s).any())
        self.wrong_calls = {fault.rank: fault.call for fault in faults if fault.kind is SimFaultKind.MISMATCH}
        self.raised = {fault.rank for fault in faults if fault.kind is SimFaultKind.RAISED}

    def forget(self, before_s: float) -> None:
        """Drop faults that have ended by then; later calls ask only for later times."""
        kept = [fault for fault in self._faults if fault.until_s > before_s]
        if len(kept) < len(self._faults):
            self._faults = kept
            self._hold([fault for fault in kept if fault.at_s <= self._near_until_s])

    def carried(self, peer: Ints, posted: Floats) -> tuple[Floats, Floats, Floats]:
        """When messages posted at `posted` can be sent, and the bytes/s both ends carry from then on; shape (ranks,).

        They are sent later if a link has no rate for a while. The rates, of each rank's transmitter with its path to
        `peer` and of the receiver of that, have shape (1,) where no fault changes any.
        """
        self._reach(posted)
        if self._rates is None:
            return posted, self._unimpaired_bytes_s, self._unimpaired_bytes_s
        start, sending, receiving = self._rates.carried(peer, posted)
        return start, sending * (self.job.rate_bps / 8), receiving * (self.job.rate_bps / 8)

    def compute_factor(self, time_s: Floats) -> Floats:
        """How much longer each rank computes when it begins at `time_s`; shape (ranks,)."""
        factor = np.ones(len(time_s))
        for fault in self._of(time_s, SimFaultKind.COMPUTE):
            factor *= np.where((self.ranks == fault.rank) & _during(fault, time_s), fault.factor, 1.0)
        return factor

    def acts(self, time_s: Floats) -> Floats:
        """When each rank acts that would act at `time_s`: later if it is stopped, never if it is killed."""
        acts_s: Floats = np.where(time_s >= self.ended_s, np.inf, time_s) if self.some_end else time_s
        for fault in self._of(time_s, SimFaultKind.STOPPED, SimFaultKind.HUNG):
            acts_s = np.where((self.ranks == fault.rank) & _during(fault, acts_s), fault.until_s, acts_s)
        return acts_s

    def seen(self, time_s: float) -> Floats:
        """The time up to which each rank's shared memory is written at `time_s`: it stops while the rank is stopped."""
        seen_s: Floats = np.minimum(np.full(self.job.ranks, time_s), self.ended_s)
        for fault in self._of(np.asarray([time_s]), SimFaultKind.STOPPED, SimFaultKind.HUNG):
            if fault.at_s <= time_s < fault.until_s:
                seen_s[fault.rank] = min(seen_s[fault.rank], fault.at_s)
        return seen_s

    def joined(self, entered: Floats) -> Floats:
        """When each rank that enters a collective joins it: never, if it calls another one."""
        return np.where(self.mismatched(entered), np.inf, entered)

    def mismatched(self, entered: Floats) -> Bools:
        """Which ranks call another collective than their peers when they enter at `entered`."""
        mismatched = np.zeros(len(entered), dtype=np.bool_)
        for fault in self._of(entered, SimFaultKind.MISMATCH):
            mismatched |= (self.ranks == fault.rank) & _during(fault, entered)
        return mismatched

    def stopped(self, time_s: float) -> set[int]:
        """Ranks that are stopped at `time_s`."""
        return {f.rank for f in self._of(np.asarray([time_s]), SimFaultKind.STOPPED) if f.at_s <= time_s < f.until_s}

    def _of(self, times_s: Floats, *kinds: SimFaultKind) -> list[SimFault]:
        """Faults of these kinds that may act at any of the times, or when these delay a rank, in their order."""
        self._reach(times_s)
        return [fault for fault in self._near if fault.kind in kinds]

    def _reach(self, times_s: Floats) -> None:
        """Know the faults that may act at any of the times."""
        if self._faults and self._near_until_s < np.inf and times_s.max() > self._near_until_s:
            self._look_ahead(float(np.max(times_s, where=np.isfinite(times_s), initial=-np.inf)))

    def _look_ahead(self, until_s: float) -> None:
        """Collect the faults that begin by then or a little later, or while such a fault delays a rank or a message."""
        until_s = max(self._near_until_s, until_s + _AHEAD_S)
        near = self._begun(until_s)
        while (held_s := max((fault.until_s for fault in near if np.isfinite(fault.until_s)), default=0.0)) > until_s:
            until_s, near = held_s, self._begun(held_s)
        self._near_until_s = until_s if len(near) < len(self._faults) else np.inf
        self._hold(near)

    def _hold(self, near: Sequence[SimFault]) -> None:
        rates = [fault for fault in near if fault.kind in _RATES]
        self._rates = RateFaults(self.ranks, rates) if rates else None
        self._near = [fault for fault in near if fault.kind not in _RATES]

    def _begun(self, until_s: float) -> list[SimFault]:
        return [fault for fault in self._faults if fault.at_s <= until_s]


def _during(fault: SimFault, time_s: Floats) -> Bools:
    return (time_s >= fault.at_s) & (time_s < fault.until_s)
