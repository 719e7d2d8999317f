"""What faults do to rates and to ranks, at any time, for all ranks at once."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from c4bench.sim.model import SimFault, SimFaultKind, SimJob

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


class World:
    """The job's surroundings; every array is indexed by rank."""

    def __init__(self, job: SimJob, faults: Sequence[SimFault]) -> None:
        self.job = job
        self.ranks: Ints = np.arange(job.ranks)
        self._faults = faults
        self.ended_s: Floats = np.full(job.ranks, np.inf)
        for fault in self._of(SimFaultKind.KILLED, SimFaultKind.RAISED):
            self.ended_s[fault.rank] = min(self.ended_s[fault.rank], fault.at_s)
        self.raised = {fault.rank for fault in self._of(SimFaultKind.RAISED)}

    def forget(self, before_s: float) -> None:
        """Faults that were over by then play no part any more; nothing earlier will be asked for."""
        self._faults = [fault for fault in self._faults if fault.until_s > before_s]

    def sending_rates(self, peer: Ints, time_s: Floats) -> Floats:
        """Bytes/s each rank's transmitter and its path to `peer` carry from `time_s` on; shape (ranks,)."""
        share = self._nic_share("tx", self.ranks, time_s)
        for fault in self._of(SimFaultKind.PATH_RATE):
            share = np.where(self._hit(fault, peer, time_s), np.minimum(share, fault.factor), share)
        return share * (self.job.rate_bps / 8)

    def receiving_rates(self, peer: Ints, time_s: Floats) -> Floats:
        """Bytes/s the receiver of each rank's `peer` takes from `time_s` on; shape (ranks,)."""
        return self._nic_share("rx", peer, time_s) * (self.job.rate_bps / 8)

    def compute_factor(self, time_s: Floats) -> Floats:
        """How much longer each rank computes when it begins at `time_s`; shape (ranks,)."""
        factor = np.ones(len(time_s))
        for fault in self._of(SimFaultKind.COMPUTE):
            factor *= np.where((self.ranks == fault.rank) & _during(fault, time_s), fault.factor, 1.0)
        return factor

    def acts(self, time_s: Floats) -> Floats:
        """When each rank really does what it would do at `time_s`: later if stopped, never if killed."""
        acts_s: Floats = np.where(time_s >= self.ended_s, np.inf, time_s)
        for fault in self._of(SimFaultKind.STOPPED, SimFaultKind.HUNG):
            acts_s = np.where((self.ranks == fault.rank) & _during(fault, acts_s), fault.until_s, acts_s)
        return acts_s

    def seen(self, time_s: float) -> Floats:
        """The moment each rank's shared memory shows at `time_s`: it stands still while the rank does."""
        seen_s: Floats = np.minimum(np.full(self.job.ranks, time_s), self.ended_s)
        for fault in self._of(SimFaultKind.STOPPED, SimFaultKind.HUNG):
            if fault.at_s <= time_s < fault.until_s:
                seen_s[fault.rank] = min(seen_s[fault.rank], fault.at_s)
        return seen_s

    def agreed(self, entered: Floats) -> Floats:
        """When each rank that enters a collective can take part in it: never, if it has called another one."""
        return np.where(self.mismatched(entered), np.inf, entered)

    def mismatched(self, entered: Floats) -> NDArray[np.bool_]:
        """Which ranks call another collective than their peers when they enter at `entered`."""
        found = np.zeros(len(entered), dtype=np.bool_)
        for fault in self._of(SimFaultKind.MISMATCH):
            found |= (self.ranks == fault.rank) & _during(fault, entered)
        return found

    def carried(self, peer: Ints, start: Floats) -> Floats:
        """When messages posted at `start` get a way at all: later where one does not carry anything for a while."""
        carried_s = start
        for fault in self._of(SimFaultKind.PATH_RATE, SimFaultKind.NIC_RATE):
            if fault.factor == 0 and np.isfinite(fault.until_s):
                carried_s = np.where(self._hit(fault, peer, carried_s), fault.until_s, carried_s)
        return carried_s

    def _hit(self, fault: SimFault, peer: Ints, start: Floats) -> NDArray[np.bool_]:
        ends = self.ranks if fault.side != "rx" else peer
        hit = (ends == fault.rank) & _during(fault, start)
        if fault.kind is SimFaultKind.PATH_RATE:
            hit = hit & (peer == fault.peer)
        return np.asarray(hit)

    def stopped(self, time_s: float) -> set[int]:
        """Ranks that are stopped at `time_s`."""
        return {f.rank for f in self._of(SimFaultKind.STOPPED) if f.at_s <= time_s < f.until_s}

    def _nic_share(self, side: str, ranks: Ints, time_s: Floats) -> Floats:
        share = np.ones(len(ranks))
        for fault in self._of(SimFaultKind.NIC_RATE):
            if fault.side == side:
                hit = (ranks == fault.rank) & _during(fault, time_s)
                share = np.where(hit, np.minimum(share, fault.factor), share)
        return share

    def _of(self, *kinds: SimFaultKind) -> Iterable[SimFault]:
        return (fault for fault in self._faults if fault.kind in kinds)


def _during(fault: SimFault, time_s: Floats) -> NDArray[np.bool_]:
    return (time_s >= fault.at_s) & (time_s < fault.until_s)
