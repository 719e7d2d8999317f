"""Learns paths by the switches' packet counters, where switches do not answer probes.

Packets of one source port are sent with every TTL, equally many of each. The first link carries all of them, the next
all but those that expire before it, and so on. So the count shows a link's place in the path.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from c4bench.c4p.knowledge.atlas import Probe
from c4bench.c4p.knowledge.path_knowledge import Trace
from c4bench.c4p.knowledge.path_search import MAX_SWITCHES, PathSearch
from c4bench.control.path_survey import PathSurvey
from c4bench.control.switches import PortCount, carried_packets
from c4bench.model.fabric import Nic
from c4bench.wire.messages import Burst

# Packets of each TTL: more than the switches' own traffic, and less than a millisecond of any link.
_PACKETS = 32
_SLACK = 0.2
_COUNTED_S = 0.05

Read = Callable[[], Mapping[str, PortCount]]


async def count_paths(
    survey: PathSurvey, read: Read, search: PathSearch, nics: Mapping[str, Nic]
) -> dict[Probe, Trace]:
    """Find what a search looks for by the switches' counters, one source port at a time; `read` may block.

    A port is left out if the counts fit no path: there was other traffic, or a switch is not read.
    """
    traces: dict[Probe, Trace] = {}
    before = await asyncio.to_thread(read)
    while search.open_pairs:
        search.begin_round(time.monotonic())
        for pair, port in search.open_ports():
            bursts = [Burst(port, hops, _PACKETS) for hops in range(1, MAX_SWITCHES + 1)]
            await survey.burst((nics[pair[0]], nics[pair[1]]), bursts)
            await asyncio.sleep(_COUNTED_S)
            now = await asyncio.to_thread(read)
            search.record_path(pair, port, counted_hops(carried_packets(before, now)))
            before = now
        traces |= {probe: hops for probe, hops in search.end_round(time.monotonic()).items() if None not in hops}
    return traces


def counted_hops(carried: Mapping[str, int]) -> tuple[str, ...]:
    """The links of a path in order, from the packets that each has carried; empty if the counts do not fit a path."""
    busy = {hop: count / _PACKETS for hop, count in carried.items() if count > _PACKETS / 2}
    order = sorted(busy, key=lambda hop: -busy[hop])
    fits = all(abs(busy[hop] - (MAX_SWITCHES - place)) <= _SLACK for place, hop in enumerate(order))
    return tuple(order) if fits else ()
