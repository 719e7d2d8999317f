"""Folding several degraded ranks' arrays into the healthy ranks' sums is exact."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective import channel_transfer, schedule
from c4bench.collective.arrays import reducing
from c4bench.collective.channel_transfer import RegisteredArray, Sides, fold_transfer
from c4bench.collective.memory import NicBuffer


class End:
    """The name of an edge's end."""

    def __init__(self, peer):
        self.peer = peer


class Rank:
    """A rank's array, its room, and its lane."""

    def __init__(self, rank, sides, items, chunk_bytes):
        size = len(sides.degraded) + len(sides.healthy)
        segments = schedule.split(items, len(sides.healthy))
        self.array = (
            np.arange(items, dtype=np.int64) * (rank + 1) if rank in sides.degraded else np.zeros(items, np.int64)
        )
        if rank in sides.healthy:
            segment = slice(*segments[sides.healthy.index(rank)])
            self.array[segment] = np.arange(items)[segment] * sum(peer + 1 for peer in sides.healthy)
        self.scratch = np.zeros(len(sides.degraded) * -(-items // len(sides.healthy)), np.int64)
        self.senders, self.receivers = ({peer: End(peer) for peer in range(size)} for _ in range(2))
        self.transfer = fold_transfer(
            rank,
            sides,
            segments,
            channel_transfer.cut(segments, 8, chunk_bytes),
            whole=RegisteredArray(self.array, {0: NicBuffer(0, 1, 1)}),
            scratch=RegisteredArray(self.scratch, {0: NicBuffer(1 << 40, 2, 2)}),
            ends=(self.senders, self.receivers),
            reducing=reducing(self.array, "sum", size),
            window=2,
        )
        self.sent = 0

    def memory(self, address):
        """What is at an address."""
        array, at = (self.scratch, address - (1 << 40)) if address >= 1 << 40 else (self.array, address)
        return array, at // 8

    def next(self):
        """The message whose turn it is, once what it needs has come."""
        if self.sent == len(self.transfer.sends) or self.transfer.sends[self.sent][1].needs > self.transfer.arrived:
            return None
        self.sent += 1
        return self.transfer.sends[self.sent - 1]


def deliver(ranks, source, sender, message):
    """Do what a write and its arrival do."""
    there = ranks[sender.peer]
    receiver = there.receivers[source]
    arrival = there.transfer.arrivals[receiver].pop(0)
    source_array, low = ranks[source].memory(message.source[0].address + message.start)
    into, at = there.memory(there.transfer.places_for(receiver)[0][0] + message.offset)
    count = message.length // 8
    assert arrival.into.size == count
    into[at : at + count] = source_array[low : low + count]
    assert not count or np.shares_memory(arrival.into, into[at : at + count])
    there.transfer.arrive(receiver, 1)


@given(data=st.data())
def test_any_fold_is_exact(data):
    """For any degraded ranks and any order of messages, all ranks get all sums and no message is left."""
    size = data.draw(st.integers(3, 7), label="ranks")
    count = data.draw(st.integers(1, size - 2), label="how many are odd")
    degraded = tuple(sorted(data.draw(st.permutations(range(size)), label="which")[:count]))
    sides = Sides(degraded, tuple(rank for rank in range(size) if rank not in degraded))
    items = data.draw(st.integers(0, 200), label="items")
    ranks = [Rank(rank, sides, items, 64) for rank in range(size)]
    order = data.draw(st.lists(st.integers(0, size - 1), max_size=200), label="turns")
    idle = 0
    for index in (*order, *list(range(size)) * 10_000):
        message = ranks[index].next()
        idle = 0 if message else idle + 1
        if message:
            deliver(ranks, index, *message)
        elif idle > size and not any(rank.sent < len(rank.transfer.sends) for rank in ranks):
            break
    whole = np.arange(items) * (size * (size + 1) // 2)
    for rank in ranks:
        np.testing.assert_array_equal(rank.array, whole)
        assert not any(rank.transfer.arrivals.values())
