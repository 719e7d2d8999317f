"""What faults of paths and NICs leave of the rates at which ranks send and receive, for all faults at once."""

from collections.abc import Sequence

import numpy as np

from tools.sim.arrays import Bools, Floats, Ints
from tools.sim.model import SimFault, SimFaultKind


class RateFaults:
    """Faults of rates; `ranks` are those of the job, and every array is indexed by rank."""

    def __init__(self, ranks: Ints, faults: Sequence[SimFault]) -> None:
        self._ranks = ranks
        self._halts = [_Side([fault]) for fault in faults if fault.factor == 0 and np.isfinite(fault.until_s)]
        self._sending = _Side([fault for fault in faults if fault.side != "rx"])
        self._receiving = _Side([fault for fault in faults if fault.side == "rx"])

    def carried(self, peer: Ints, posted: Floats) -> tuple[Floats, Floats, Floats]:
        """When messages posted at `posted` can be sent, and the shares of their rates that both ends then have."""
        start = posted
        for halt in self._halts:
            start = np.where(halt.hits(self._ends(halt, peer), peer, start)[0], halt.until_s[0], start)
        return start, self._share(self._sending, peer, start), self._share(self._receiving, peer, start)

    def _share(self, side: "_Side", peer: Ints, start: Floats) -> Floats:
        hits = side.hits(self._ends(side, peer), peer, start)
        share: Floats = np.where(hits, side.factor, 1.0).min(axis=0, initial=1.0)
        return share

    def _ends(self, side: "_Side", peer: Ints) -> Ints:
        return peer if side.receives else self._ranks


class _Side:
    """Faults of what ranks send, or of what they receive, as columns."""

    def __init__(self, faults: Sequence[SimFault]) -> None:
        def column(values: Sequence[float]) -> Floats:
            return np.asarray(values, np.float64)[:, None]

        self.receives = any(fault.side == "rx" for fault in faults)
        self.rank, self.factor = column([one.rank for one in faults]), column([one.factor for one in faults])
        self.at_s, self.until_s = column([one.at_s for one in faults]), column([one.until_s for one in faults])
        paths = [one.kind is SimFaultKind.PATH_RATE for one in faults]
        self.peer = column([one.peer if path else -1 for one, path in zip(faults, paths, strict=True)])
        self.any_peer = self.peer < 0

    def hits(self, ends: Ints, peer: Ints, start: Floats) -> Bools:
        """Whether each fault acts on each rank's message to its `peer` at `start`; shape (faults, ranks)."""
        during = (start >= self.at_s) & (start < self.until_s)
        return np.asarray((ends == self.rank) & during & (self.any_peer | (peer == self.peer)))
