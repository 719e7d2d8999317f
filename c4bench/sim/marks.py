"""Packets that come marked to the NICs of a simulated job: those that stood in a queue on their way."""

from collections.abc import Sequence

import numpy as np

from c4bench.model.telemetry import NicRecord
from c4bench.sim.counters import Counters
from c4bench.sim.model import SimJob
from c4bench.sim.places import Places
from c4bench.sim.world import FaultState, Floats

_PACKET_BYTES = 4096


class MarkCounter:
    """Counts, for each rank's NIC, what has arrived over paths and NICs while they carried less than their rate."""

    def __init__(self, job: SimJob, connections: Sequence[tuple[Places, int]]) -> None:
        self._job, self._connections = job, connections
        self._sent: list[Floats] = [np.zeros(job.ranks) for _ in connections]
        self._marked: Floats = np.zeros(job.ranks)

    def records(
        self, nics: Sequence[str], world: FaultState, now_s: float, counters: Sequence[Counters]
    ) -> list[NicRecord]:
        """The records of all NICs, after the connections' newest counters."""
        times_s, whole = np.full(self._job.ranks, now_s), self._job.rate_bps / 8
        for index, ((places, shift), counted) in enumerate(zip(self._connections, counters, strict=True)):
            peer = places.peer(shift)
            rates = np.minimum(world.sending_rates(peer, times_s), world.receiving_rates(peer, times_s))
            fresh, self._sent[index] = counted.size_bytes - self._sent[index], counted.size_bytes
            np.add.at(self._marked, peer, np.where(rates < whole, fresh / _PACKET_BYTES, 0.0))
        return [NicRecord(nic, "linkup", ecn_marked=int(count)) for nic, count in zip(nics, self._marked, strict=True)]
