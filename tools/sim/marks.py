"""Packets that come marked to the NICs of a simulated job: those that stood in a queue on their way."""

from collections.abc import Sequence

import numpy as np

from c4bench.model.telemetry import NicRecord
from tools.sim.arrays import Floats
from tools.sim.counters import Counters
from tools.sim.model import SimJob
from tools.sim.places import Places
from tools.sim.world import FaultState

_PACKET_BYTES = 4096


class MarkCounter:
    """Counts, for each rank's NIC, what has arrived over paths and NICs while they carried less than their rate."""

    def __init__(self, job: SimJob, connections: Sequence[tuple[Places, int]]) -> None:
        self._job, self._connections = job, connections
        self._sent: Floats = np.zeros((len(connections), job.ranks))
        self._marked: Floats = np.zeros(job.ranks)

    def records(self, nics: Sequence[str], world: FaultState, now_s: float, counters: Counters) -> list[NicRecord]:
        """The records of all NICs, after the connections' newest counters."""
        times_s, whole = np.full(self._job.ranks, now_s), self._job.rate_bps / 8
        fresh, self._sent = counters["size_bytes"] - self._sent, counters["size_bytes"].copy()
        for (places, shift), fresh_bytes in zip(self._connections, fresh, strict=True):
            peer = places.peer(shift)
            _, sending, receiving = world.carried(peer, times_s)
            slowed = np.minimum(sending, receiving) < whole
            np.add.at(self._marked, peer, np.where(slowed, fresh_bytes / _PACKET_BYTES, 0.0))
        return [NicRecord(nic, "linkup", ecn_marked=int(count)) for nic, count in zip(nics, self._marked, strict=True)]
