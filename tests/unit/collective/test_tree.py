"""The double binary tree: its shape, its schedule, executed symbolically, and all-reduces over loopback."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from night_cases import at_night
from test_schedule import execute, own

from c4bench.collective import tree
from c4bench.collective.ring_reader import read_telemetry_file


def children(parents):
    """How many children each node has."""
    return Counter(parent for node, parent in enumerate(parents) if parent != node)


@pytest.mark.parametrize(
    ("count", "first", "second"),
    [
        # Drawn by hand: 0 over 2 over (1, 3), and its mirror image 3 over 1 over (2, 0).
        (4, (0, 2, 0, 2), (1, 3, 1, 3)),
        # 0 over 2 over 1, and the same shifted by one.
        (3, (0, 2, 0), (1, 1, 0)),
        (2, (0, 0), (1, 1)),
    ],
)
def test_small_trees(count, first, second):
    """The trees of a few nodes are those that one draws by hand."""
    assert tree.two_trees(count) == (first, second)


@pytest.mark.parametrize("count", [*range(2, 34), 64])
def test_every_node_is_inside_one_tree_only(count):
    """Both trees reach all nodes within log2(n) + 1 hops, none has more than two children, few are inside both."""
    trees = tree.two_trees(count)
    for parents in trees:
        for node in range(count):
            above = [node]
            while parents[above[-1]] != above[-1]:
                above.append(parents[above[-1]])
            assert len(above) <= count.bit_length() + 1
        assert max(children(parents).values()) <= 2
    inside_both = set(children(trees[0])) & set(children(trees[1]))
    assert len(inside_both) <= count % 2
    # Whoever hangs inside an operation has messages that it does not look at: that is how C4D names it.
    assert set(children(trees[0])) | set(children(trees[1])) == set(range(count))
    # So no node sends more than four halves, and the whole sends what two trees need.
    assert max((Counter(children(trees[0])) + Counter(children(trees[1]))).values()) <= 2 + count % 2


@given(st.lists(st.integers(1, 4), min_size=1, max_size=9).filter(lambda chains: sum(chains) > 1), st.integers(1, 5))
def test_all_reduce_adds_every_contribution_once(lengths, chunks):
    """For any hosts with any number of ranks each chunk on every rank holds each rank's contribution exactly once."""
    size = sum(lengths)
    ranks = iter(range(size))
    trees = tree.over_chains([[next(ranks) for _ in range(length)] for length in lengths])
    plans = [tree.all_reduce(rank, trees, chunks) for rank in range(size)]
    for contents in execute(plans, own(size, 2, chunks)):
        assert all(content == Counter(range(size)) for content in contents.values())
    final = [receive for plan in plans for receive in plan.receives if receive.final]
    assert Counter((receive.segment, receive.chunk) for receive in final) == Counter(
        (segment, chunk) for segment in range(2) for chunk in range(chunks)
    )


def test_a_chain_is_joined_by_its_first_rank():
    """Of a host's ranks only the first one sends to other hosts; each of the others sends to the one before it."""
    assert tree.over_chains([[1, 2, 0], [5, 3, 4]]) == ((2, 1, 1, 5, 3, 1), (2, 5, 1, 5, 3, 5))


@pytest.mark.parametrize(
    ("size", "nics", "op"), [(2, 1, "sum"), (3, 2, "avg"), *at_night((5, 1, "max"), (8, 2, "avg"))]
)
def test_results_are_exact_and_the_record_says_tree(world, size, nics, op):
    """All-reduces over trees have the ring's result for any length, before and after all pairs are connected."""
    job = world(size, nics, algorithm="tree", chunk_bytes=4096, staging_bytes=8192)
    expected = {"sum": size * (size + 1) / 2, "avg": (size + 1) / 2, "max": size}[op]

    def work(comm):
        for count in (0, 1, 7, 70_001):
            array = np.arange(count, dtype=np.float64) * (comm.rank + 1)
            comm.all_reduce(array, op)
            np.testing.assert_array_equal(array, np.arange(count) * expected)
            comm.all_to_all(np.zeros(2 * size), np.zeros(2 * size))
            comm.barrier()

    assert job.run(work) == [None] * size
    named = {
        op.algorithm for op in read_telemetry_file(job.path(0)).ops if op.kind == "all_reduce" and op.size_bytes > 8
    }
    assert named == {"tree"}
