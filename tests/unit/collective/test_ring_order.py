"""In which order ranks form a ring when they have lost different NICs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective.degraded import poorest, ring_order

NONE = frozenset()
NICS = 4


def sets(*lost):
    """What each rank has lost, given as strings of digits."""
    return [frozenset(map(int, each)) for each in lost]


@st.composite
def fabrics(draw):
    """Up to seven ranks, each with one NIC left at least, and NICs of unlike rates."""
    weights = draw(st.lists(st.integers(1, 4), min_size=NICS, max_size=NICS))
    some = st.frozensets(st.integers(0, NICS - 1), max_size=NICS - 1)
    return draw(st.lists(some, min_size=2, max_size=7)), weights


@pytest.mark.parametrize(
    ("lost", "order"),
    [
        (sets("", "0", "1", ""), (0, 1, 3, 2)),
        (sets("01", "23", "", ""), (0, 2, 1, 3)),
        (sets("", "01", "23", "01", ""), (0, 2, 4, 1, 3)),
    ],
)
def test_unlike_losses_are_kept_apart(lost, order):
    """Ranks that have lost nothing go between those that have lost different NICs, or the like ones go together."""
    assert ring_order(lost, [1] * NICS) == order


@pytest.mark.parametrize("lost", [sets("", "", ""), sets("", "0", ""), sets("0", "0", "", ""), sets("0", "1")])
def test_order_stays_where_nothing_is_won(lost):
    """Without losses, with one rank's alone, with like ones, and in a pair the ring stays as it is."""
    assert ring_order(lost, [1] * NICS) == tuple(range(len(lost)))


@given(fabrics())
def test_every_order_is_a_ring_and_no_worse(fabric):
    """Every rank is in it once, the same comes out each time, and the poorest pair shares no less than before."""
    lost, weights = fabric
    order = ring_order(lost, weights)
    assert sorted(order) == list(range(len(lost)))
    assert order == ring_order(list(lost), list(weights))
    assert poorest(order, lost, weights) >= poorest(range(len(lost)), lost, weights)


@given(fabrics())
def test_enough_whole_ranks_make_the_best_ring(fabric):
    """With as many ranks that have lost nothing as others, no pair is poorer than the poorest rank."""
    lost, weights = fabric
    lost = lost[: max(2, len(lost) // 2)]
    lost += [NONE] * len(lost)
    left = [sum(weights) - sum(weights[channel] for channel in each) for each in lost]
    assert poorest(ring_order(lost, weights), lost, weights) == min(left)
