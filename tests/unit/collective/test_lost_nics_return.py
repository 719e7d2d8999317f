"""When a rail is declared dead, and when it is used again."""

import time

import msgspec
import numpy as np
import pytest
from night_cases import at_night
from storm import (
    QUICK,
    Storm,
    all_up_again,
    at_work,
    resilient,
    states,
    summed,
    unfailed,
    until,
)

from c4bench.collective.rail import SendingRail


@pytest.mark.parametrize("away_s", [0.2, *at_night(0.05)])
def test_idle_peer_is_not_a_dead_path(world, away_s):
    """A peer that computes, or is frozen, for much longer than any silence is allowed costs no rail."""
    job = resilient(world, 3)

    def work(comm):
        summed(comm, 1000)
        if comm.rank == 1:
            time.sleep(away_s)
        summed(comm, 50_000)
        return states(comm), comm.resilience.died

    assert job.run(work) == [({"up": 4}, 0)] * 3


def test_short_flap_is_left_to_retransmission(world):
    """A black hole that is over before the transport has tried again costs no rail."""
    job = resilient(world, 2)
    storm = Storm(job)

    def work(comm):
        if at_work(comm):
            storm.add("black hole", 1, 0, after=30, lasts_s=0.005)
        summed(comm, 100_000)
        return states(comm), comm.resilience.died

    assert job.run(work) == [({"up": 4}, 0)] * 2
    assert storm.struck == 1


def test_lost_nic_comes_back(world):
    """A NIC that works again is used again, after it has proved itself; and its GID is looked up afresh."""
    job = resilient(world, 3)
    storm = Storm(job)

    def work(comm):
        if at_work(comm):
            storm.add("down", 1, 0, after=20)
        summed(comm, 100_000)
        lost = states(comm)
        all_up_again(comm, storm.heal)
        summed(comm, 100_000)
        return lost, states(comm), comm.resilience.returned

    outcomes = unfailed(job, work)
    assert storm.struck == 1
    for lost, found, _ in outcomes:
        assert set(lost) != {"up"}
        assert found == {"up": 4}
    assert sum(returned for *_, returned in outcomes) == 2


def test_lost_nic_comes_back_in_short_operations(world):
    """A NIC that works again is used again though no operation is as long as a look at the state of the rails."""
    job = resilient(world, 3, timeouts=msgspec.structs.replace(QUICK, tick_s=0.1))
    storm = Storm(job)

    def work(comm):
        if at_work(comm, 100):
            storm.add("down", 1, 0, after=5)
        agreed, deadline_s = np.zeros(1, np.int64), time.monotonic() + 15
        while not agreed[0]:
            time.sleep(0.005)
            if comm.rank == 0 and comm.resilience.died:
                storm.heal()
            back = comm.resilience.died and set(states(comm)) == {"up"}
            agreed[0] = back or time.monotonic() > deadline_s
            comm.all_reduce(agreed, "min")
        return states(comm), comm.resilience.died > 0

    assert job.run(work) == [({"up": 4}, True)] * 3


def test_flapping_nic_is_left_alone_longer_each_time(world):
    """A NIC that dies again soon after it came back waits twice as long before it is tried again."""
    job = resilient(world, 2)
    storm = Storm(job)

    def penalties(comm):
        rails = [rail for _, rail in comm._group._engine.edges.rails()]
        return [rail.penalty_s for rail in rails if isinstance(rail, SendingRail) and rail.nic == 0]

    def work(comm):
        seen = []
        for _ in range(3):
            if comm.rank == 0:
                storm.add("down", 1, 0, after=0)
            until(comm, {"up", "down"})
            seen += penalties(comm)
            all_up_again(comm, storm.heal)
        return seen

    for seen in job.run(work):
        assert seen == pytest.approx([QUICK.retry_s, 2 * QUICK.retry_s, 4 * QUICK.retry_s])
