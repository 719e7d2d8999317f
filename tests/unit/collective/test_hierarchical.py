"""The hierarchical all-reduce: its schedule, executed symbolically, and over loopback."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from night_cases import at_night
from test_schedule import execute, own

from c4bench.collective import hierarchical
from c4bench.collective.ring_reader import read_telemetry_file


@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 4), st.randoms())
def test_all_reduce_adds_every_contribution_once(count, width, chunks, random):
    """For any number of hosts and ranks, each chunk on every rank holds each rank's contribution exactly once."""
    ranks = list(range(count * width))
    random.shuffle(ranks)
    hosts = tuple(tuple(ranks[host * width : (host + 1) * width]) for host in range(count))
    plans = [hierarchical.all_reduce(rank, hosts, chunks) for rank in range(len(ranks))]
    for contents in execute(plans, own(len(ranks), len(ranks), chunks)):
        assert all(content == Counter(ranks) for content in contents.values())
    final = [(receive.segment, receive.chunk) for plan in plans for receive in plan.receives if receive.final]
    assert Counter(final) == Counter((segment, chunk) for segment in ranks for chunk in range(chunks))


def test_what_leaves_a_host_is_what_the_rails_must_carry():
    """With 2 x 8 ranks each rank sends 2 (h - 1) / h of a block to another host, and 2 (g - 1) / g of all inside."""
    hosts = tuple(tuple(range(host * 8, host * 8 + 8)) for host in range(2))
    for rank in range(16):
        plan = hierarchical.all_reduce(rank, hosts, 3)
        outside = [send for sends in plan.streams for send in sends if (send.peer % 16) // 8 != rank // 8]
        inside = [send for sends in plan.streams for send in sends if (send.peer % 16) // 8 == rank // 8]
        assert {send.peer for send in outside} == {(rank + 8) % 16}
        # Of 16 segments in 3 chunks: a block of two segments, once; seven of eight blocks, twice.
        assert (len(outside), len(inside)) == (2 * 3, 2 * 7 * 2 * 3)


@pytest.mark.parametrize("algorithm", ["hierarchical", "tree"])
@pytest.mark.parametrize(
    ("hosts", "gpus", "op"),
    [(2, 2, "avg"), *at_night((2, 4, "sum"), (3, 3, "max"))],
)
def test_results_are_exact_and_the_record_says_how(world, hosts, gpus, op, algorithm):
    """All-reduces of ranks with a GPU have the ring's result for any length, before and after all pairs meet."""
    size = hosts * gpus
    job = world(size, gpus, gpus=gpus, algorithm=algorithm, chunk_bytes=4096, staging_bytes=8192)
    expected = {"sum": size * (size + 1) / 2, "avg": (size + 1) / 2, "max": size}[op]

    def work(comm):
        for count in (0, 1, 7, 9_001):
            array = np.arange(count, dtype=np.float64) * (comm.rank + 1)
            comm.all_reduce(array, op)
            np.testing.assert_array_equal(array, np.arange(count) * expected)
            comm.all_to_all(np.zeros(2 * size), np.zeros(2 * size))
            comm.barrier()

    assert job.run(work) == [None] * size
    named = {
        op.algorithm for op in read_telemetry_file(job.path(0)).ops if op.kind == "all_reduce" and op.size_bytes > 8
    }
    assert named == {algorithm}


def test_without_rails_it_is_a_ring(world):
    """Ranks of one host, and ranks that have no GPU, have no rails: the record says ring, and sums are exact."""
    for options in ({"gpus": 3}, {}):
        job = world(3, 3, algorithm="hierarchical", **options)
        arrays = [np.full(5, rank + 1.0) for rank in range(3)]
        assert job.run(lambda comm, arrays=arrays: comm.all_reduce(arrays[comm.rank])) == [None] * 3
        assert all((array == 6).all() for array in arrays)
        assert {op.algorithm for op in read_telemetry_file(job.path(0)).ops} == {"ring"}


@pytest.mark.parametrize("gpus", [0, 2])
def test_auto_takes_the_algorithm_for_the_size(world, gpus):
    """With `auto` short arrays go over trees and long ones do not, all exact; the record says which way each went.

    On three hosts with rails these take no more hops than trees, and fewer bytes.
    """
    size = 6 if gpus else 4
    job = world(size, 2, gpus=gpus, algorithm="auto", rates=(1e9, 1e9))

    def work(comm):
        for count in (4, 1 << 18):
            array = np.full(count, comm.rank + 1.0)
            comm.all_reduce(array)
            assert (array == size * (size + 1) / 2).all()
        comm.barrier()

    assert job.run(work) == [None] * size
    # The last one of its size: before others the ranks meet over the ring.
    named = {op.size_bytes: op.algorithm for op in read_telemetry_file(job.path(0)).ops if op.kind == "all_reduce"}
    assert named == ({32: "hierarchical", 8 << 18: "hierarchical"} if gpus else {32: "tree", 8 << 18: "ring"})
