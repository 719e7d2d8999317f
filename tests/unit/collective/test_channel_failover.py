"""The load of each NIC and QP of a resilient communicator."""

import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from night_cases import at_night
from storm import (
    SMALL,
    Storm,
    at_work,
    resilient,
    summed,
)

from c4bench.collective.endpoints import ChannelFailover
from c4bench.collective.ring_reader import read_telemetry_file


@dataclass(frozen=True)
class Channel:
    """What a pool asks of an outlet."""

    channel: int
    rate_bps: float
    able: bool = True
    used: bool = True

    @property
    def stranded(self):
        """See RailOutlet."""
        return self.used and not self.able


def pool(channels, *, spread=True):
    """These share one."""
    failover = ChannelFailover(spread=spread)
    failover.senders += channels
    return failover


@given(data=st.data())
def test_all_channels_share_what_is_left(data):
    """After a loss all remaining NICs finish their load at the same time, within one message."""
    rates = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=8), label="rates")
    lost = data.draw(st.sets(st.integers(0, len(rates) - 1), min_size=1, max_size=len(rates) - 1), label="lost")
    channels = [Channel(at, rate, able=at not in lost) for at, rate in enumerate(rates)]
    shared, carried = pool(channels), Counter()
    for sender in data.draw(st.lists(st.sampled_from(channels), max_size=100), label="senders"):
        carried[shared.carrier(sender, 1)] += 1
    able = [each for each in channels if each.able]
    busy = [carried[each] / each.rate_bps for each in able]
    assert max(busy) - min(busy) <= 1 / min(each.rate_bps for each in able)
    assert sum(carried.values()) == sum(carried[each] for each in able)


def test_channels_keep_to_their_own_nics_where_they_have_them():
    """As long as every channel in use has its NIC, each channel uses its own."""
    channels = [Channel(0, 1), Channel(1, 1, able=False, used=False), Channel(2, 3)]
    shared = pool(channels)
    assert all(shared.carrier(each, 1) is each for each in channels[::2] * 3)


def test_one_nic_carries_all_that_another_carried():
    """Without `spread` the next NIC that is up carries the lost one's load, and the others carry only their own."""
    channels = [Channel(0, 1), Channel(1, 1), Channel(2, 1, able=False)]
    shared = pool(channels, spread=False)
    assert [shared.carrier(each, 1).channel for each in channels * 2] == [0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("resilience", [True, *at_night(False)])
def test_unlike_nics_carry_by_their_rates(world, resilience):
    """A NIC of three times the rate carries three times the bytes, resilient or not, and every element is exact."""
    failover = world(3, 2, resilient=resilience, rates=(1e10, 3e10), **SMALL)

    def work(comm):
        for count in (1, 1001, 100_001):
            summed(comm, count)
        conns = read_telemetry_file(failover.path(comm.rank)).conns
        return [sum(conn.size_bytes for conn in conns if conn.source.endswith(nic)) for nic in ("/0", "/1")]

    for slow, fast in failover.run(work):
        assert fast / slow == pytest.approx(3, rel=0.05)


def test_shares_follow_the_rates_of_what_is_left(world):
    """A lost NIC's load is shared by the others in proportion to their rates."""
    failover = resilient(world, 2, 3, rates=(1e10, 1e10, 3e10))
    storm = Storm(failover)

    def work(comm):
        if at_work(comm):
            storm.add("down", 1, 0, after=0)
        comm.barrier()
        time.sleep(0.01)
        for step in range(5):
            summed(comm, 10_000, step)
        comm.barrier()
        before = {conn.source: conn.size_bytes for conn in read_telemetry_file(failover.path(comm.rank)).conns}
        summed(comm, 150_000)
        after = {conn.source: conn.size_bytes for conn in read_telemetry_file(failover.path(comm.rank)).conns}
        return [after[nic] - before[nic] for nic in sorted(after)]

    for unused, slow, fast in failover.run(work):
        assert unused == 0
        # Fifths by rate, of which the lost one is shared one to three.
        assert slow / fast == pytest.approx(1 / 3, rel=0.03)


def test_several_qps_share_their_nic_until_it_dies(world):
    """Weights apply among the QPs of a NIC that is up; when it dies, the other NIC's QPs carry its load."""
    failover = resilient(world, 2, 2, qps=2)
    storm = Storm(failover)

    def carried(comm):
        conns = read_telemetry_file(failover.path(comm.rank)).conns
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

    for first, second, third, fourth in failover.run(work):
        assert first / second == pytest.approx(3, rel=0.05)
        assert third / fourth == pytest.approx(1, rel=0.05)
    assert storm.struck == 1


def test_rails_are_numbered_from_nought_and_alike_at_both_ends(world):
    """An edge has a rail for each QP of each NIC; the QPs of a NIC follow each other, and no two have one number."""
    failover = resilient(world, 2, 2, qps=2)
    for comm in failover.comms:
        rails = [rail for _, rail in comm._group._engine.edges.rails()]
        for kind in {type(rail) for rail in rails}:
            found = [(rail.name.index, rail.nic) for rail in rails if type(rail) is kind]
            assert found == [(0, 0), (1, 0), (2, 1), (3, 1)]
