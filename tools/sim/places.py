"""The position of each rank in the communicators of a job."""

import numpy as np

from c4bench.model.step import RankGroup
from c4bench.model.telemetry import CommRecord, Member
from tools.sim.arrays import Ints
from tools.sim.model import SimJob


class Places:
    """The communicators of one group; arrays are indexed by the job's rank."""

    def __init__(self, job: SimJob, group: RankGroup | None) -> None:
        chosen = group or RankGroup("world", job.ranks)
        if job.ranks % (chosen.size * chosen.stride):
            raise ValueError(
                f"{job.ranks} ranks cannot be divided into groups of {chosen.size} with stride {chosen.stride}"
            )
        ranks: Ints = np.arange(job.ranks)
        self.size, self._stride = chosen.size, chosen.stride
        self.position: Ints = ranks // chosen.stride % chosen.size
        self._first: Ints = ranks - self.position * chosen.stride
        self.comms = self._records(job, chosen)
        self._peers: dict[int, Ints] = {}

    def peer(self, shift: int) -> Ints:
        """The rank `shift` positions on from each rank in its communicator."""
        if shift not in self._peers:
            self._peers[shift] = self._first + (self.position + shift) % self.size * self._stride
        return self._peers[shift]

    def _records(self, job: SimJob, group: RankGroup) -> list[CommRecord]:
        """Each rank's communicator; one record for all its members."""
        records: dict[int, CommRecord] = {}
        for number, first in enumerate(np.unique(self._first).tolist()):
            ranks = range(first, first + self.size * self._stride, self._stride)
            members = tuple(Member(place, host_of(job, rank), (nic_of(job, rank),)) for place, rank in enumerate(ranks))
            suffix = f".{number}" if self.size < job.ranks else ""
            records[first] = CommRecord(f"{job.name}.{group.name}{suffix}", job.name, members)
        return [records[first] for first in self._first.tolist()]


def host_of(job: SimJob, rank: int) -> str:
    """The host a rank is on."""
    return f"h{rank // job.ranks_per_host}"


def nic_of(job: SimJob, rank: int) -> str:
    """The NIC a rank uses."""
    return f"{host_of(job, rank)}/{rank % job.ranks_per_host}"
