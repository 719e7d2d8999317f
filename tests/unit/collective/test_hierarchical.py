"""The hierarchical all-reduce: its schedule, executed symbolically."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from test_schedule import execute, own

from c4bench.collective import hierarchical


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


def test_ranks_are_in_the_order_of_their_nics():
    """Hosts have the same rails, however their ranks are numbered; with other NICs, or one for two, there are none."""
    assert hierarchical.rails([[0, 1], [2, 3]], [1, 0, 0, 1]) == ((1, 0), (2, 3))
    assert hierarchical.rails([[0, 1], [2, 3]], [1, 0, 0, 2]) is None
    assert hierarchical.rails([[0, 1], [2, 3]], [0, 0, 0, 0]) is None
    assert hierarchical.rails([[0, 1], [2]], [0, 1, 0]) is None
