"""Resilient collectives over loopback: whatever happens to NICs, every element is exact."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from night_cases import at_night
from property_examples import examples
from storm import (
    KINDS,
    Storm,
    at_work,
    resilient,
    states,
    summed,
    unfailed,
)

from c4bench.collective.rail import RailName, ReceiveProgress
from c4bench.collective.rail_protocols import Fence, Fenced, encode
from c4bench.collective.rendezvous import EVERYBODY


@pytest.mark.parametrize(
    ("size", "nics"),
    [
        *[(1, 1), (2, 2), (3, 2)],
        *at_night((1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 3), (4, 1), (4, 2), (4, 3)),
    ],
)
def test_healthy_collectives_are_exact(world, size, nics):
    """With nothing broken, every collective gives what it gives without resilience."""

    def work(comm):
        for count in (0, 1, 1000, 50_000):
            summed(comm, count)
        part = np.full(3000, comm.rank)
        whole = np.empty(3000 * size, part.dtype)
        comm.all_gather(whole, part)
        assert (whole.reshape(size, -1) == np.arange(size)[:, None]).all()
        comm.reduce_scatter(part, whole)
        assert (part == size * comm.rank).all()
        given = np.repeat(np.arange(size) + 10 * comm.rank, 5000)
        comm.all_to_all(received := np.empty_like(given), given)
        np.testing.assert_array_equal(received, np.repeat(10 * np.arange(size) + comm.rank, 5000))
        comm.broadcast(whole, src=size - 1)
        comm.reduce(whole, dst=0)
        comm.barrier()

    unfailed(resilient(world, size, nics), work)


@pytest.mark.parametrize(
    ("size", "kind"),
    [
        *((2, kind) for kind in KINDS),
        *at_night(*((4, kind) for kind in KINDS)),
    ],
)
def test_nic_dies_in_mid_operation(world, size, kind):
    """A NIC that fails in the middle of an all-reduce costs time, and not an element; later ones avoid it."""
    job = resilient(world, size)
    storm = Storm(job)

    def work(comm):
        if at_work(comm):
            storm.add(kind, 1, 0, after=40)
        for step in range(3):
            summed(comm, 40_000, step)
        return states(comm)

    outcomes = unfailed(job, work)
    assert storm.struck == 1
    assert "up" in outcomes[1]
    assert {"fenced", "down", "trial"} & set(outcomes[1])


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier")


def exact(comm, kind, count, step):
    """Run a collective and hold every element against what it must be."""
    size, rank = comm.size, comm.rank
    if kind == "all_reduce":
        summed(comm, count, step)
    elif kind == "all_gather":
        comm.all_gather(whole := np.empty(size * count, np.int64), np.arange(count) + step + rank)
        np.testing.assert_array_equal(whole.reshape(size, -1), np.arange(count) + step + np.arange(size)[:, None])
    elif kind == "reduce_scatter":
        comm.reduce_scatter(part := np.empty(count, np.int64), np.arange(size * count) + step)
        np.testing.assert_array_equal(part, size * (np.arange(size * count) + step)[rank * count : (rank + 1) * count])
    elif kind == "all_to_all":
        given = (np.arange(size)[:, None] * 1000 + np.arange(count) + step + rank).reshape(-1)
        comm.all_to_all(received := np.empty_like(given), given)
        np.testing.assert_array_equal(
            received.reshape(size, -1), rank * 1000 + np.arange(count) + step + np.arange(size)[:, None]
        )
    elif kind == "broadcast":
        array = np.arange(count) + step + rank
        comm.broadcast(array, src=step % size)
        np.testing.assert_array_equal(array, np.arange(count) + step + step % size)
    elif kind == "reduce":
        array = np.arange(count) + step
        comm.reduce(array, dst=step % size)
        np.testing.assert_array_equal(array, (np.arange(count) + step) * (size if rank == step % size else 1))
    else:
        comm.barrier()


@given(data=st.data())
@settings(max_examples=examples(5, 15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_troubles_while_one_nic_is_left(world, data):
    """Up to four troubles of any kind at any time, also during recovery, that spare one NIC: every element is exact."""
    size = data.draw(st.integers(2, 4), label="ranks")
    nics = data.draw(st.integers(2, 3), label="NICs")
    spared = data.draw(st.integers(0, nics - 1), label="spared")
    kinds = data.draw(st.lists(st.sampled_from(COLLECTIVES), min_size=2, max_size=5), label="collectives")
    trouble = st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, size - 1),
        st.sampled_from([nic for nic in range(nics) if nic != spared]),
        st.integers(0, 400),
        st.sampled_from([None, 0.004, 0.03, 0.1]),
    )
    troubles = data.draw(st.lists(trouble, min_size=1, max_size=4), label="troubles")
    job = resilient(world, size, nics)
    storm = Storm(job)

    def work(comm):
        for kind in set(kinds):
            exact(comm, kind, 10, 0)
        comm.barrier()
        if comm.rank == 0:
            for each in troubles:
                storm.add(*each)
        for step, kind in enumerate(kinds):
            exact(comm, kind, 10_000, step)
        comm.barrier()

    try:
        assert [outcome for outcome in job.run(work) if outcome is not None] == []
    finally:
        job.close()


def test_acknowledgements_lost_as_the_receiver_leaves(world):
    """A sender whose last acknowledgements are lost reads in the ledger of a receiver that has gone on to compute."""
    job = resilient(world, 2)
    storm = Storm(job)
    sender_is_done = threading.Event()

    def work(comm):
        if at_work(comm):
            # The broadcast's receiver has all and leaves; its acknowledgements are lost.
            storm.add("acks", 0, 0, after=1)
        array = np.full(20_000, 7 + comm.rank)
        comm.broadcast(array, src=0)
        assert (array == 7).all()
        if comm.rank == 0:
            sender_is_done.set()
        computed = sender_is_done.wait(20)
        summed(comm, 1000)
        return computed

    assert job.run(work) == [True, True]
    assert storm.struck == 1


def test_messages_between_two_ranks_outlive_a_nic(world):
    """Send and recv use rails too, and lose nothing with one."""
    job = resilient(world, 3)
    storm = Storm(job)

    def work(comm):
        if comm.rank == 1:
            comm.barrier()
            return
        for step in range(6):
            array = np.arange(50_000) + step if comm.rank == 0 else np.zeros(50_000, np.int64)
            if step == 1 and comm.rank == 0:
                storm.add("black hole", 0, 0, after=20)
            comm.send(array, 2) if comm.rank == 0 else comm.recv(array, 0)
            np.testing.assert_array_equal(array, np.arange(50_000) + step)
        comm.barrier()

    unfailed(job, work)


def test_words_of_an_earlier_life_are_ignored(world):
    """Control messages about an earlier life of a rail, or about rails that do not exist, are ignored."""
    job = resilient(world, 2)

    def work(comm):
        summed(comm, 1000)
        relay = job.rendezvous.relay("dp", 7 + comm.rank)
        for life in (0, 2):
            progress = (ReceiveProgress(9, 9, ()),) * 2
            for name in (RailName(0, 1, 0), RailName(1, 0, 1), RailName(5, 6, 7)):
                relay.send(EVERYBODY, encode(Fence(name, life)))
                relay.send(EVERYBODY, encode(Fenced(name, life, progress)))
        relay.send(EVERYBODY, b"nonsense")
        for step in range(3):
            summed(comm, 50_000, step)
        return states(comm)

    assert job.run(work) == [{"up": 4}] * 2
