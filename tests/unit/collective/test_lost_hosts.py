"""A host that has lost all its NICs is named by an error; the component at fault of a lost rail is reported."""

import numpy as np
import pytest
from night_cases import at_night
from storm import (
    Storm,
    at_work,
    keep_summing,
    resilient,
    summed,
)

from c4bench.collective.errors import CollectiveError


@pytest.mark.parametrize("nics", [2, *at_night(1)])
def test_host_without_a_nic_is_named_by_all(world, nics):
    """When every NIC of a host is lost, all ranks soon get an error that names it; the others can continue."""
    job = resilient(world, 4, nics)
    storm = Storm(job)

    def work(comm):
        if at_work(comm):
            for nic in range(nics):
                storm.add("black hole", 2, nic, after=20)
        with pytest.raises(CollectiveError) as raised:
            keep_summing(comm)
        if comm.rank == 2:
            return raised.value, None
        with comm.shrink([raised.value.peer]) as left:
            array = np.full(1000, comm.rank)
            left.all_reduce(array)
            return raised.value, array[0]

    outcomes = job.run(work)
    for error, _ in outcomes:
        assert error.peer == 2
        assert error.status in ("HOST_LOST", "ABORTED")
        assert "HOST_LOST" in (error.status, error.cause)
        assert "host h2" in str(error)
    assert [outcome[1] for outcome in outcomes] == [4, 4, None, 4]


def test_the_other_of_two_hosts_with_gpus_is_named(world):
    """Of two hosts each sees the other one lost, though its ranks have connections to several ranks there."""
    job = resilient(world, 6, 3, gpus=3)
    storm = Storm(job)

    def work(comm):
        if at_work(comm):
            for rank in (3, 4, 5):
                for nic in range(3):
                    storm.add("black hole", rank, nic, after=20)
        with pytest.raises(CollectiveError) as raised:
            keep_summing(comm)
        return raised.value

    errors = {rank: error for rank, error in enumerate(job.run(work)) if error.status == "HOST_LOST"}
    assert errors
    assert all(error.peer // 3 != rank // 3 for rank, error in errors.items())


def test_killed_rank_is_a_lost_host(world):
    """A rank whose process is gone answers no probe: the others get an error that names it, and can continue."""
    job = resilient(world, 3)

    def work(comm):
        summed(comm, 1000)
        comm.barrier()
        if comm.rank == 1:
            for port in job.ports[1]:
                job.network.remove(port)
            return None
        with pytest.raises(CollectiveError) as raised:
            keep_summing(comm)
        with comm.shrink([raised.value.peer]) as left:
            summed(left, 1000)
        return raised.value.peer

    assert job.run(work) == [1, None, 1]


@pytest.mark.parametrize("kind", ["down", "path", *at_night("black hole")])
def test_what_was_to_blame_is_found(world, kind):
    """A NIC that reaches nobody is reported as a NIC; a path between two NICs that reach others as a path."""
    job = resilient(world, 4)
    storm = Storm(job)

    def work(comm):
        if at_work(comm):
            storm.add(kind, 1, 0, after=10)
        for _ in range(1000):
            summed(comm, 10_000)
            done = comm.resilience
            notified = np.array([done.died > 0, len(done.findings) > 0], np.int64)
            comm.all_reduce(notified)
            if notified[0] == notified[1] > 0:
                break
        return comm.resilience.findings[:1]

    found = {name for outcome in job.run(work) for finding in outcome for name in finding}
    assert found == ({"path h1/0>h2/0", "path h2/0>h1/0"} if kind == "path" else {"nic h1/0"})
