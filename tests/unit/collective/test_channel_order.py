"""Each channel's ring passes all GPUs of a host, and leaves it from the GPU next to the channel's NIC."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective.channel_order import from_rank, inside, pair_channel, ring_order, used_channels
from c4bench.model.telemetry import Gpu, Member


def members(hosts, nearest):
    """Ranks with a GPU each, on so many hosts; `nearest` are the GPUs' NICs."""
    places = [(f"h{host}", Gpu(index, nic)) for host in range(hosts) for index, nic in enumerate(nearest)]
    nics = range(max(nearest) + 1)
    return [
        Member(rank, host, tuple(f"{host}/{nic}" for nic in nics), gpu=gpu) for rank, (host, gpu) in enumerate(places)
    ]


def test_two_hosts_of_four_gpus():
    """By hand: ring 1 goes 0, 1 | 6, 7, 4, 5 | 2, 3: it leaves from GPU 1 of each host."""
    ranks = members(2, (0, 1, 2, 3))
    assert ring_order(ranks, 1) == (0, 1, 6, 7, 4, 5, 2, 3)
    assert ring_order(ranks, 3) == (0, 1, 2, 3, 4, 5, 6, 7)
    assert used_channels(ranks, 4) == (0, 1, 2, 3)


@given(st.integers(1, 4), st.permutations(range(4)), st.integers(0, 3))
def test_a_ring_crosses_each_host_once_and_leaves_it_by_its_own_nic(hosts, nearest, channel):
    """Each rank is in the ring once, and each edge to another host starts at the GPU next to that NIC."""
    ranks = members(hosts, nearest)
    order = ring_order(ranks, channel)
    assert sorted(order) == list(range(4 * hosts))
    edges = zip(order, from_rank(order, order[1]), strict=True)
    leaving = [ranks[a].gpu.nic for a, b in edges if ranks[a].host != ranks[b].host]
    assert leaving == ([channel] * hosts if hosts > 1 else [])


def test_ranks_without_a_gpu_are_in_one_order():
    """A rank on each host, or two that use all NICs, is as ever: every channel, in the order of the ranks."""
    ranks = [Member(rank, f"h{rank // 2}", ("a", "b")) for rank in range(4)]
    assert used_channels(ranks, 2) == (0, 1)
    assert ring_order(ranks, 0) == ring_order(ranks, 1) == (0, 1, 2, 3)
    assert not inside(ranks[0], ranks[1])


@pytest.mark.parametrize(
    ("ranks", "channels"),
    [
        (members(2, (0, 1, 2, 3))[2::4], (2,)),  # a rail: GPU 2 of each host
        (members(2, (0, 1, 2, 3))[:4], (0,)),  # one host: no NIC is used
        ([members(2, (0, 1, 2, 3))[place] for place in (0, 1, 5, 6)], (1,)),  # GPUs 0, 1 and 1, 2
        ([members(2, (0, 1, 2, 3))[place] for place in (1, 6)], (1,)),  # GPUs 1 and 2: the first rank's
        (members(2, (0, 0, 1, 1)), (0, 1)),  # two GPUs to a NIC
    ],
)
def test_channels_are_the_nics_next_to_gpus(ranks, channels):
    """A group of ranks uses the NICs that are some member's own on every host, not those of others."""
    assert used_channels(ranks, 4) == channels


def test_a_pair_uses_the_senders_nic():
    """To any rank of another host a rank sends by its own NIC."""
    ranks = members(2, (3, 2, 1, 0))
    assert [pair_channel(ranks, rank, (0, 1, 2, 3)) for rank in range(4)] == [3, 2, 1, 0]
    assert pair_channel(ranks, 1, (0,)) == 0
    assert inside(ranks[0], ranks[3])
    assert not inside(ranks[0], ranks[4])
