"""The traffic of links as the switches' counters show it, reading after reading."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from c4bench.control.path_counting import Read
from c4bench.control.switches import PortCount, carried_bytes
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import LinkLoad

_logger = logging.getLogger(__name__)


class CountedTraffic:
    """All traffic that switches counted on each link between their last two readings."""

    def __init__(self) -> None:
        self._carried_bps: Mapping[str, float] = {}

    async def watch(
        self, read: Read, every_s: float, ingest: Callable[[Mapping[str, int], float], Awaitable[None]] | None = None
    ) -> None:
        """Read the switches until cancelled. Any `ingest` is called with the bytes of each link, and their seconds."""
        before: Mapping[str, PortCount] = {}
        began_s = time.monotonic()
        while True:
            try:
                now, now_s = await asyncio.to_thread(read), time.monotonic()
            except UnhealthyError as error:
                _logger.warning("the switches' counters cannot be read, and other traffic is not seen: %s", error)
                now, now_s = {}, time.monotonic()
            carried, over_s = carried_bytes(before, now), now_s - began_s
            self._carried_bps = {hop: 8 * count / over_s for hop, count in carried.items()}
            if carried and ingest:
                await ingest(carried, over_s)
            before, began_s = now, now_s
            await asyncio.sleep(every_s)

    def beside(self, planned: Mapping[str, LinkLoad], rates_bps: Mapping[str, float]) -> dict[str, LinkLoad]:
        """The planned loads with the counted ones, and other links of known rate on which traffic was counted."""
        counted = [hop for hop, bps in self._carried_bps.items() if bps and hop in rates_bps]
        others = {hop: LinkLoad(0.0, 0, rates_bps[hop]) for hop in counted}
        loads = others | dict(planned)
        return {hop: replace(load, carried_bps=self._carried_bps.get(hop)) for hop, load in loads.items()}
