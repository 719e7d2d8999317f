"""Collectives over the loopback transport: exact, whatever the sizes."""

import mmap
import time

import ml_dtypes  # noqa: F401  (makes numpy know bfloat16)
import numpy as np
import pytest
from night_cases import at_night

from c4bench.collective import memory

SMALL = {"chunk_bytes": 1024, "staging_bytes": 4096}


def run(world, work):
    for outcome in world.run(work):
        if isinstance(outcome, BaseException):
            raise outcome


@pytest.mark.parametrize("size", [1, 2, 3, *at_night(8)])
@pytest.mark.parametrize("count", [0, 1, 7, 1000, 33333])
def test_all_reduce_sums_every_element(world, size, count):
    """Every rank ends with the exact sum, also with fewer elements than ranks and uneven segments."""

    def work(comm):
        array = np.arange(count, dtype=np.int64) * (comm.rank + 1)
        comm.all_reduce(array)
        np.testing.assert_array_equal(array, np.arange(count) * size * (size + 1) // 2)

    run(world(size, **SMALL), work)


@pytest.mark.parametrize(
    ("dtype", "op", "expected"),
    [
        pytest.param(dtype, op, expected, marks=() if dtype == "float32" or op == "sum" else pytest.mark.nightly)
        for dtype in ("float32", "float64", "int32", "int64", "float16", "bfloat16")
        for op, expected in (("sum", 6), ("min", 1), ("max", 3), ("avg", 2))
    ],
)
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
    """The destination gets the exact reduction; every other rank's array is unchanged."""
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
        for round_ in range(3):
            array = np.full(3000, 10 * round_ + comm.rank, np.float32)
            if comm.rank == 0:
                comm.send(array, 2)
                comm.recv(array, 2)
                assert (array == 10 * round_ + 100).all()
            elif comm.rank == 2:
                comm.recv(array, 0)
                assert (array == 10 * round_).all()
                comm.send(array + 100, 0)
            comm.all_reduce(array)

    run(world(3, **SMALL), work)


def test_split_makes_communicators_of_their_own(world):
    """Rows and columns of a grid reduce separately, with ranks ordered by key; a rank with color None gets None."""

    def work(comm):
        row, column = divmod(comm.rank, 2)
        across = comm.split(row, key=-comm.rank)
        down = comm.split(None if row == 1 else column)
        array = np.array([comm.rank])
        across.all_reduce(array)
        received = (across.rank, array.item(), None if down is None else down.size)
        for part in (across, down):
            if part is not None:
                part.close()
        return received

    assert world(4).run(work) == [(1, 1, 1), (0, 1, 1), (1, 5, None), (0, 5, None)]


@pytest.mark.parametrize(("size", "nics"), [(2, 1), (3, 2), *at_night((4, 1), (4, 2))])
def test_all_to_all_transposes_parts(world, size, nics):
    """Part r of rank s ends as part s of rank r, twice in a row over the same connections, also over two NICs."""
    count = 20000

    def work(comm):
        for round_ in range(2):
            given = np.repeat(np.arange(size), count) + 10 * comm.rank + 100 * round_
            received = np.empty_like(given)
            comm.all_to_all(received, given)
            np.testing.assert_array_equal(received, np.repeat(np.arange(size) * 10, count) + comm.rank + 100 * round_)

    run(world(size, nics, **SMALL), work)


@pytest.mark.parametrize("count", [1, 5000])
def test_gather_and_scatter(world, count):
    """reduce_scatter keeps its input and gives each rank its part; all_gather joins the parts."""

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
    """Every rank gets the root's array, for every root."""

    def work(comm):
        array = np.full(9999, comm.rank, np.float32)
        comm.broadcast(array, src)
        assert (array == src).all()

    run(world(4, **SMALL), work)


def test_barrier_holds_until_the_last_rank(world):
    """No rank leaves a barrier before all ranks have entered it."""
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


@pytest.mark.parametrize("resilient", [False, True])
def test_a_closed_communicator_gives_its_memory_back(world, monkeypatch, resilient):
    """Buffers of closed connections are freed although endpoints still refer to them."""
    maps = []

    def new_map(size_bytes):
        maps.append(mmap.mmap(-1, size_bytes))
        return maps[-1]

    monkeypatch.setattr(memory, "_map", new_map)
    ranks = world(2, nics=2, resilient=resilient, **SMALL)
    run(ranks, lambda comm: comm.all_reduce(np.ones(1000, np.float32)))
    assert any(any(each[:]) for each in maps)
    for comm in ranks.comms:
        comm.close()
    assert not any(any(each[:]) for each in maps)
