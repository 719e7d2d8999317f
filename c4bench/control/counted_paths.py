"""Paths by the switches' own count, for fabrics whose switches answer no probes (ICMP is filtered).

Packets of one source port are sent with every number of hops they may go, equally many of each. The first link carries
all of them, the next all but those that end before it, and so on: what a link has carried tells its place on the path.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from c4bench.c4p.atlas import Probe
from c4bench.c4p.path_knowledge import Trace
from c4bench.control.path_survey import Pair, PathSurvey
from c4bench.control.switches import PortCount, carried_packets
from c4bench.wire.messages import Burst

_MOST_HOPS = 6
# Enough to stand out from the switches' own chatter, and below a millisecond of any link.
_PACKETS = 32
_SLACK = 0.2
_COUNTED_S = 0.05

Read = Callable[[], Mapping[str, PortCount]]


async def counted(
    survey: PathSurvey, read: Read, pairs: Sequence[Pair], source_ports: Sequence[int]
) -> dict[Probe, Trace]:
    """The traces of all source ports of these pairs, one after the other; `read` may block.

    A port whose packets were not counted as above is left out: other traffic was in the way, or a switch is not read.
    """
    found: dict[Probe, Trace] = {}
    before = await asyncio.to_thread(read)
    for pair in pairs:
        source, destination = pair
        for port in source_ports:
            await survey.burst(pair, [Burst(port, hops, _PACKETS) for hops in range(1, _MOST_HOPS + 1)])
            await asyncio.sleep(_COUNTED_S)
            now = await asyncio.to_thread(read)
            if hops := in_order(carried_packets(before, now)):
                found[source.name, destination.name, port] = (*hops, destination.address)
            before = now
    return found


def in_order(carried: Mapping[str, int]) -> tuple[str, ...]:
    """The links that have carried so much, from the first on; none where the counts do not fit a path."""
    busy = {hop: count / _PACKETS for hop, count in carried.items() if count > _PACKETS / 2}
    order = sorted(busy, key=lambda hop: -busy[hop])
    fits = all(abs(busy[hop] - (_MOST_HOPS - place)) <= _SLACK for place, hop in enumerate(order))
    return tuple(order) if fits else ()
