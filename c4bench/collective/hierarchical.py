"""The hierarchical all-reduce of hosts whose ranks have a NIC each: inside the hosts, over rails, and inside again.

Each rank gets the sum of its host's ranks of one block of the array (reduce-scatter), the rail of its NIC sums that
over all hosts (all-reduce), and the ranks of a host exchange their blocks (all-gather). All three are rings, and a
chunk goes on to the next one at once, so the inside and the rails are busy at the same time.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from c4bench.collective.schedule import Gate, Plan, Receive, Send

# The ranks of each host, in the order of their NICs: as many on each.
Hosts = tuple[tuple[int, ...], ...]
# Into how many chunks a part is cut at least, if these are no shorter than a packet: the way of the first chunk to its
# rail and of the last one from it are short beside all of them then.
CHUNKS = 64

# Arrivals of each of the three.
_REDUCED, _SUMMED, _GATHERED = (0,), (1,), (2,)


class _Step(NamedTuple):
    """A message of a ring inside the host: step `hop` of chunk `chunk` of part number `part`."""

    part: int
    chunk: int
    hop: int


@lru_cache(maxsize=256)
def all_reduce(rank: int, hosts: Hosts, chunks: int) -> Plan:
    """A rank's part. The array has a block for each rank of a host, in which each host has a segment.

    Edges are called by the rank at the other end; the second one to or from the same rank, which the all-gather uses,
    has a number higher by the number of ranks. There are at least two hosts.
    """
    return _Place(rank, hosts, chunks).plan()


class _Place:
    """Where a rank is: the number `inside` of its host, which is number `host`."""

    def __init__(self, rank: int, hosts: Hosts, chunks: int) -> None:
        self._hosts, self._chunks = hosts, chunks
        self._host = next(number for number, ranks in enumerate(hosts) if rank in ranks)
        self._inside = hosts[self._host].index(rank)
        self._width, self._count = len(hosts[0]), len(hosts)
        self._steps = list(_steps(self._count, chunks, self._width - 1))
        self._number = {step: number for number, step in enumerate(self._steps, 1)}

    def plan(self) -> Plan:
        """All of its messages."""
        streams = [self._reduce_sends(), self._rail_sends(), self._gather_sends()]
        receives = [*self._reduce_receives(), *self._rail_receives(), *self._gather_receives()]
        return Plan(tuple(tuple(sends) for sends in streams if sends), tuple(receives))

    def _neighbour(self, distance: int, edge: int = 0) -> int:
        """The rank so far to the right inside the host."""
        size = self._width * self._count
        return self._hosts[self._host][(self._inside + distance) % self._width] + edge * size

    def _rail_neighbour(self, distance: int) -> int:
        return self._hosts[(self._host + distance) % self._count][self._inside]

    def _segment(self, block: int, host: int) -> int:
        return block % self._width * self._count + host % self._count

    def _reduced(self, part: int, chunk: int) -> int:
        """After how many arrivals inside the host a chunk of this rank's block has the values of all its ranks."""
        return self._number[_Step(part, chunk, self._width - 2)] if self._width > 1 else 0

    # The rail first sends the segment of the host on the left: parts are in that order, and the host's own is last.

    def _reduce_sends(self) -> list[Send]:
        return [
            Send(
                self._neighbour(1),
                self._segment(self._inside - 1 - step.hop, self._host - 1 - step.part),
                step.chunk,
                staged=True,
                needs=self._number[step._replace(hop=step.hop - 1)] if step.hop else 0,
                gate=_REDUCED,
            )
            for step in self._steps
        ]

    def _reduce_receives(self) -> list[Receive]:
        return [
            Receive(
                self._neighbour(-1),
                self._segment(self._inside - 2 - step.hop, self._host - 1 - step.part),
                step.chunk,
                reduce=True,
                final=False,
                gate=_REDUCED,
            )
            for step in self._steps
        ]

    def _rail_sends(self) -> list[Send]:
        """An all-reduce over the hosts' ring of one block, which begins with what the host's ranks have reduced."""
        right, rounds = self._rail_neighbour(1), self._count - 1
        own, sends = self._inside, list[Send]()
        for hop in range(rounds):
            for chunk in range(self._chunks):
                needs = (hop - 1) * self._chunks + chunk + 1 if hop else self._reduced(0, chunk)
                gate: Gate = _SUMMED if hop else _REDUCED
                sends.append(Send(right, self._segment(own, self._host - 1 - hop), chunk, True, needs, gate))
        for hop in range(rounds):
            for chunk in range(self._chunks):
                segment, needs = self._segment(own, self._host - hop), self._summed(hop, chunk)
                sends.append(Send(right, segment, chunk, staged=False, needs=needs, gate=_SUMMED))
        return sends

    def _summed(self, part: int, chunk: int) -> int:
        """After how many arrivals by the rail a chunk has the sum; part 0 is the host's own segment."""
        return (self._count - 2 + part) * self._chunks + chunk + 1

    def _rail_receives(self) -> list[Receive]:
        left, rounds, receives = self._rail_neighbour(-1), self._count - 1, list[Receive]()
        for hop in range(rounds):
            for chunk in range(self._chunks):
                segment, final = self._segment(self._inside, self._host - 2 - hop), hop == rounds - 1
                needs = self._reduced(hop + 1, chunk)
                receives.append(Receive(left, segment, chunk, True, final, _SUMMED, after=_REDUCED, needs=needs))
        for hop in range(rounds):
            segment = self._segment(self._inside, self._host - 1 - hop)
            receives += [Receive(left, segment, chunk, False, False, _SUMMED) for chunk in range(self._chunks)]
        return receives

    def _gather_sends(self) -> list[Send]:
        return [
            Send(
                self._neighbour(1, edge=1),
                self._segment(self._inside - step.hop, self._host - step.part),
                step.chunk,
                staged=False,
                needs=self._number[step._replace(hop=step.hop - 1)] if step.hop else self._summed(*step[:2]),
                gate=_GATHERED if step.hop else _SUMMED,
            )
            for step in self._steps
        ]

    def _gather_receives(self) -> list[Receive]:
        return [
            Receive(
                self._neighbour(-1, edge=1),
                self._segment(self._inside - 1 - step.hop, self._host - step.part),
                step.chunk,
                reduce=False,
                final=False,
                gate=_GATHERED,
            )
            for step in self._steps
        ]


def _steps(parts: int, chunks: int, hops: int) -> Iterator[_Step]:
    """The messages of a ring inside a host in order: a chunk's next hop is in turn with the next chunk's first."""
    order = [(part, chunk) for part in range(parts) for chunk in range(chunks)]
    for turn in range(len(order) + hops - 1 if hops else 0):
        for hop in range(hops):
            if 0 <= turn - hop < len(order):
                yield _Step(*order[turn - hop], hop)
