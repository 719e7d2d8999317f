"""Collectives over the loopback transport: exact, whatever the sizes, and loud when ranks disagree."""

import time

import numpy as np
import pytest

from c4bench.collective.errors import CollectiveError
from c4bench.collective.ring_reader import read_ring
from c4bench.errors import UsageError

SMALL = {"chunk_bytes": 1024, "staging_bytes": 4096}


def run(world, work):
    for outcome in world.run(work):
        if isinstance(outcome, BaseException):
            raise outcome


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 7, 1000, 33333])
def test_all_reduce_sums_every_element(world, size, count):
    """Every rank ends with the exact sum, also with fewer elements than ranks and uneven segments."""

    def work(comm):
        array = np.arange(count, dtype=np.int64) * (comm.rank + 1)
        comm.all_reduce(array)
        np.testing.assert_array_equal(array, np.arange(count) * size * (size + 1) // 2)

    run(world(size, **SMALL), work)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "float16"])
@pytest.mark.parametrize(("op", "expected"), [("sum", 6), ("min", 1), ("max", 3), ("avg", 2)])
def test_reductions_of_every_type(world, dtype, op, expected):
    """sum, min, max and avg give what numpy gives for each type, except avg of integers, which is refused."""

    def work(comm):
        array = np.full((5, 7), comm.rank + 1, dtype)
        comm.all_reduce(array, op)
        assert (array == expected).all()

    made = world(3)
    if op == "avg" and dtype.startswith("int"):
        with pytest.raises(UsageError, match="avg of int"):
            run(made, work)
    else:
        run(made, work)


@pytest.mark.parametrize(("size", "nics"), [(2, 1), (4, 1), (4, 2)])
def test_all_to_all_transposes_parts(world, size, nics):
    """Part r of rank s ends as part s of rank r, twice in a row over the same connections, also over two NICs."""
    count = 20000

    def work(comm):
        for turn in range(2):
            given = np.repeat(np.arange(size), count) + 10 * comm.rank + 100 * turn
            got = np.empty_like(given)
            comm.all_to_all(got, given)
            np.testing.assert_array_equal(got, np.repeat(np.arange(size) * 10, count) + comm.rank + 100 * turn)

    run(world(size, nics, **SMALL), work)


@pytest.mark.parametrize("count", [1, 5000])
def test_gather_and_scatter(world, count):
    """reduce_scatter leaves the input alone and gives each rank its part; all_gather brings the parts together."""

    def work(comm):
        given = np.arange(3 * count, dtype=np.int32)
        part = np.empty(count, np.int32)
        comm.reduce_scatter(part, given)
        np.testing.assert_array_equal(given, np.arange(3 * count))
        np.testing.assert_array_equal(part, 3 * given[comm.rank * count : (comm.rank + 1) * count])
        whole = np.empty(3 * count, np.int32)
        comm.all_gather(whole, part)
        np.testing.assert_array_equal(whole, 3 * given)

    run(world(3, **SMALL), work)


@pytest.mark.parametrize("src", [0, 2])
def test_broadcast_copies_the_source(world, src):
    """Every rank has the source's array afterwards, whichever rank that is."""

    def work(comm):
        array = np.full(9999, comm.rank, np.float32)
        comm.broadcast(array, src)
        assert (array == src).all()

    run(world(4, **SMALL), work)


def test_two_nics_share_a_large_array(world):
    """With two NICs each carries half of a large all-reduce, and the sum is exact."""
    made = world(2, 2, **SMALL)
    before = [port.regions for port in made.ports[0]]

    def work(comm):
        array = np.arange(100001, dtype=np.float64)
        comm.all_reduce(array)
        np.testing.assert_array_equal(array, 2 * np.arange(100001))
        return [port.regions for port in made.ports[0]]

    used = made.run(work)[0]
    assert [after > start for after, start in zip(used, before, strict=True)] == [True, True]


def test_barrier_holds_until_the_last_rank(world):
    """Nobody leaves a barrier before everybody has entered it."""
    entered = []

    def work(comm):
        time.sleep(0.02 * comm.rank)
        entered.append(comm.rank)
        comm.barrier()
        assert len(entered) == 4

    run(world(4), work)


def test_random_sequences_stay_in_step(world):
    """A long mixed sequence with ranks drifting apart by an operation gives the same results on all ranks."""

    def work(comm):
        rng = np.random.default_rng(5)
        total = 0
        for _ in range(60):
            kind, count = rng.integers(4), int(rng.integers(1, 3000))
            array = np.arange(count, dtype=np.int64) + comm.rank
            if kind == 0:
                comm.all_reduce(array)
            elif kind == 1:
                comm.broadcast(array, int(rng.integers(3)))
            elif kind == 2:
                comm.barrier()
                array[:] = 0
            else:
                comm.all_reduce(array, "max")
            total += int(array.sum())
        return total

    outcomes = world(3, **SMALL).run(work)
    assert outcomes == [outcomes[0]] * 3
    assert isinstance(outcomes[0], int)


