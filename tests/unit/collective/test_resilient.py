"""Resilient collectives over the loopback transport: whatever happens to NICs, the sum is exact or the error is loud."""

import threading
import time

import numpy as np
import pytest

from c4bench.collective.errors import CollectiveError
from c4bench.collective.resilient.patience import Patience
from c4bench.verbs.loopback import Network
from c4bench.verbs.transport import TransportProfile

SMALL = {"chunk_bytes": 1024, "staging_bytes": 8192}
# A millisecond here is what ten are on a fabric.
QUICK = Patience(
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


def resilient(world, size, nics=2, **options):
    return world(size, nics, resilient=True, patience=QUICK, profile=FAST, **{**SMALL, **options})


def run(made, work):
    for outcome in made.run(work):
        if isinstance(outcome, BaseException):
            raise outcome


def summed(comm, count, step=0):
    array = np.arange(count, dtype=np.int64) * (comm.rank + 1) + step
    comm.all_reduce(array)
    size = comm.size
    np.testing.assert_array_equal(array, np.arange(count) * (size * (size + 1) // 2) + size * step)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("nics", [1, 2, 3])
def test_healthy_collectives_are_exact(world, size, nics):
    """With nothing broken, every collective gives what it gives without resilience."""

    def work(comm):
        for count in (0, 1, 1000, 200_000):
            summed(comm, count)
        part = np.full(3000, comm.rank)
        whole = np.empty(3000 * size, part.dtype)
        comm.all_gather(whole, part)
        assert (whole.reshape(size, -1) == np.arange(size)[:, None]).all()
        comm.reduce_scatter(part, whole)
        assert (part == size * comm.rank).all()
        given = np.repeat(np.arange(size) + 10 * comm.rank, 5000)
        comm.all_to_all(taken := np.empty_like(given), given)
        np.testing.assert_array_equal(taken, np.repeat(10 * np.arange(size) + comm.rank, 5000))
        comm.broadcast(whole, src=size - 1)
        comm.reduce(whole, dst=0)
        comm.barrier()

    run(resilient(world, size, nics), work)
