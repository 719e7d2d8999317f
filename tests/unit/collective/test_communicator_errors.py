"""A failure in a communicator is an error on every rank, at once, that names the failed rank."""

import threading
import time

import ml_dtypes  # noqa: F401  (makes numpy know bfloat16)
import numpy as np
import pytest
from world import World

from c4bench.collective.errors import CollectiveError
from c4bench.errors import UsageError
from c4bench.verbs.errors import VerbsError
from tools.loopback import LoopbackPort


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
    """Ranks that disagree get an error at once also before all pairs are connected."""

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
    named = [(error.comm, error.rank, error.kind, error.peer) for error in (errors[1], errors[3])]
    assert named == [("dp", 1, "send", 3), ("dp", 3, "recv", 1)]


def test_missing_rank_is_named_at_the_deadline(world):
    """When a rank does not call, its neighbours' errors name it, its connection and the operation."""
    job = world(4, timeout_s=0.3)

    def work(comm):
        comm.barrier()
        if comm.rank != 2:
            comm.all_reduce(np.zeros(100, np.float32))

    outcomes = job.run(work)
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
    job = world(3, absent=[1], connect_s=0.3)
    for future in job.joined:
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
    job = world(3, timeout_s=60.0)
    monkeypatch.setattr(job.ports[1][0], "register", refuse)
    errors = job.run(lambda comm: comm.all_reduce(np.zeros(10)))
    assert [error.status for error in errors] == ["ABORTED", "MEMORY", "ABORTED"]
    assert all("registering 80 bytes failed" in str(error) for error in errors)
    assert all(error.seq == 0 for error in errors)


def test_leaving_by_an_error_tells_the_others(world):
    """When a rank's program fails inside `with`, the ranks that wait for it fail with its reason."""
    job = world(3, timeout_s=60.0)

    def work(comm):
        with comm:
            if comm.rank == 0:
                raise ValueError("loss is not a number")
            comm.barrier()

    errors = job.run(work)
    assert [type(error) for error in errors] == [ValueError, CollectiveError, CollectiveError]
    assert all("rank 0 failed: loss is not a number" in str(error) for error in errors[1:])


def test_another_ranks_failure_is_the_reason_though_it_is_heard_late(world):
    """Work that fails because a rank has left is put down to that rank's error, also if this is reported just after."""
    job = world(3, timeout_s=60.0)
    left = threading.Event()  # rank 1, to which rank 2 grants a message, has left

    def work(comm):
        if comm.rank == 2:
            engine = comm._group._engine
            engine._waiter = engine.failures._waiter = DeafUntilWorkFails(engine._waiter)
            left.wait()
        try:
            with comm:
                if comm.rank == 0:
                    raise ValueError("loss is not a number")
                comm.barrier()
        finally:
            if comm.rank == 1:
                left.set()

    *_, error = job.run(work)
    assert "rank 0 failed: loss is not a number" in str(error)


class DeafUntilWorkFails:
    """A waiter that looks at other descriptors only after it has returned a completion with an error."""

    def __init__(self, waiter):
        self._waiter, self._failed = waiter, False

    def wait(self, timeout_s):
        ready = self._waiter.wait(timeout_s)
        if self._failed:
            return ready
        self._failed = any(completion.status for _, completion in ready.completions)
        return ready._replace(events=[], readable=[])


def test_a_rank_that_leaves_first_is_not_another_ones_error(world, monkeypatch):
    """A rank that still writes to one which has heard of a failure and leaves names the rank that failed."""
    leaving, heard = threading.Event(), threading.Event()
    close = LoopbackPort.close

    def close_late(port):
        if port.nic[0] == 1:
            leaving.set()
        if port.nic[0] != 3:  # a NIC would try again for long; here a write to a port that is closed fails at once
            heard.wait(10.0)
        close(port)

    monkeypatch.setattr(LoopbackPort, "close", close_late)
    job = world(4, timeout_s=60.0)

    def work(comm):
        comm.all_to_all(np.zeros(4000), np.ones(4000))
        comm.barrier()
        if comm.rank == 2:
            monkeypatch.setattr(job.ports[2][0], "register", refuse)
        if comm.rank == 3:
            leaving.wait(10.0)
            engine = comm._group._engine
            engine._waiter = engine.failures._waiter = DeafFor(engine._waiter, 0.2)
        try:
            with comm:
                comm.all_to_all(np.zeros(8000), np.ones(8000))
        finally:
            if comm.rank == 3:
                heard.set()

    errors = job.run(work)
    assert [(error.status, error.peer) for error in errors] == [("ABORTED", 2)] * 2 + [("MEMORY", -1), ("ABORTED", 2)]


def refuse(_address, length):
    """A NIC that registers nothing."""
    raise VerbsError(f"rxe0: registering {length} bytes failed: Cannot allocate memory", device="rxe0")


class DeafFor:
    """A waiter that looks at nothing but completions for a time."""

    def __init__(self, waiter, deaf_s):
        self._waiter, self._until_s = waiter, time.monotonic() + deaf_s

    def wait(self, timeout_s):
        ready = self._waiter.wait(timeout_s)
        return ready if time.monotonic() > self._until_s else ready._replace(events=[], readable=[])


def test_a_lost_device_ends_the_operation(world):
    """A fatal event of the NIC ends the running operation at once, on all ranks."""
    job = world(2, timeout_s=60.0)
    job.ports[0][0].raise_event("DEVICE_FATAL")

    def work(comm):
        if comm.rank:
            time.sleep(0.1)
        comm.barrier()

    errors = job.run(work)
    assert [error.status for error in errors] == ["DEVICE_FATAL", "ABORTED"]


def test_transport_error_carries_status_and_peer(world):
    """A dead QP ends the operation at once with the transport's status, and the communicator refuses further work."""
    job = world(2, timeout_s=60.0)
    job.network.dead.add(job.comms[1]._group._receivers[0][0].rails[0].ends.data.qp_num)

    def work(comm):
        comm.all_reduce(np.zeros(4, np.float32))

    error, other = job.run(work)
    assert (error.status, error.peer, error.kind, error.seq) == ("RETRY_EXC_ERR", 1, "all_reduce", 0)
    assert (other.status, other.peer) == ("ABORTED", 0)
    with pytest.raises(CollectiveError, match="make another"):
        job.comms[0].barrier()


def test_a_port_event_is_part_of_the_error(world):
    """A NIC's event before a transport error is in the error's text; an event alone does not end an operation."""
    job = world(2, timeout_s=1.0)
    job.ports[0][0].raise_event("PORT_ERR")
    assert job.run(lambda comm: comm.barrier()) == [None, None]
    job.network.dead.add(job.comms[1]._group._receivers[0][0].rails[0].ends.data.qp_num)
    error = job.run(lambda comm: comm.barrier())[0]
    assert "seen before: PORT_ERR on rxe0" in str(error)


def test_arguments_that_cannot_work_are_refused(world):
    """Strided arrays, unknown types and parts that do not fit are rejected before anything is sent."""
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