def test_different_operations_are_refused(world):
    """Ranks that call different operations get an error that names both, at once and not after the time-out."""

    def work(comm):
        array = np.zeros(12, np.float32)
        if comm.rank == 1:
            comm.all_reduce(array, "max")
        else:
            comm.all_reduce(array)

    started = time.monotonic()
    outcomes = world(3, timeout_s=3.0).run(work)
    errors = [outcome for outcome in outcomes if isinstance(outcome, CollectiveError)]
    mismatch = [error for error in errors if error.status == "MISMATCH"]
    assert mismatch
    assert "all_reduce sum float32 48 B" in str(mismatch[0])
    assert "all_reduce max float32 48 B" in str(mismatch[0])
    assert time.monotonic() - started < 10


def test_missing_rank_is_named_at_the_deadline(world):
    """When a rank does not come, the neighbours' errors name it, its connection and the operation."""
    made = world(4, timeout_s=0.3)

    def work(comm):
        comm.barrier()
        if comm.rank != 2:
            comm.all_reduce(np.zeros(100, np.float32))

    outcomes = made.run(work)
    assert outcomes[2] is None
    assert outcomes[1].peer == 2
    assert "waiting for credit from rank 2" in str(outcomes[1])
    assert "rank 1 of communicator dp, all_reduce #1" in str(outcomes[1])
    assert outcomes[3].peer == 2
    assert outcomes[3].status == "TIMEOUT"


def test_transport_error_carries_status_and_peer(world):
    """A dead QP ends the operation at once with the transport's status, and the communicator refuses further work."""
    made = world(2, timeout_s=1.0)
    made.network.dead.add(made.comms[1]._ring[0][1].connection.qp_num)

    def work(comm):
        comm.all_reduce(np.zeros(4, np.float32))

    error = made.run(work)[0]
    assert (error.status, error.peer, error.kind, error.seq) == ("RETRY_EXC_ERR", 1, "all_reduce", 0)
    with pytest.raises(CollectiveError, match="make another"):
        made.comms[0].barrier()


def test_a_port_event_is_part_of_the_error(world):
    """What the NIC said before a transport error is in the error, and an event alone does not end an operation."""
    made = world(2, timeout_s=1.0)
    made.ports[0][0].happen("PORT_ERR")
    assert made.run(lambda comm: comm.barrier()) == [None, None]
    made.network.dead.add(made.comms[1]._ring[0][1].connection.qp_num)
    error = made.run(lambda comm: comm.barrier())[0]
    assert "seen before: PORT_ERR on rxe0" in str(error)


def test_planned_paths_come_from_the_rendezvous(world):
    """With planned paths each outgoing connection uses the source port the control plane answered."""
    made = world(3, paths="planned")
    asked = {(flow.source, flow.destination) for flow in made.rendezvous.asked}
    assert asked == {("h0/0", "h1/0"), ("h1/0", "h2/0"), ("h2/0", "h0/0")}
    assert {comm._ring[0][0].connection.source_port for comm in made.comms} == {0xC100}


def test_a_connection_moves_between_operations(world):
    """A moved connection keeps working and records its new source port; one that does not exist is a LookupError."""
    made = world(2)

    def work(comm):
        comm.barrier()
        comm.move(1 - comm.rank, 0, 0xC777)
        comm.barrier()
        return read_ring(made.path(comm.rank)).conns[0].source_port

    assert made.run(work) == [0xC777, 0xC777]
    with pytest.raises(LookupError, match="rank 5"):
        made.comms[0].move(5, 0, 0xC777)


def test_registration_ends_with_the_array(world):
    """Memory is registered once for repeated use, and deregistered when its owner dies."""
    made = world(2)
    arrays = [np.zeros(1000, np.float32) for _ in range(2)]

    def work(comm):
        comm.all_reduce(arrays[comm.rank])
        comm.all_reduce(arrays[comm.rank][:])
        return made.ports[comm.rank][0].regions

    counts = made.run(work)
    arrays.clear()
    assert [port.regions for (port,) in made.ports] == [count - 1 for count in counts]


def test_arguments_that_cannot_work_are_refused(world):
    """Strided arrays, unknown types and parts that do not fit are refused before anything moves."""
    comm = world(2).comms[0]
    with pytest.raises(UsageError, match="C-contiguous"):
        comm.all_reduce(np.zeros((4, 4), np.float32)[:, 1])
    with pytest.raises(UsageError, match="complex64"):
        comm.broadcast(np.zeros(4, np.complex64))
    with pytest.raises(UsageError, match="multiple of 2"):
        comm.all_to_all(np.zeros(3), np.zeros(3))
    with pytest.raises(UsageError, match="not 2 times"):
        comm.all_gather(np.zeros(5), np.zeros(2))
    with pytest.raises(UsageError, match="ranks start at 0"):
        comm.broadcast(np.zeros(4), 2)


def test_close_releases_every_port_twice_safely(world):
    """Closing releases the ports, also a second time, and later calls fail with a reason."""
    made = world(2)
    made.comms[0].close()
    made.comms[0].close()
    assert made.ports[0][0].closed
    with pytest.raises(CollectiveError, match="closed or has failed"):
        made.comms[0].barrier()
