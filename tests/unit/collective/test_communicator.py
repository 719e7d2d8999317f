"""Collectives over the loopback transport: exact, whatever the sizes, and loud when ranks disagree."""

import time

import ml_dtypes  # noqa: F401  (makes numpy know bfloat16)
import numpy as np
import pytest
from world import World

from c4bench.collective.errors import CollectiveError
from c4bench.collective.ring_reader import read_ring
from c4bench.errors import UsageError
from c4bench.verbs.errors import VerbsError

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


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "float16", "bfloat16"])
@pytest.mark.parametrize(("op", "expected"), [("sum", 6), ("min", 1), ("max", 3), ("avg", 2)])
def test_reductions_of_every_type(world, dtype, op, expected):
    """sum, min, max and avg give what numpy gives for each type, and leave the type as it is."""

    def work(comm):
        array = np.full((5, 7), comm.rank + 1, np.dtype(dtype))
        comm.all_reduce(array, op)
        assert str(array.dtype) == dtype
        assert (array == expected).all()

    run(world(3), work)


def test_average_of_integers_rounds_down(world):
    """An average that is no integer is rounded towards minus infinity, as numpy's // does."""

    def work(comm):
        array = np.array([comm.rank, -comm.rank], np.int32)
        comm.all_reduce(array, "avg")
        return array.tolist()

    assert world(2).run(work) == [[0, -1]] * 2


@pytest.mark.parametrize("dst", [0, 2])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_reduce_leaves_all_but_the_destination_alone(world, size, dst):
    """The destination gets the exact reduction; every other rank's array is what it was."""
    if dst >= size:
        pytest.skip("no such rank")

    def work(comm):
        for op, expected in (("sum", size * (size + 1) // 2), ("max", size), ("avg", (size + 1) // 2)):
            array = np.full(5000, comm.rank + 1, np.int64)
            comm.reduce(array, dst, op)
            assert (array == (expected if comm.rank == dst else comm.rank + 1)).all()

    run(world(size, **SMALL), work)


def test_messages_go_between_any_two_ranks(world):
    """Send and recv pass arrays along a pipeline and back, in order, beside collectives, with a third rank idle."""

    def work(comm):
        for turn in range(3):
            array = np.full(3000, 10 * turn + comm.rank, np.float32)
            if comm.rank == 0:
                comm.send(array, 2)
                comm.recv(array, 2)
                assert (array == 10 * turn + 100).all()
            elif comm.rank == 2:
                comm.recv(array, 0)
                assert (array == 10 * turn).all()
                comm.send(array + 100, 0)
            comm.all_reduce(array)

    run(world(3, **SMALL), work)


def test_split_makes_communicators_of_their_own(world):
    """Rows and columns of a grid reduce apart from each other, ranks ordered by key; None takes no part."""

    def work(comm):
        row, column = divmod(comm.rank, 2)
        across = comm.split(row, key=-comm.rank)
        down = comm.split(None if row == 1 else column)
        array = np.array([comm.rank])
        across.all_reduce(array)
        got = (across.rank, array.item(), None if down is None else down.size)
        for part in (across, down):
            if part is not None:
                part.close()
        return got

    assert world(4).run(work) == [(1, 1, 1), (0, 1, 1), (1, 5, None), (0, 5, None)]


@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 1, 0)])
def test_qps_share_a_connection_by_weight(world, weights):
    """Three QPs of a connection carry bytes in proportion to their weights, and the sum is exact."""
    made = world(2, qps=3, **SMALL)

    def work(comm):
        comm.weigh(1 - comm.rank, 0, weights)
        for _ in range(5):
            array = np.arange(30000)
            comm.all_reduce(array)
            np.testing.assert_array_equal(array, 2 * np.arange(30000))
        return [conn.size_bytes for conn in read_ring(made.path(comm.rank)).conns]

    for carried in made.run(work):
        total = sum(carried)
        assert [round(count / total, 2) for count in carried] == [round(w / sum(weights), 2) for w in weights]


def test_weights_that_do_not_fit_are_refused(world):
    """Too few weights, negative ones and all zeros leave the shares as they are."""
    comm = world(2, qps=2).comms[0]
    for wrong in ((1,), (1, -1), (0, 0)):
        with pytest.raises(ValueError, match="not 2 weights"):
            comm.weigh(1, 0, wrong)


