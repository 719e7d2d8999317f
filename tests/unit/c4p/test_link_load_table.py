"""The load of each link as flows come, move and go, by hand."""

import numpy as np
import pytest

from c4bench.c4p.placement.link_load_table import LinkLoadTable
from c4bench.c4p.placement.path_choices import EcmpGroupTable

# Two uplinks to choose from, one of which has half the rate; a link that every path crosses; and one of rate zero.
UP, SLOW, COMMON, DEAD = range(4)
WEIGHTS = np.array([1.0, 2.0, 1.0, np.inf])


@pytest.fixture
def table():
    groups = EcmpGroupTable(4)
    groups.extend([[(UP,), (SLOW,)], [(UP,), (DEAD,)]])
    return LinkLoadTable(groups, WEIGHTS, np.zeros(4))


def test_a_flow_counts_on_its_path_and_on_what_it_cannot_avoid(table):
    """Demand times weight, on the chosen link and the common one; nothing is left when the flow is gone."""
    first, second = table.add([0, 0], [3.0, 5.0], [(COMMON,), ()])
    assert table.load[:3].tolist() == [0, 0, 3]
    table.place(first, 1)
    table.place(second, 0)
    assert table.load[:4].tolist() == [5, 6, 3, np.inf]
    assert [list(table.members[link]) for link in range(4)] == [[second], [first], [], []]
    table.unplace(first)
    assert table.load[:3].tolist() == [5, 0, 3]
    table.remove(first, (COMMON,))
    table.remove(second, ())
    assert table.load[:3].tolist() == table.bps[:3].tolist() == [0, 0, 0]


def test_a_new_demand_counts_wherever_the_flow_is(table):
    """What a flow adds, it adds on its path and on its common links alike."""
    (slot,) = table.add([0], [3.0], [(COMMON,)])
    table.place(slot, 1)
    table.set_demand(slot, (COMMON,), 4.0)
    assert table.load[:3].tolist() == [0, 8, 4]
    table.remove(slot, (COMMON,))
    assert table.load[:3].tolist() == [0, 0, 0]


def test_a_link_without_capacity_is_closed_whatever_it_carries(table):
    """Its load is infinite, not undefined, with and without traffic, and reopening does not open it."""
    assert table.load[DEAD] == np.inf
    table.reopen([DEAD, UP])
    for bps in (7.0, -7.0):
        table.add_background(np.array([0.0, 0.0, 0.0, bps]))
    assert table.closed() == [DEAD]
    assert table.load[:4].tolist() == [0, 0, 0, np.inf]


def test_a_reopened_link_has_the_load_of_what_it_carries(table):
    """Traffic that changed while a link was closed counts when it is open again."""
    (slot,) = table.add([0], [3.0], [()])
    table.place(slot, 1)
    table.close([SLOW])
    table.set_demand(slot, (), 4.0)
    assert table.load[SLOW] == np.inf
    table.reopen([SLOW])
    assert table.load[SLOW] == 8


def test_a_group_is_open_while_one_path_is(table):
    """A flow has a path if one of its group's is open, and no link that it cannot avoid is closed."""
    assert table.open_links().groups == [True, True]
    table.close([UP])
    links = table.open_links()
    assert links.groups == [True, False]
    assert [links.has_path(0, ()), links.has_path(0, (COMMON,)), links.has_path(0, (UP,))] == [True, True, False]
    assert not links.has_path(1, ())
    assert not links.has_path(-1, ())


def test_slots_are_used_again(table):
    """The slot of a flow that has gone is the next one's, and room is made for any number."""
    slots = table.add([0] * 100, [1.0] * 100, [()] * 100)
    assert slots.tolist() == list(range(100))
    table.remove(int(slots[7]), ())
    assert table.add([0], [1.0], [()]).tolist() == [7]
    assert table.add([0], [1.0], [()]).tolist() == [100]


def test_moves_are_multiples_of_what_all_demands_share(table):
    """The quantum is the greatest common divisor of the demands, and 1 once a demand has changed."""
    slots = table.add([0, 0], [6e9, 4e9], [(), ()])
    assert table.quantum == 2e9
    table.place(int(slots[0]), 0)
    table.set_demand(int(slots[0]), (), 5e9)
    assert table.quantum == 1
