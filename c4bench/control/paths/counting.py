"""What the switches' counters show: the traffic of links, and paths where switches answer few probes or none.

To find a path, packets of one source port are sent with every TTL, equally many of each. The first link carries all of
them, the next all but those that expire before it, and so on. So the count shows a link's place in the path. Where all
paths of a pair are known, packets that do not expire show which of them it is.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec.structs import replace

from c4bench.c4p.knowledge.atlas import Probe
from c4bench.c4p.knowledge.leaf_groups import Pair
from c4bench.c4p.knowledge.path_knowledge import Trace
from c4bench.c4p.knowledge.path_search import MAX_SWITCHES, PathSearch
from c4bench.control.paths.survey import PathSurvey
from c4bench.control.paths.switches import PortCount, carried_bytes, carried_packets
from c4bench.errors import Periodic
from c4bench.model.fabric import LinkLoad, Nic
from c4bench.wire.probes import Burst

# Packets of each TTL: more than the switches' own traffic, and less than a millisecond of any link.
_PACKETS = 32
_TTLS = range(1, MAX_SWITCHES + 1)
# Packets that cross all of a path.
_WHOLE, _ANY_TTL = 128, 64
_SLACK = 0.2
_COUNTED_S = 0.05

# Between two readings, so that bytes can be divided by it.
_SHORTEST_S = 1e-3

Read = Callable[[], Mapping[str, PortCount]]
# Given the bytes of each link, and the seconds in which it carried them.
Ingest = Callable[[Mapping[str, int], float], Awaitable[None]]


class PathCounter:
    """Counts the path of one source port at a time; `read` reads the switches' counters and may block."""

    def __init__(self, survey: PathSurvey, read: Read, nics: Mapping[str, Nic]) -> None:
        self._survey, self._read, self._nics = survey, read, nics
        self._before: Mapping[str, PortCount] | None = None

    async def hops(self, pair: Pair, source_port: int) -> tuple[str, ...]:
        """The links between switches on a path, in order; none if the counts fit no path.

        There was other traffic then, or a switch is not read.
        """
        return counted_hops(await self._carried(pair, [Burst(source_port, ttl, _PACKETS) for ttl in _TTLS]))

    async def links(self, pair: Pair, source_port: int) -> frozenset[str]:
        """The links between switches that a path crosses. No packet expires, so that no switch spends an answer."""
        carried = await self._carried(pair, [Burst(source_port, _ANY_TTL, _WHOLE)])
        return frozenset(hop for hop, count in carried.items() if abs(count / _WHOLE - 1) <= _SLACK)

    async def _carried(self, pair: Pair, bursts: Sequence[Burst]) -> dict[str, int]:
        before = await asyncio.to_thread(self._read) if self._before is None else self._before
        await self._survey.burst((self._nics[pair[0]], self._nics[pair[1]]), bursts)
        await asyncio.sleep(_COUNTED_S)
        self._before = now = await asyncio.to_thread(self._read)
        return carried_packets(before, now)

    def forget_reading(self) -> None:
        """Others have sent packets since the last count."""
        self._before = None


async def count_paths(counter: PathCounter, search: PathSearch) -> dict[Probe, Trace]:
    """Find what a search looks for by the switches' counters alone; ports whose counts fit no path are left out."""
    traces: dict[Probe, Trace] = {}
    while search.open_pairs:
        search.begin_round(time.monotonic())
        for pair, port in search.open_ports():
            search.record_path(pair, port, await counter.hops(pair, port))
        traces |= {probe: hops for probe, hops in search.end_round(time.monotonic()).items() if None not in hops}
    return traces


def counted_hops(carried: Mapping[str, int]) -> tuple[str, ...]:
    """The links of a path in order, from the packets that each has carried; empty if the counts do not fit a path."""
    busy = {hop: count / _PACKETS for hop, count in carried.items() if count > _PACKETS / 2}
    order = sorted(busy, key=lambda hop: -busy[hop])
    fits = all(abs(busy[hop] - (MAX_SWITCHES - place)) <= _SLACK for place, hop in enumerate(order))
    return tuple(order) if fits else ()


class CountedTraffic:
    """All traffic that switches counted on each link between their last two readings."""

    def __init__(self) -> None:
        self._carried_bps: Mapping[str, float] = {}
        self._before: Mapping[str, PortCount] = {}
        self._began_s = 0.0

    async def watch(self, read: Read, every_s: float, ingest: Ingest | None = None) -> None:
        """Read the switches until cancelled. Any `ingest` is called with the bytes of each link, and their seconds."""
        self._before, self._began_s = {}, time.monotonic()
        periodic = Periodic("reading the switches' counters, without which other traffic is not seen,")

        async def look() -> None:
            await self._read(read, ingest)

        while True:
            if not await periodic.round(look):
                self._before, self._carried_bps = {}, {}
            await asyncio.sleep(every_s)

    async def _read(self, read: Read, ingest: Ingest | None) -> None:
        now, now_s = await asyncio.to_thread(read), time.monotonic()
        carried, over_s = carried_bytes(self._before, now), max(now_s - self._began_s, _SHORTEST_S)
        self._before, self._began_s = now, now_s
        self._carried_bps = {hop: 8 * count / over_s for hop, count in carried.items()}
        if carried and ingest:
            await ingest(carried, over_s)

    def beside(self, planned: Mapping[str, LinkLoad], rates_bps: Mapping[str, float]) -> dict[str, LinkLoad]:
        """The planned loads with the counted ones, and other links of known rate on which traffic was counted."""
        counted = [hop for hop, bps in self._carried_bps.items() if bps and hop in rates_bps]
        others = {hop: LinkLoad(0.0, 0, rates_bps[hop]) for hop in counted}
        loads = others | dict(planned)
        return {hop: replace(load, carried_bps=self._carried_bps.get(hop)) for hop, load in loads.items()}