def test_provided_memory_is_registered_once(world):
    """An array from `empty`, and views of it, need no registration of their own; it ends with the communicator."""
    made = world(2, 2)
    arrays = [comm.empty((200, 300), "float32") for comm in made.comms]
    before = [port.regions for port in made.ports[0]]

    def work(comm):
        arrays[comm.rank][:] = comm.rank + 1
        comm.all_reduce(arrays[comm.rank])
        comm.all_reduce(arrays[comm.rank][:100])
        return float(arrays[comm.rank].sum())

    assert made.run(work) == [100 * 300 * (6 + 3)] * 2
    assert [port.regions for port in made.ports[0]] == before


def test_recording_can_be_turned_off(world):
    """Without recording the results are the same and the file stays empty."""
    made = world(2, record=False)

    def work(comm):
        array = np.ones(10)
        comm.all_reduce(array)
        return float(array.sum())

    assert made.run(work) == [20.0, 20.0]
    assert read_ring(made.path(0)).comms == ()


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
    outcomes = world(4, timeout_s=60.0).run(work)
    assert {outcome.status for outcome in outcomes} <= {"MISMATCH", "ABORTED"}
    for error in outcomes:
        assert "all_reduce sum float32 48 B" in str(error)
        assert "all_reduce max float32 48 B" in str(error)
        assert error.kind == "all_reduce"
        assert error.peer >= 0
    assert time.monotonic() - started < 30


def test_a_first_all_to_all_among_other_operations_is_refused(world):
    """Also when connections for all pairs would have to be made first, ranks that disagree find out at once."""

    def work(comm):
        array = np.zeros(12, np.float32)
        if comm.rank == 2:
            comm.all_to_all(np.empty_like(array), array)
        else:
            comm.all_reduce(array)

    errors = world(4, timeout_s=60.0, connect_s=60.0).run(work)
    assert {error.status for error in errors} <= {"MISMATCH", "ABORTED"}
    assert all("all_to_all float32 48 B" in str(error) for error in errors)


def test_a_message_that_fails_is_told_in_the_communicators_own_ranks(world):
    """Sender and receiver of different types get errors with their own ranks, each other's, and their own call."""

    def work(comm):
        if comm.rank == 1:
            comm.send(np.zeros(4, np.int32), 3)
        elif comm.rank == 3:
            comm.recv(np.zeros(4, np.float32), 1)

    errors = world(4, timeout_s=60.0).run(work)
    told = [(error.comm, error.rank, error.kind, error.peer) for error in (errors[1], errors[3])]
    assert told == [("dp", 1, "send", 3), ("dp", 3, "recv", 1)]


def test_missing_rank_is_named_at_the_deadline(world):
    """When a rank does not come, the neighbours' errors name it, its connection and the operation."""
    made = world(4, timeout_s=0.3)

    def work(comm):
        comm.barrier()
        if comm.rank != 2:
            comm.all_reduce(np.zeros(100, np.float32))

    outcomes = made.run(work)
    assert outcomes[2] is None
    waiting_for = {0: 3, 1: 2, 3: 2}
    timed_out = {rank for rank in waiting_for if outcomes[rank].status == "TIMEOUT"}
    assert timed_out
    for rank, peer in waiting_for.items():
        error = outcomes[rank]
        assert error.peer == peer if rank in timed_out else error.peer in timed_out
        assert f"rank {rank} of communicator dp, all_reduce #1" in str(error)
        assert "no end after 0.3 s, waiting for" in str(error)


def test_a_rank_that_never_joins_is_named_by_all(world):
    """Connecting without one member ends after `connect_s` on every other rank, with the absent one's number."""
    made = world(3, absent=[1], connect_s=0.3)
    for future in made.joined:
        error = future.exception()
        assert (error.status, error.peer, error.kind) == ("ABSENT", 1, "connecting ring")


def test_a_rank_that_cannot_open_its_nic_stops_the_others(world, monkeypatch):
    """A NIC that cannot be opened is that rank's error, and the reason is in every other rank's."""
    opened = World.open

    def broken(self, rank, nic):
        if rank == 2:
            raise VerbsError("rxe9: no such device", device="rxe9")
        return opened(self, rank, nic)

    monkeypatch.setattr(World, "open", broken)
    errors = [future.exception() for future in world(3, connect_s=30.0).joined]
    assert [error.status for error in errors] == ["ABORTED", "ABORTED", "DEVICE"]
    assert [error.peer for error in errors] == [2, 2, -1]
    assert all("rxe9: no such device" in str(error) for error in errors)


