"""Large all-reduces that avoid lost NICs, over loopback: all ranks choose the same strategy, and are exact."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from night_cases import at_night
from property_examples import examples
from storm import (
    Storm,
    at_work,
    keep_summing,
    resilient,
    states,
    summed,
    unfailed,
)

from c4bench.collective import degraded
from c4bench.collective.degraded import SplitLevel
from c4bench.collective.errors import CollectiveError

# 16 KiB of them and a little more.
LARGE = 2_100


@pytest.fixture(autouse=True)
def agreed_often(monkeypatch):
    """So that a few operations show what many would."""
    monkeypatch.setattr(degraded, "_AGREE_EVERY", 4)


def check_all_went_around(job, work):
    """`work` counts, on every rank alike, operations that went around what is lost, and there are some."""
    (done,) = set(unfailed(job, work))
    assert done > 0


def lose(comm, storm, *nics):
    """Once all ranks are at work, have these NICs, by rank and number, go down in one of the next operations."""
    if at_work(comm, 100):
        for rank, nic in nics:
            storm.add("down", rank, nic, after=10)


def reorder(comm, storm):
    """Neighbours lose different NICs; go on until large all-reduces take another order."""
    lose(comm, storm, (1, 0), (2, 1))
    while not comm.resilience.reordered:
        summed(comm, LARGE)


def host_lost(comm):
    """Sum until the loss of a host ends it; the error of that."""
    with pytest.raises(CollectiveError) as raised:
        keep_summing(comm)
    assert raised.value.status in ("HOST_LOST", "ABORTED")
    return raised.value


@pytest.mark.parametrize(
    ("size", "nics", "lost", "op", "second"),
    [
        (4, 2, {1: [0]}, "max", 3),
        (4, 4, {0: [0], 2: [0, 3]}, "avg", None),
        *at_night(
            (4, 2, {0: [0]}, "sum", None),
            (5, 3, {1: [0], 3: [0]}, "avg", None),
            (6, 4, {1: [0, 3], 2: [0]}, "sum", 4),
        ),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in [
                (4, 2, {2: [0]}, "avg", None),
                (6, 3, {0: [0], 4: [0]}, "max", 2),
                (5, 8, {1: [0], 3: [2]}, "sum", None),
                (5, 3, {0: [0], 1: [0]}, "sum", None),
                (7, 3, {0: [0], 2: [0]}, "sum", 0),
                (6, 4, {0: [0], 3: [0, 3]}, "avg", None),
                (7, 5, {1: [0], 3: [0, 3], 5: [0, 3, 4]}, "max", None),
            ]
        ),
    ],
)
def test_all_reduce_beside_degraded_ranks(world, size, nics, lost, op, second):
    """A split all-reduce without degraded ranks is exact on all ranks, also if another NIC dies during it."""
    job = resilient(world, size, nics, split_bytes=1 << 14)
    storm = Storm(job)
    want = {"sum": sum(range(size + 1)) * 60, "avg": sum(range(size + 1)) * 60 // size, "max": size * 60}[op]
    gone = [(rank, nic) for rank, each in lost.items() for nic in each]

    def work(comm):
        lose(comm, storm, *gone)
        for _ in range(10):
            if second is not None and comm.rank == 0 and comm.resilience.split == 1:
                storm.add("black hole", second, 1, after=20)
            array = np.arange(LARGE, dtype=np.int64) * 60 * (comm.rank + 1)
            comm.all_reduce(array, op)
            np.testing.assert_array_equal(array, np.arange(LARGE) * want)
        return comm.resilience.split

    check_all_went_around(job, work)
    assert storm.struck == len(gone) + (second is not None)


def test_host_lost_beside_a_degraded_rank(world):
    """A host that loses all its NICs during a split all-reduce ends it on every rank, with the host's name."""
    job = resilient(world, 4, split_bytes=1 << 14)
    storm = Storm(job)

    def work(comm):
        lose(comm, storm, (0, 0))
        if comm.rank == 0:
            for nic in range(2):
                storm.add("black hole", 2, nic, after=1500)
        return host_lost(comm)

    for error in job.run(work):
        assert "host h2" in str(error)


def test_nic_that_is_lost_while_the_others_connect(world):
    """A NIC that goes down while the healthy ranks connect costs no element and causes no error."""
    job = resilient(world, 4, split_bytes=1 << 14)
    storm = Storm(job)

    def work(comm):
        lose(comm, storm, (0, 0))
        if comm.rank == 0:
            job.down.add((2, 1))
        for step in range(10):
            summed(comm, LARGE, step)
        return comm.resilience.split

    check_all_went_around(job, work)


