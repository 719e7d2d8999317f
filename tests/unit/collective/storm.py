"""Resilient communicators over loopback, and what happens to their NICs."""

import time

import numpy as np

from c4bench.collective.options import FailureTimeouts
from c4bench.verbs.transport import TransportProfile

SMALL = {"chunk_bytes": 1024, "staging_bytes": 8192}
# A millisecond here is what ten are on a fabric.
QUICK = FailureTimeouts(
    tick_s=0.001,
    quiet_s=0.01,
    hold_s=0.004,
    resend_s=0.01,
    retry_s=0.03,
    steady_s=0.03,
    longest_s=0.3,
    probe=TransportProfile("probe", timeout=10, retries=1, rnr_retries=6),
)
FAST = TransportProfile("fast", timeout=12, retries=3, rnr_retries=6)
KINDS = ("black hole", "down", "tx", "acks", "late")


def resilient(world, size, nics=2, **options):
    return world(size, nics, resilient=True, **{"timeouts": QUICK, "profile": FAST, **SMALL, **options})


def unfailed(job, work):
    """What each rank returned; an error of any is raised."""
    outcomes = job.run(work)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def summed(comm, count, step=0):
    array = np.arange(count, dtype=np.int64) * (comm.rank + 1) + step
    comm.all_reduce(array)
    size = comm.size
    np.testing.assert_array_equal(array, np.arange(count) * (size * (size + 1) // 2) + size * step)


def keep_summing(comm):
    """Until something fails."""
    for step in range(100):
        summed(comm, 100_000, step)


def states(comm):
    """The states of a communicator's rails, by how many there are of each."""
    return comm.resilience.states


def until(comm, expected):
    """Go on until the rails of every rank are in these states."""
    agreed = np.zeros(1, np.int64)
    while not agreed[0]:
        comm.barrier()
        agreed[0] = set(states(comm)) == expected
        comm.all_reduce(agreed, "min")


def at_work(comm, count=1000):
    """Every rank is at work when this returns; True on the one that may have something happen now."""
    summed(comm, count)
    comm.barrier()
    return comm.rank == 0


def all_up_again(comm, heal):
    """Once every rank is here one of them heals what is broken; go on until all rails are up."""
    comm.barrier()
    if comm.rank == 0:
        heal()
    until(comm, {"up"})


class Storm:
    """What happens to the NICs of a world: each trouble begins after so many packets, and may end later."""

    def __init__(self, job):
        self._made = job
        self._network = job.network
        self._packets = 0
        self._troubles = []
        self.struck = 0
        job.network.delivery = self

    def add(self, kind, rank, nic, after, lasts_s=None):
        """From packet `after` on (counted from now), NIC `nic` of `rank` has this trouble, for ever or for a while."""
        self._troubles.append([kind, (rank, nic), self._packets + after, lasts_s, None])

    def heal(self):
        """All is well again."""
        with self._network.lock:
            for trouble in self._troubles:
                self._made.set_active(*trouble[1], active=True)
            self._troubles.clear()

    def __call__(self, source, destination):
        self._packets += 1
        deliveries = [self._delivery(trouble, source, destination) for trouble in self._troubles]
        return next((delivery for delivery in ("lost", "late", "unacknowledged") if delivery in deliveries), "")

    def _delivery(self, trouble, source, destination):
        kind, nic, after, lasts_s, since_s = trouble
        if self._packets < after:
            return ""
        if since_s is None:
            trouble[4] = since_s = time.monotonic()
            self.struck += 1
            if kind == "down":
                self._made.set_active(*nic, active=False)
        if lasts_s is not None and time.monotonic() - since_s > lasts_s:
            if nic in self._made.down:
                self._made.set_active(*nic, active=True)
            return ""
        return self._effect(kind, nic, source.nic, destination.nic)

    def _effect(self, kind, nic, source, destination):
        if kind == "path":
            return "lost" if {source, destination} == {nic, (2, nic[1])} else ""
        sends = {"tx": "lost", "late": "late", "acks": ""}.get(kind, "lost")
        receives = {"tx": "unacknowledged", "late": "", "acks": "unacknowledged"}.get(kind, "lost")
        return sends if source == nic else receives if destination == nic else ""