def test_memory_that_cannot_be_registered_stops_all(world, monkeypatch):
    """A buffer the NIC refuses is an error of that rank with status MEMORY, and known to every other rank."""
    made = world(3, timeout_s=60.0)

    def refuse(_address, length):
        raise VerbsError(f"rxe0: registering {length} bytes failed: Cannot allocate memory", device="rxe0")

    monkeypatch.setattr(made.ports[1][0], "register", refuse)
    errors = made.run(lambda comm: comm.all_reduce(np.zeros(10)))
    assert [error.status for error in errors] == ["ABORTED", "MEMORY", "ABORTED"]
    assert all("registering 80 bytes failed" in str(error) for error in errors)
    assert all(error.seq == 0 for error in errors)


def test_leaving_by_an_error_tells_the_others(world):
    """A rank whose program fails inside `with` takes the ranks that wait for it along, with its reason."""
    made = world(3, timeout_s=60.0)

    def work(comm):
        with comm:
            if comm.rank == 0:
                raise ValueError("loss is not a number")
            comm.barrier()

    errors = made.run(work)
    assert [type(error) for error in errors] == [ValueError, CollectiveError, CollectiveError]
    assert all("rank 0 failed: loss is not a number" in str(error) for error in errors[1:])


def test_a_lost_device_ends_the_operation(world):
    """A fatal event of the NIC ends the running operation at once, on all ranks."""
    made = world(2, timeout_s=60.0)
    made.ports[0][0].happen("DEVICE_FATAL")

    def work(comm):
        if comm.rank:
            time.sleep(0.1)
        comm.barrier()

    errors = made.run(work)
    assert [error.status for error in errors] == ["DEVICE_FATAL", "ABORTED"]


def test_transport_error_carries_status_and_peer(world):
    """A dead QP ends the operation at once with the transport's status, and the communicator refuses further work."""
    made = world(2, timeout_s=60.0)
    made.network.dead.add(made.comms[1]._group._connections.ring[0][1].connections[0].qp_num)

    def work(comm):
        comm.all_reduce(np.zeros(4, np.float32))

    error, other = made.run(work)
    assert (error.status, error.peer, error.kind, error.seq) == ("RETRY_EXC_ERR", 1, "all_reduce", 0)
    assert (other.status, other.peer) == ("ABORTED", 0)
    with pytest.raises(CollectiveError, match="make another"):
        made.comms[0].barrier()


def test_a_port_event_is_part_of_the_error(world):
    """What the NIC said before a transport error is in the error, and an event alone does not end an operation."""
    made = world(2, timeout_s=1.0)
    made.ports[0][0].happen("PORT_ERR")
    assert made.run(lambda comm: comm.barrier()) == [None, None]
    made.network.dead.add(made.comms[1]._group._connections.ring[0][1].connections[0].qp_num)
    error = made.run(lambda comm: comm.barrier())[0]
    assert "seen before: PORT_ERR on rxe0" in str(error)


def test_planned_paths_come_from_the_rendezvous(world):
    """With planned paths each outgoing connection uses the source port the control plane answered."""
    made = world(3, paths="planned")
    asked = {(flow.source, flow.destination) for flow in made.rendezvous.asked}
    assert asked == {("h0/0", "h1/0"), ("h1/0", "h2/0"), ("h2/0", "h0/0")}
    assert {comm._group._connections.ring[0][0].connections[0].source_port for comm in made.comms} == {0xC100}


def test_a_connection_moves_between_operations(world):
    """A moved connection keeps working and records its new source port; one that does not exist is a LookupError."""
    made = world(2)

    def work(comm):
        comm.barrier()
        comm.move(1 - comm.rank, 0, 0xC777)
        recorded = read_ring(made.path(comm.rank)).conns[0].source_port
        comm.barrier()
        return recorded

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
    with pytest.raises(UsageError, match="ranks start at 0"):
        comm.reduce(np.zeros(4), -1)
    with pytest.raises(UsageError, match="with itself"):
        comm.send(np.zeros(4), 0)


def test_close_releases_every_port_twice_safely(world):
    """Closing releases the ports, also a second time, and later calls fail with a reason."""
    made = world(2)
    made.comms[0].close()
    made.comms[0].close()
    assert made.ports[0][0].closed
    with pytest.raises(CollectiveError, match="closed or has failed"):
        made.comms[0].barrier()


def test_what_comes_before_an_operation_comes_before_each(world):
    """A rank is asked before it enters any operation, whatever its kind; what it raises there nobody takes for ours."""
    comms = world(2)
    asked = [0, 0]
    for comm in comms.comms:
        comm._group._before = lambda rank=comm.rank: asked.__setitem__(rank, asked[rank] + 1)

    def work(comm):
        array = np.ones(8, np.float32)
        comm.all_reduce(array)
        comm.barrier()
        comm.broadcast(array)

    comms.run(work)
    assert asked == [3, 3]
