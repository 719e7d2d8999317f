"""What several degraded ranks hold is folded into what the others have reduced, chunk by chunk and exactly."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective import schedule, transfer_plan
from c4bench.collective.arrays import reducing
from c4bench.collective.transfer_plan import Place
from c4bench.collective.two_level_reduce import Held, Sides, fold_transfer


class End:
    """The name of an edge's end."""

    def __init__(self, peer):
        self.peer = peer


class Rank:
    """A rank's array, its room, and its lane."""

    def __init__(self, rank, sides, items, chunk_bytes):
        size = len(sides.odds) + len(sides.evens)
        homes = schedule.split(items, len(sides.evens))
        self.array = np.arange(items, dtype=np.int64) * (rank + 1) if rank in sides.odds else np.zeros(items, np.int64)
        if rank in sides.evens:
            home = slice(*homes[sides.evens.index(rank)])
            self.array[home] = np.arange(items)[home] * sum(even + 1 for even in sides.evens)
        self.spare = np.zeros(len(sides.odds) * -(-items // len(sides.evens)), np.int64)
        self.outlets, self.inlets = ({peer: End(peer) for peer in range(size)} for _ in range(2))
        self.lane = fold_transfer(
            rank,
            sides,
            homes,
            transfer_plan.cut(homes, 8, chunk_bytes),
            held=Held(self.array, Place(0, 1, 1)),
            spare=Held(self.spare, Place(1 << 40, 2, 2)),
            ends=(self.outlets, self.inlets),
            reducing=reducing(self.array, "sum", size),
            window=2,
        )
        self.sent = 0

    def memory(self, address):
        """What is at an address."""
        array, at = (self.spare, address - (1 << 40)) if address >= 1 << 40 else (self.array, address)
        return array, at // 8

    def next(self):
        """The message whose turn it is, once what it needs has come."""
        if self.sent == len(self.lane.sends) or self.lane.sends[self.sent][1].needs > self.lane.arrived:
            return None
        self.sent += 1
        return self.lane.sends[self.sent - 1]


def deliver(ranks, source, outlet, message):
    """Do what a write and its arrival do."""
    there = ranks[outlet.peer]
    inlet = there.inlets[source]
    arrival = there.lane.arrivals[inlet].pop(0)
    given, low = ranks[source].memory(message.address)
    into, at = there.memory(there.lane.targets[inlet][0] + message.offset)
    count = message.length // 8
    assert arrival.into.size == count
    into[at : at + count] = given[low : low + count]
    assert not count or np.shares_memory(arrival.into, into[at : at + count])
    there.lane.arrive(inlet, 1)


@given(data=st.data())
def test_any_fold_is_exact(data):
    """Whichever ranks are odd, and in whatever order messages come, everybody has every sum and nothing is left."""
    size = data.draw(st.integers(3, 7), label="ranks")
    count = data.draw(st.integers(1, size - 2), label="how many are odd")
    odds = tuple(sorted(data.draw(st.permutations(range(size)), label="which")[:count]))
    sides = Sides(odds, tuple(rank for rank in range(size) if rank not in odds))
    items = data.draw(st.integers(0, 200), label="items")
    ranks = [Rank(rank, sides, items, 64) for rank in range(size)]
    turns = data.draw(st.lists(st.integers(0, size - 1), max_size=200), label="turns")
    idle = 0
    for turn in (*turns, *list(range(size)) * 10_000):
        found = ranks[turn].next()
        idle = 0 if found else idle + 1
        if found:
            deliver(ranks, turn, *found)
        elif idle > size and not any(rank.sent < len(rank.lane.sends) for rank in ranks):
            break
    whole = np.arange(items) * (size * (size + 1) // 2)
    for rank in ranks:
        np.testing.assert_array_equal(rank.array, whole)
        assert not any(rank.lane.arrivals.values())
