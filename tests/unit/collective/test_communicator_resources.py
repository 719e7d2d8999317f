"""A communicator's resources: connections, weights, memory and telemetry records."""

import ml_dtypes  # noqa: F401  (makes numpy know bfloat16)
import numpy as np
import pytest
from night_cases import at_night

from c4bench.collective.errors import CollectiveError
from c4bench.collective.ring_reader import read_telemetry_file
from c4bench.verbs.errors import VerbsError

SMALL = {"chunk_bytes": 1024, "staging_bytes": 4096}


@pytest.mark.parametrize("weights", [(3, 1, 0), *at_night(((1, 1, 1),))])
def test_qps_share_a_connection_by_weight(world, weights):
    """Three QPs of a connection carry bytes in proportion to their weights, and the sum is exact."""
    job = world(2, qps=3, **SMALL)

    def work(comm):
        comm.weigh(1 - comm.rank, 0, weights)
        for _ in range(5):
            array = np.arange(30000)
            comm.all_reduce(array)
            np.testing.assert_array_equal(array, 2 * np.arange(30000))
        return [conn.size_bytes for conn in read_telemetry_file(job.path(comm.rank)).conns]

    for carried in job.run(work):
        total = sum(carried)
        assert [round(count / total, 2) for count in carried] == [round(w / sum(weights), 2) for w in weights]


def test_weights_that_do_not_fit_are_refused(world):
    """Too few weights, negative ones and all zeros raise an error and change nothing."""
    comm = world(2, qps=2).comms[0]
    for wrong in ((1,), (1, -1), (0, 0)):
        with pytest.raises(ValueError, match="not 2 weights"):
            comm.weigh(1, 0, wrong)


def test_two_nics_share_a_large_array(world):
    """With two NICs each carries half of a large all-reduce, and the sum is exact."""
    job = world(2, 2, **SMALL)
    before = [port.regions for port in job.ports[0]]

    def work(comm):
        array = np.arange(100001, dtype=np.float64)
        comm.all_reduce(array)
        np.testing.assert_array_equal(array, 2 * np.arange(100001))
        return [port.regions for port in job.ports[0]]

    used = job.run(work)[0]
    assert [after > start for after, start in zip(used, before, strict=True)] == [True, True]


def right(comm):
    """The sending end to the rank's right neighbour."""
    return comm._group.sender((comm.rank + 1) % comm.size, 0)


def test_planned_paths_come_from_the_rendezvous(world):
    """With planned paths each outgoing connection uses the source port the control plane answered."""
    job = world(3, paths="planned")
    asked = {(flow.source, flow.destination) for flow in job.rendezvous.asked}
    assert asked == {("h0/0", "h1/0"), ("h1/0", "h2/0"), ("h2/0", "h0/0")}
    assert {right(comm).own[0].ends.data.source_port for comm in job.comms} == {0xC100}


def test_where_queue_pairs_decide_the_far_ones_are_said(world):
    """Asked for them, each rank names the queue pair that each flow's packets are for, and uses the port it gets."""
    job = world(3, paths="planned", qps=2, by_qp=True)
    senders = {comm.rank: right(comm).rails for comm in job.comms}
    receivers = {comm.rank: comm._group._receivers[(comm.rank - 1) % 3][0].rails for comm in job.comms}
    # Rank 0 sends to 1, 1 to 2, and 2 to 0.
    expected = {
        f"job/dp/{rank}>{(rank + 1) % 3}/0.{qp}": receivers[(rank + 1) % 3][qp].ends.data.qp_num
        for rank in range(3)
        for qp in range(2)
    }
    assert job.rendezvous.far_qps == expected
    assert [[rail.ends.data.source_port for rail in senders[rank]] for rank in range(3)] == [[0xC200, 0xC201]] * 3


def test_a_connection_moves_between_operations(world):
    """A moved connection keeps working and records its new source port; one that does not exist is a LookupError."""
    job = world(2)

    def work(comm):
        comm.barrier()
        comm.move(1 - comm.rank, 0, 0xC777)
        recorded = read_telemetry_file(job.path(comm.rank)).conns[0].source_port
        comm.barrier()
        return recorded

    assert job.run(work) == [0xC777, 0xC777]
    with pytest.raises(LookupError, match="rank 5"):
        job.comms[0].move(5, 0, 0xC777)


def test_a_connection_that_cannot_move_keeps_its_path_for_good(world, monkeypatch):
    """A device that refuses leaves the port that was used, also for the time when the connection comes back."""
    rail = world(2).comms[0]._group.sender(1, 0).own[0]

    def refuse(_):
        raise VerbsError("no SQD", device="dev")

    monkeypatch.setattr(rail.ends.data, "move", refuse, raising=False)
    before = rail.source_port
    with pytest.raises(VerbsError, match="no SQD"):
        rail.move(0xC777)
    assert rail.source_port == before


def test_provided_memory_is_registered_once(world):
    """An array from `empty`, and views of it, need no registration of their own; it ends with the communicator."""
    job = world(2, 2)
    arrays = [comm.empty((200, 300), "float32") for comm in job.comms]
    before = [port.regions for port in job.ports[0]]

    def work(comm):
        arrays[comm.rank][:] = comm.rank + 1
        comm.all_reduce(arrays[comm.rank])
        comm.all_reduce(arrays[comm.rank][:100])
        return float(arrays[comm.rank].sum())

    assert job.run(work) == [100 * 300 * (6 + 3)] * 2
    assert [port.regions for port in job.ports[0]] == before


def test_registration_ends_with_the_array(world):
    """Memory is registered once for repeated use, and deregistered when its owner dies."""
    job = world(2)
    arrays = [np.zeros(1000, np.float32) for _ in range(2)]

    def work(comm):
        comm.all_reduce(arrays[comm.rank])
        comm.all_reduce(arrays[comm.rank][:])
        return job.ports[comm.rank][0].regions

    counts = job.run(work)
    arrays.clear()
    assert [port.regions for (port,) in job.ports] == [count - 1 for count in counts]


def test_recording_can_be_turned_off(world):
    """Without recording the results are the same and the file stays empty."""
    job = world(2, record=False)

    def work(comm):
        array = np.ones(10)
        comm.all_reduce(array)
        return float(array.sum())

    assert job.run(work) == [20.0, 20.0]
    assert read_telemetry_file(job.path(0)).comms == ()


def test_what_comes_before_an_operation_comes_before_each(world):
    """`before_operation` is called once before every operation, whatever its kind."""
    comms = world(2)
    asked = [0, 0]
    for comm in comms.comms:
        comm._group._before_operation = lambda rank=comm.rank: asked.__setitem__(rank, asked[rank] + 1)

    def work(comm):
        array = np.ones(8, np.float32)
        comm.all_reduce(array)
        comm.barrier()
        comm.broadcast(array)

    comms.run(work)
    assert asked == [3, 3]


def test_close_releases_every_port_twice_safely(world):
    """Closing releases the ports, also a second time, and later calls fail with a reason."""
    job = world(2)
    job.comms[0].close()
    job.comms[0].close()
    assert job.ports[0][0].closed
    with pytest.raises(CollectiveError, match="closed or has failed"):
        job.comms[0].barrier()