@pytest.mark.parametrize("second", [True, *at_night(False)])
def test_all_reduce_by_a_ring_in_another_order(world, second):
    """If neighbours have lost different NICs, the reordered ring is exact, also if one more NIC dies during it."""
    job = resilient(world, 4, 3, split_bytes=1 << 14)
    storm = Storm(job)

    def work(comm):
        lose(comm, storm, (1, 0), (2, 1))
        for step in range(12):
            if second and comm.rank == 0 and comm.resilience.reordered == 1:
                storm.add("black hole", 3, 2, after=20)
            summed(comm, LARGE, step)
        return comm.resilience.reordered

    check_all_went_around(job, work)
    assert storm.struck == 2 + second


def test_plain_ring_again(world):
    """When the NICs are back, large all-reduces use the plain ring again, also without smaller ones in between."""
    job = resilient(world, 4, 3, split_bytes=1 << 14)
    storm = Storm(job)

    def work(comm):
        reorder(comm, storm)
        if comm.rank == 0:
            storm.heal()
        since = before = 0
        for step in range(3000):
            summed(comm, LARGE, step)
            since = since + 1 if comm.resilience.reordered == before else 0
            before = comm.resilience.reordered
            if since == 12:
                break
        return since, states(comm)

    assert set(map(str, unfailed(job, work))) == {str((12, {"up": 6}))}


def test_host_lost_in_another_order(world):
    """A host that loses all its NICs in a reordered ring is named by its rank in the communicator."""
    job = resilient(world, 5, 3, split_bytes=1 << 14)
    storm = Storm(job)

    def work(comm):
        reorder(comm, storm)
        if comm.rank == 0:
            for nic in range(3):
                storm.add("black hole", 3, nic, after=100)
        return host_lost(comm)

    for error in job.run(work):
        assert error.peer == 3
        assert error.comm == "dp"


@given(data=st.data())
@settings(max_examples=examples(4, 10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_ranks_have_lost_nics(world, data):
    """Whichever NICs are lost, as long as one is left, large all-reduces are exact and all ranks choose alike."""
    size, nics = data.draw(st.integers(3, 6), label="ranks"), data.draw(st.integers(2, 4), label="NICs")
    lost = data.draw(st.sets(st.tuples(st.integers(0, size - 1), st.integers(1, nics - 1))), label="lost")
    job = resilient(world, size, nics, split_bytes=1 << 14, down=lost)

    def work(comm):
        for step in range(6):
            summed(comm, LARGE, step)
        return comm.resilience.split, comm.resilience.reordered

    try:
        assert len(set(unfailed(job, work))) == 1
    finally:
        job.close()


@given(st.integers(0, 5000), st.lists(st.floats(0.0, 0.3), min_size=1, max_size=3))
def test_each_item_belongs_to_one_part(items, shares):
    """What all ranks reduce and the levels' parts follow each other without a gap; each level has about its share."""
    array = np.arange(items, dtype=np.int64)
    levels = [SplitLevel((number,), frozenset({number}), y) for number, y in enumerate(shares)]
    common, rests = degraded._cut(array, levels)
    assert np.concatenate([common, *(part for _, part in rests)]).tolist() == array.tolist()
    assert [level for level, _ in rests] == levels
    assert [part.size for _, part in rests] == [round(items * y) for y in shares]


@pytest.mark.parametrize(
    ("hosts", "gpus", "lost", "op"),
    [
        (3, 2, {1: [0]}, "avg"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in [(4, 2, {0: [1]}, "sum"), (3, 3, {2: [0, 2]}, "max"), (3, 4, {0: [0], 1: [1]}, "sum")]
        ),
    ],
)
def test_all_reduce_beside_degraded_hosts_with_gpus(world, hosts, gpus, lost, op):
    """Beside a host with a rank for each GPU that has lost NICs, split all-reduces are exact on all ranks."""
    size = hosts * gpus
    job = resilient(world, size, gpus, gpus=gpus, split_bytes=1 << 14)
    storm = Storm(job)
    want = {"sum": sum(range(size + 1)) * 60, "avg": sum(range(size + 1)) * 60 // size, "max": size * 60}[op]
    gone = [(host * gpus + gpu, nic) for host, each in lost.items() for nic in each for gpu in range(gpus)]

    def work(comm):
        lose(comm, storm, *gone)
        for _ in range(12):
            array = np.arange(LARGE, dtype=np.int64) * 60 * (comm.rank + 1)
            comm.all_reduce(array, op)
            np.testing.assert_array_equal(array, np.arange(LARGE) * want)
        return comm.resilience.split

    check_all_went_around(job, work)
    assert storm.struck == len(gone)
