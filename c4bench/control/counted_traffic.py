"""The traffic of links as the switches' counters show it, reading after reading."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from c4bench.control.paths.counting import Read
from c4bench.control.paths.switches import PortCount, carried_bytes
from c4bench.control.periodic import Periodic
from c4bench.model.fabric import LinkLoad

# Given the bytes of each link, and the seconds in which it carried them.
Ingest = Callable[[Mapping[str, int], float], Awaitable[None]]
# Between two readings, so that bytes can be divided by it.
_SHORTEST_S = 1e-3


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
