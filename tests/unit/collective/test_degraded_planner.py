"""The strategy of large all-reduces when NICs are lost, and the fraction reduced without degraded ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective.degraded import (
    ReorderedRing,
    SplitReduce,
    agree_on_losses,
    choose_strategy,
    poorest,
    qps_of_a_nic,
)

NONE = frozenset()
NICS = 4


@pytest.mark.parametrize(("ranks", "nics", "lost"), [(4, 8, {2}), (8, 2, {1}), (4, 8, {0, 7})])
def test_single_degraded_rank_is_split_off(ranks, nics, lost):
    """A single degraded rank is left out of about the fraction that it has lost."""
    split = choose_strategy([NONE, frozenset(lost), *[NONE] * (ranks - 2)], [25] * nics)
    (level,) = split.levels
    assert (level.degraded, level.lost, split.direct) == ((1,), lost, False)
    assert len(lost) / nics <= level.y < 1.2 * len(lost) / nics


@pytest.mark.parametrize(("ranks", "nics", "lost"), [(8, 3, {1}), (5, 4, {0, 1}), (8, 8, {0, 7})])
def test_several_degraded_ranks_are_split_off(ranks, nics, lost):
    """Two ranks that have lost the same NICs are left out of more than the lost fraction."""
    split = choose_strategy([NONE, frozenset(lost), *[NONE] * (ranks - 3), frozenset(lost)], [25] * nics)
    (level,) = split.levels
    assert (level.degraded, level.lost, split.direct) == ((1, ranks - 1), lost, True)
    assert len(lost) / nics < level.y < 2 * len(lost) / nics


@pytest.mark.parametrize("ranks", [6, 12])
def test_degraded_ranks_that_have_lost_more_are_split_off_twice(ranks):
    """If one of two degraded ranks has lost more, one part is reduced without both and one without that rank."""
    split = choose_strategy([frozenset({0}), frozenset({0, 1}), *[NONE] * (ranks - 2)], [1] * NICS)
    assert [(level.degraded, level.lost) for level in split.levels] == [((0, 1), {0}), ((1,), {1})]
    assert sum(level.y for level in split.levels) > 0.6


def test_rank_that_has_lost_most_is_split_off_where_others_are_few():
    """With two of four ranks degraded, only the one that has lost more is left out."""
    split = choose_strategy([frozenset({0}), NONE, frozenset({0, 1}), NONE], [1] * NICS)
    assert [(level.degraded, level.lost) for level in split.levels] == [((2,), {1})]


def test_ranks_that_have_lost_different_nics_are_split_off_each():
    """With enough NICs, two ranks that have lost different ones each get a level of their own."""
    split = choose_strategy([NONE, frozenset({0}), NONE, NONE, NONE, frozenset({1}), NONE, NONE], [1] * 8)
    assert [(level.degraded, level.lost) for level in split.levels] == [((1,), {0}), ((5,), {1})]


def test_who_is_cut_off_by_its_neighbours_has_lost_nothing():
    """A rank between two that have lost a NIC has lost it too only if its own port is down."""
    one = frozenset({0})
    lost = [NONE, one, one, one, NONE]
    assert agree_on_losses(lost, [NONE] * 5) == [NONE, one, NONE, one, NONE]
    assert agree_on_losses(lost, [NONE, NONE, one, NONE, NONE]) == lost


def test_ring_goes_on_as_it_is_otherwise():
    """The plain ring is kept if nothing is lost, or a rank has lost all NICs, or no split pays."""
    one = frozenset({0})
    for lost in ([NONE] * 4, [one, one, *[NONE] * 6], [frozenset({0, 1}), NONE, NONE, NONE], [one, NONE]):
        assert choose_strategy(lost, [1, 1]) is None


def test_ring_has_another_order_where_neighbours_have_lost_different_nics():
    """Ranks that have lost different NICs are not neighbours in the reordered ring."""
    assert choose_strategy([frozenset({0}), frozenset({1}), NONE, NONE], [1, 1, 1]) == ReorderedRing((0, 2, 1, 3))


def test_rates_say_how_much_is_lost():
    """A rank that has lost a slow NIC is left out of a smaller fraction than one that has lost a fast NIC."""
    slow, fast = (choose_strategy([frozenset({nic}), NONE, NONE, NONE], [1, 3]).levels[0] for nic in (0, 1))
    assert slow.y < 0.3
    assert fast.y > 0.7


@given(
    lost=st.lists(st.frozensets(st.integers(0, NICS - 1)), min_size=3, max_size=12),
    weights=st.lists(st.integers(1, 4), min_size=NICS, max_size=NICS),
)
def test_any_way_is_one_that_ranks_can_go(lost, weights):
    """For any losses, a level leaves out exactly the ranks that have lost its NICs, and a ring has all ranks."""
    strategy = choose_strategy(lost, weights)
    assert strategy == choose_strategy(list(lost), list(weights))
    if isinstance(strategy, SplitReduce):
        assert strategy.levels
        assert sum(len(level.lost) for level in strategy.levels) == len(strategy.lost)
        assert 0 < sum(level.y for level in strategy.levels) < 1
        for level in strategy.levels:
            assert level.y > 0
            assert level.lost
            assert all((rank in level.degraded) == (level.lost <= gone) for rank, gone in enumerate(lost))
            assert not any(level.lost & gone for rank, gone in enumerate(lost) if rank not in level.degraded)
            assert len(lost) - len(level.degraded) >= 2
    elif strategy:
        assert sorted(strategy.hosts) == list(range(len(lost)))
        assert poorest(strategy.hosts, lost, weights) > poorest(range(len(lost)), lost, weights)


@pytest.mark.parametrize("width", [4, 8])
def test_hosts_with_gpus_are_split_off_one_by_one(width):
    """A host that has lost a NIC is left out of a fraction of the array, and so are two of three one by one."""
    lost = [NONE, frozenset({1}), NONE, NONE, NONE, NONE]
    one = choose_strategy(lost, [25] * 8, width)
    assert [(level.degraded, level.lost) for level in one.levels] == [((1,), {1})]
    assert 1 / 8 <= one.levels[0].y < 1.2 / 8
    two = choose_strategy([frozenset({1}), frozenset({5}), NONE], [25] * 8, width)
    assert [(level.degraded, level.lost) for level in two.levels] == [((0,), {1}), ((1,), {5})]
    assert not one.direct
    assert not two.direct
    # Apart from each other, and with the same loss, they are as slow as one, and the ring is as fast as any split.
    assert choose_strategy([*lost[:4], frozenset({1}), NONE], [25] * 8, width) is None
    assert choose_strategy([*lost[:4], frozenset({5}), NONE], [25] * 8, width) is None
    neighbours = [NONE, frozenset({1}), frozenset({5}), NONE, NONE, NONE]
    assert choose_strategy(neighbours, [25] * 8, width) == ReorderedRing((0, 1, 5, 4, 3, 2))


def test_qps_that_share_a_nic():
    """A rank that has lost its NIC sends by those of its host's other ranks; a host's only rank has one QP for each."""
    lost = [NONE, frozenset({0}), frozenset({1}), NONE]
    assert qps_of_a_nic((0, 1, 3, 2), lost, 4) == 2
    assert qps_of_a_nic((0, 1, 2, 3), lost, 4) == 3
    assert qps_of_a_nic((0, 1, 2, 3), lost, 1) == 1
