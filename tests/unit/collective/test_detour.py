"""Which way large all-reduces take around what ranks have lost, and how much is reduced without some of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective.degraded_planner import ReorderedRing, SplitReduce, agree_on_losses, choose_strategy, poorest

NONE = frozenset()
NICS = 4


@pytest.mark.parametrize(("ranks", "nics", "lost"), [(4, 8, {2}), (8, 2, {1}), (4, 8, {0, 7})])
def test_single_degraded_rank_is_split_off(ranks, nics, lost):
    """One rank that has lost some of its NICs is left out of about what it has lost."""
    split = choose_strategy([NONE, frozenset(lost), *[NONE] * (ranks - 2)], [25] * nics)
    (level,) = split.levels
    assert (level.degraded, level.lost, split.direct) == ((1,), lost, False)
    assert len(lost) / nics <= level.y < 1.2 * len(lost) / nics


@pytest.mark.parametrize(("ranks", "nics", "lost"), [(8, 3, {1}), (5, 4, {0, 1}), (8, 8, {0, 7})])
def test_several_degraded_ranks_are_split_off(ranks, nics, lost):
    """Two ranks that have lost the same NICs are both left out of more than these were of the whole."""
    split = choose_strategy([NONE, frozenset(lost), *[NONE] * (ranks - 3), frozenset(lost)], [25] * nics)
    (level,) = split.levels
    assert (level.degraded, level.lost, split.direct) == ((1, ranks - 1), lost, True)
    assert len(lost) / nics < level.y < 2 * len(lost) / nics


@pytest.mark.parametrize("ranks", [6, 12])
def test_degraded_ranks_that_have_lost_more_are_split_off_twice(ranks):
    """Of two ranks one has lost more: a part is reduced without both, and one without that, each by its own NICs."""
    split = choose_strategy([frozenset({0}), frozenset({0, 1}), *[NONE] * (ranks - 2)], [1] * NICS)
    assert [(level.degraded, level.lost) for level in split.levels] == [((0, 1), {0}), ((1,), {1})]
    assert sum(level.y for level in split.levels) > 0.6


def test_rank_that_has_lost_most_is_split_off_where_others_are_few():
    """Two of four ranks would give too much for both; without the one that has lost more all others go beside it."""
    split = choose_strategy([frozenset({0}), NONE, frozenset({0, 1}), NONE], [1] * NICS)
    assert [(level.degraded, level.lost) for level in split.levels] == [((2,), {1})]


def test_ranks_that_have_lost_different_nics_are_split_off_each():
    """With NICs enough, two that have lost different ones are both gone beside, each by what it has lost."""
    split = choose_strategy([NONE, frozenset({0}), NONE, NONE, NONE, frozenset({1}), NONE, NONE], [1] * 8)
    assert [(level.degraded, level.lost) for level in split.levels] == [((1,), {0}), ((5,), {1})]


def test_who_is_cut_off_by_its_neighbours_has_lost_nothing():
    """A rank between two that have lost a NIC reaches nobody by it, and has lost it only if its port is down too."""
    one = frozenset({0})
    lost = [NONE, one, one, one, NONE]
    assert agree_on_losses(lost, [NONE] * 5) == [NONE, one, NONE, one, NONE]
    assert agree_on_losses(lost, [NONE, NONE, one, NONE, NONE]) == lost


def test_ring_goes_on_as_it_is_otherwise():
    """When none has lost anything, or one all, or one of a pair, or several all but one NIC, nothing is changed."""
    one = frozenset({0})
    for lost in ([NONE] * 4, [one, one, *[NONE] * 6], [frozenset({0, 1}), NONE, NONE, NONE], [one, NONE]):
        assert choose_strategy(lost, [1, 1]) is None


def test_ring_has_another_order_where_neighbours_have_lost_different_nics():
    """Ranks that have lost different NICs are no neighbours any more."""
    assert choose_strategy([frozenset({0}), frozenset({1}), NONE, NONE], [1, 1, 1]) == ReorderedRing((0, 2, 1, 3))


def test_rates_say_how_much_is_lost():
    """A slow NIC is worth less of the array than a fast one."""
    slow, fast = (choose_strategy([frozenset({nic}), NONE, NONE, NONE], [1, 3]).levels[0] for nic in (0, 1))
    assert slow.y < 0.3
    assert fast.y > 0.7


@given(
    lost=st.lists(st.frozensets(st.integers(0, NICS - 1)), min_size=3, max_size=12),
    weights=st.lists(st.integers(1, 4), min_size=NICS, max_size=NICS),
)
def test_any_way_is_one_that_ranks_can_go(lost, weights):
    """Whatever is lost: split off are those that have lost a level's NICs, and no others; a ring has all ranks."""
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
        assert sorted(strategy.ranks) == list(range(len(lost)))
        assert poorest(strategy.ranks, lost, weights) > poorest(range(len(lost)), lost, weights)
