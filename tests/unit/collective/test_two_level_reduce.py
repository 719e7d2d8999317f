"""Folding several degraded ranks' arrays into the healthy ranks' sums is exact."""

from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c4bench.collective import channel_transfer, schedule
from c4bench.collective.arrays import reducing
from c4bench.collective.channel_transfer import Ends, Memory, RegisteredArray, transfer
from c4bench.collective.memory import NicBuffer
from c4bench.collective.schedule import Sides


class End:
    """The name of an edge's end."""

    nics, paths = (0,), 1

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
        whole = RegisteredArray(self.array, {0: NicBuffer(0, 1, 1)})
        scratch = RegisteredArray(self.scratch, {0: NicBuffer(1 << 40, 2, 2)})
        part = channel_transfer.cut(segments, 8, chunk_bytes, segments)
        self.transfer = transfer(
            schedule.fold_directly(rank, sides, part.chunks),
            part,
            Memory(whole, whole, scratch, self.scratch.size // len(sides.degraded)),
            Ends(self.senders, self.receivers),
            reducing=reducing(self.array, "sum", size),
            staging_bytes=1 << 20,
            window=2,
        )
        self.receiving = {receiver: deque(arrivals) for receiver, arrivals in self.transfer.arrivals.items()}
        self.landed = dict.fromkeys(self.receiving, 0)
        (self.stream,) = self.transfer.streams
        self.sent = 0

    def memory(self, address):
        """What is at an address."""
        array, at = (self.scratch, address - (1 << 40)) if address >= 1 << 40 else (self.array, address)
        return array, at // 8

    def next(self):
        """The message whose turn it is, once what it needs has come."""
        sends = self.stream.sends
        if self.sent == len(sends) or sends[self.sent][1].needs > self.transfer.passed[sends[self.sent][1].gate]:
            return None
        self.sent += 1
        return sends[self.sent - 1]

    def use(self):
        """Use what has arrived, in order, as far as it need not wait."""
        using = True
        while using:
            using = False
            for receiver, arrivals in self.receiving.items():
                head = arrivals[0] if self.landed[receiver] else None
                if head and self.transfer.passed[head.after] >= head.needs:
                    self.landed[receiver] -= 1
                    arrivals.popleft()
                    if head.apply:
                        head.apply(head.into, head.written)
                    self.transfer.passed[head.gate] += 1
                    using = True


def deliver(ranks, source, sender, message):
    """Do what a write and its arrival do."""
    there = ranks[sender.peer]
    receiver = there.receivers[source]
    arrival = there.receiving[receiver][there.landed[receiver]]
    bytes_at = arrival.into if arrival.written is None else arrival.written
    source_array, low = ranks[source].memory(message.source[0].address + message.start)
    into, at = there.memory(there.transfer.places_for(receiver)[0][0] + message.offset)
    count = message.length // 8
    assert bytes_at.size == count
    into[at : at + count] = source_array[low : low + count]
    assert not count or np.shares_memory(bytes_at, into[at : at + count])
    there.landed[receiver] += 1
    there.use()


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
        elif idle > size and not any(rank.sent < len(rank.stream.sends) for rank in ranks):
            break
    whole = np.arange(items) * (size * (size + 1) // 2)
    for rank in ranks:
        np.testing.assert_array_equal(rank.array, whole)
        assert not any(rank.receiving.values())
