"""The least time of collectives between GPU hosts, beside what one counts by hand and what the schedules send."""

from collections import Counter

import pytest

from c4bench.collective import hierarchical as rails
from c4bench.collective import tree as trees
from c4bench.cost.all_reduce import GpuHosts, Load, all_to_all, expected_s, fastest, hierarchical, ring, tree

TWO_BY_EIGHT = GpuHosts(2, 8, 25e9, 225e9)
FOUR_BY_FOUR = GpuHosts(4, 4, 25e9, 225e9)


@pytest.mark.parametrize(
    ("load", "shape", "nic", "inside"),
    [
        # 16 ranks: each edge of a ring carries 30/16 of the eighth of its channel; 7 of 8 channels stay inside.
        (ring, TWO_BY_EIGHT, 30 / 128, 7 * 30 / 128),
        # Two trees of two nodes: a root sends half down in one, a leaf half up in the other, of an eighth.
        (tree, TWO_BY_EIGHT, 1 / 8, 14 / 8),
        # On a rail of two each rank sends its half of the eighth twice.
        (hierarchical, TWO_BY_EIGHT, 1 / 8, 14 / 8),
        # One of two hosts is another one; seven of eight ranks are not on the sender's rail.
        (all_to_all, TWO_BY_EIGHT, 1 / 2, 7 / 8),
        (ring, FOUR_BY_FOUR, 30 / 64, 3 * 30 / 64),
        # Node 2 of four has a parent and two children, and a parent in the other tree: four halves of a quarter.
        (tree, FOUR_BY_FOUR, 1 / 2, 6 / 4),
        (hierarchical, FOUR_BY_FOUR, 6 / 16, 6 / 4),
        (all_to_all, FOUR_BY_FOUR, 3 / 4, 3 / 4),
    ],
)
def test_what_the_busiest_sends(load, shape, nic, inside):
    """The busiest NIC and GPU send the fractions of an array that one counts by hand."""
    assert (load(shape).nic, load(shape).inside) == pytest.approx((nic, inside))


def test_a_tree_inside_one_host_has_no_hop_between_hosts():
    """Up and down a chain of four GPUs are six messages one after another."""
    shape = GpuHosts(1, 4, 25e9, 225e9, inside_hop_s=2e-6)
    assert expected_s("tree", 0, shape) == pytest.approx(6 * 2e-6)


def test_the_slower_of_both_sets_the_time():
    """64 MiB with an eighth by NICs at 25 and 14/8 by links at 225 Gbit/s take 4.18 ms, which the links take."""
    assert hierarchical(TWO_BY_EIGHT).least_s(64 << 20, TWO_BY_EIGHT) == pytest.approx(4.1756e-3, rel=1e-4)
    assert Load(1.0, 0.0).least_s(25, TWO_BY_EIGHT) == pytest.approx(8e-9)


@pytest.mark.parametrize("shape", [TWO_BY_EIGHT, FOUR_BY_FOUR, GpuHosts(3, 2, 1e9), GpuHosts(8, 1, 1e9)])
def test_schedules_send_what_the_bound_counts(shape):
    """The messages that the schedules of trees and rails plan add up to the loads, on the busiest NIC and GPU."""
    hosts = tuple(tuple(range(host * shape.gpus, (host + 1) * shape.gpus)) for host in range(shape.hosts))
    chained = [trees.over_chains([[*ranks[c:], *ranks[:c]] for ranks in hosts]) for c in range(shape.gpus)]
    planned = {
        tree: [[trees.all_reduce(rank, each, 1) for each in chained] for rank in range(shape.ranks)],
        hierarchical: [[rails.all_reduce(rank, hosts, 1)] for rank in range(shape.ranks)],
    }
    for load, by_rank in planned.items():
        nic, inside = Counter(), Counter()
        for rank, plans in enumerate(by_rank):
            part = 1 / (2 * shape.gpus) if load is tree else 1 / shape.ranks
            for send in (send for plan in plans for stream in plan.streams for send in stream):
                same = rank // shape.gpus == send.peer % shape.ranks // shape.gpus
                (inside if same else nic)[rank] += part
        assert max(nic.values()) == pytest.approx(load(shape).nic)
        assert max(inside.values(), default=0) == pytest.approx(load(shape).inside)


def test_short_arrays_go_over_trees_and_long_ones_do_not():
    """Of 64 hosts a short array takes fewest hops over trees; long ones are fastest over rails, or over the ring."""
    many = GpuHosts(64, 8, 25e9, 225e9)
    assert [fastest(size, many) for size in (64, 4 << 10, 1 << 30)] == ["tree", "tree", "hierarchical"]
    assert [fastest(size, GpuHosts(8, 1, 10e9)) for size in (64, 1 << 24)] == ["tree", "ring"]
    assert fastest(1 << 32, many, ("ring", "tree")) == "ring"
    assert expected_s("ring", 0, GpuHosts(8, 1, 10e9, hop_s=1e-6)) == pytest.approx(14e-6)
