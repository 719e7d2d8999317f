"""What each NIC and QP of a resilient communicator carries."""

import time

import numpy as np
import pytest
from storm import (
    SMALL,
    Storm,
    resilient,
    summed,
)

from c4bench.collective.ring_reader import read_ring


@pytest.mark.parametrize("resilience", [False, True])
def test_unlike_nics_carry_by_their_rates(world, resilience):
    """A NIC of three times the rate carries three times the bytes, resilient or not, and every element is exact."""
    made = world(3, 2, resilient=resilience, rates=(1e10, 3e10), **SMALL)

    def work(comm):
        for count in (1, 1001, 100_001):
            summed(comm, count)
        conns = read_ring(made.path(comm.rank)).conns
        return [sum(conn.size_bytes for conn in conns if conn.source.endswith(nic)) for nic in ("/0", "/1")]

    for slow, fast in made.run(work):
        assert fast / slow == pytest.approx(3, rel=0.05)


def test_shares_follow_the_rates_of_what_is_left(world):
    """What the lost NIC carried goes by the others in proportion to their rates."""
    made = resilient(world, 2, 3, rates=(1e10, 1e10, 3e10))
    storm = Storm(made)

    def work(comm):
        summed(comm, 1000)
        comm.barrier()
        if comm.rank == 0:
            storm.add("down", 1, 0, after=0)
        comm.barrier()
        time.sleep(0.01)
        for step in range(5):
            summed(comm, 10_000, step)
        comm.barrier()
        before = {conn.source: conn.size_bytes for conn in read_ring(made.path(comm.rank)).conns}
        summed(comm, 150_000)
        after = {conn.source: conn.size_bytes for conn in read_ring(made.path(comm.rank)).conns}
        return [after[nic] - before[nic] for nic in sorted(after)]

    for unused, slow, fast in made.run(work):
        assert unused == 0
        # Fifths by rate, of which the lost one is shared one to three.
        assert slow / fast == pytest.approx(1 / 3, rel=0.03)


def test_several_qps_share_their_nic_until_it_dies(world):
    """Weights hold among the QPs of a NIC that is up; when it dies, the other's QPs carry its part."""
    made = resilient(world, 2, 2, qps=2)
    storm = Storm(made)

    def carried(comm):
        conns = read_ring(made.path(comm.rank)).conns
        return [sum(c.size_bytes for c in conns if c.qp == qp) for qp in sorted({c.qp for c in conns})]

    def work(comm):
        comm.weigh(1 - comm.rank, 0, (3, 1))
        summed(comm, 1000)
        before = carried(comm)
        for step in range(4):
            summed(comm, 50_000, step)
        shares = np.subtract(carried(comm), before)
        comm.barrier()
        if comm.rank == 0:
            storm.add("black hole", 1, 0, after=20)
        for step in range(3):
            summed(comm, 50_000, step)
        return shares.tolist()

    for first, second, third, fourth in made.run(work):
        assert first / second == pytest.approx(3, rel=0.05)
        assert third / fourth == pytest.approx(1, rel=0.05)
    assert storm.struck == 1
