"""All-to-all by relays: a message leaves its host by the NIC on its receiver's rail (NCCL's PXN).

It goes inside the host to the rank next to that NIC, which sends what all ranks of the host have for a receiver
together, as few long messages. No message crosses from rail to rail.
"""

from functools import lru_cache

from c4bench.collective.hierarchical import Hosts
from c4bench.collective.schedule import ARRIVALS, Gate, Plan, Receive, Send


def consecutive(hosts: Hosts) -> bool:
    """Whether each host's ranks have consecutive numbers: what a host sends to a rank has one place in its array."""
    return all(sorted(ranks) == list(range(min(ranks), min(ranks) + len(ranks))) for ranks in hosts)


def row_chunks(width: int, chunks: int, block_bytes: int, chunk_bytes: int) -> int:
    """Into how many messages what a host of `width` ranks has for a rank is cut, where each block is cut in `chunks`.

    Short blocks share a message of up to `chunk_bytes`; their number divides the width.
    """
    if chunks > 1:
        return width * chunks
    fits = [parts for parts in range(1, width + 1) if not width % parts and width // parts * block_bytes <= chunk_bytes]
    return fits[0] if fits else width


@lru_cache(maxsize=256)
def all_to_all(rank: int, hosts: Hosts, chunks: int, rows: int) -> Plan:
    """A rank's part; `hosts` are `consecutive`. A block is cut in `chunks`, what a host has for a rank in `rows`.

    The scratch memory has a row for each rank of every host that this rank's rail leads to, in the order of ranks. The
    segments of relays are these rows by host, and those of the target. A rank's own block, which has come already, goes
    first.
    """
    host = next(number for number, ranks in enumerate(hosts) if rank in ranks)
    place, count = hosts[host].index(rank), len(hosts)
    first = min(hosts[host])
    far = [(host + step) % count for step in range(1, count)]
    others = [hosts[host][(place + step) % len(hosts[host])] for step in range(1, len(hosts[host]))]
    streams, receives = [], list[Receive]()
    for peer in others:
        through = hosts[host].index(peer)
        segments = [*(hosts[there][through] for there in far), peer]
        streams.append(
            tuple(Send(peer, segment, chunk, staged=False, needs=0) for segment in segments for chunk in range(chunks))
        )
    for number, peer in enumerate(sorted(others)):
        before = sorted(others)[number - 1] - first if number and rows < len(hosts[host]) else None
        receives += _from_inside(peer, peer - first, before, [(min(hosts[t]), hosts[t][place]) for t in far], chunks)
    sends = [
        Send(hosts[there][place], there, row, False, *_needs(row, rank - first, number, len(others) + 1, rows, chunks))
        for number, there in enumerate(far)
        for row in _from_own(rank, hosts[host], rows)
    ]
    streams.append(tuple(send._replace(relative=True, relayed=True) for send in sends))
    for there in reversed(far):
        receives += [
            Receive(hosts[there][place], there, row, reduce=False, final=False, relative=True, relayed=True)
            for row in _from_own(hosts[there][place], hosts[there], rows)
        ]
    return Plan(tuple(stream for stream in streams if stream), tuple(receives))


def _from_own(rank: int, ranks: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """The messages in the order in which a rank of a host sends them: from that with its own block on."""
    begin = (rank - min(ranks)) * rows // len(ranks)
    return (*range(begin, rows), *range(begin))


def _from_inside(peer: int, at: int, before: int | None, far: list[tuple[int, int]], chunks: int) -> list[Receive]:
    """What comes from a rank of the host, number `at` there: for each far host, to be passed on, and for this rank.

    Of ranks whose blocks share messages, each one's is used after that of the one before.
    """
    passed_on = [
        Receive(
            peer,
            segment,
            chunk,
            reduce=False,
            final=False,
            gate=(at,),
            after=ARRIVALS if before is None else (before,),
            needs=0 if before is None else number * chunks + chunk + 1,
            row=first + at,
        )
        for number, (first, segment) in enumerate(far)
        for chunk in range(chunks)
    ]
    return [*passed_on, *(Receive(peer, peer, chunk, reduce=False, final=False) for chunk in range(chunks))]


def _needs(row: int, own: int, number: int, width: int, rows: int, chunks: int) -> tuple[int, Gate]:
    """What message `row` to far host `number` waits for: the last of the ranks whose blocks it has."""
    if rows >= width:
        at, chunk = divmod(row, chunks)
        return (number * chunks + chunk + 1, (at,)) if at != own else (0, ARRIVALS)
    shared = width // rows
    there = [at for at in range(row * shared, (row + 1) * shared) if at != own]
    return (number + 1, (there[-1],)) if there else (0, ARRIVALS)
