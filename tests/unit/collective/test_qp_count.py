"""A communicator whose number of QPs is left to C4P."""

from collections import Counter

import numpy as np
import pytest

from c4bench.collective.ring_reader import read_telemetry_file
from c4bench.model.fabric import USUAL_QPS

SMALL = {"chunk_bytes": 1024, "staging_bytes": 4096}
# Only rank 1 learns that its connection needs several.
NEEDS = {("h1/0", "h2/0"): 5}


def exact(comm):
    """Sum an array over all ranks, and send every rank a part of it; whether every element is right."""
    array = np.arange(6000) + comm.rank
    comm.all_reduce(array)
    received = np.empty_like(array)
    comm.all_to_all(received, array)
    summed = comm.size * np.arange(6000) + sum(range(comm.size))
    part = np.split(summed, comm.size)[comm.rank]
    return bool((array == summed).all() and (received == np.tile(part, comm.size)).all())


@pytest.mark.parametrize("resilient", [False, True])
def test_all_ranks_have_the_largest_number_that_one_was_given(world, resilient):
    """Each rank asks about its own pair of NICs; all connections, also those made later, have as many as one needs."""
    job = world(3, qps=0, paths="planned", needs=NEEDS, resilient=resilient, **SMALL)
    assert [comm.qps for comm in job.comms] == [5, 5, 5]
    assert sorted(job.rendezvous.asked_qps) == [("h0/0", "h1/0"), ("h1/0", "h2/0"), ("h2/0", "h0/0")]
    assert all(job.run(exact))
    flows = Counter((flow.source, flow.destination) for flow in job.rendezvous.asked)
    assert len(flows) == 6
    assert set(flows.values()) == {5}
    assert {flow.demand_bps for flow in job.rendezvous.asked} == {1e10 / 5}
    for rank in range(3):
        assert len(read_telemetry_file(job.path(rank)).conns) == 2 * 5


def test_a_message_between_two_ranks_has_the_number_of_its_pair(world):
    """The sender asks, the receiver agrees, and the message arrives."""
    job = world(3, qps=0, paths="planned", needs={("h0/0", "h2/0"): 6}, **SMALL)
    assert [comm.qps for comm in job.comms] == [1, 1, 1]

    def work(comm):
        array = np.arange(4000) if comm.rank == 0 else np.zeros(4000, int)
        if comm.rank == 0:
            comm.send(array, 2)
        elif comm.rank == 2:
            comm.recv(array, 0)
        return bool((array == np.arange(4000)).all())

    assert job.run(work) == [True, False, True]
    assert ("h2/0", "h0/0") in job.rendezvous.asked_qps[:3]
    assert job.rendezvous.asked_qps[3:] == [("h0/0", "h2/0")]
    assert sum((flow.source, flow.destination) == ("h0/0", "h2/0") for flow in job.rendezvous.asked) == 6


def test_ecmp_has_the_usual_number(world):
    """Without planned paths nobody is asked."""
    job = world(2, qps=0, **SMALL)
    assert [comm.qps for comm in job.comms] == [USUAL_QPS] * 2
    assert job.rendezvous.asked_qps == []
    assert all(job.run(exact))


def test_a_number_that_is_given_stays(world):
    """C4P is not asked, whatever the pairs would need."""
    job = world(3, qps=2, paths="planned", needs=NEEDS, **SMALL)
    assert [comm.qps for comm in job.comms] == [2, 2, 2]
    assert job.rendezvous.asked_qps == []
