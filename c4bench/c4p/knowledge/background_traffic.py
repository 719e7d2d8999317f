"""The traffic of others: what switches have counted, less what C4P's own flows have carried."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from c4bench.units import FRAME_BYTES, PATH_MTU_BYTES

# Fraction of the most loaded link's own bytes. Less than this is acknowledgements, grants, and bytes that one side has
# counted before a reading and the other after it.
_OWN_NOISE = 0.1


class BackgroundTraffic:
    """Bytes that C4P's flows have sent over each hop since the last reading of the switches."""

    def __init__(self) -> None:
        self._own: dict[str, float] = defaultdict(float)

    def add_own(self, hops: Iterable[str], size_bytes: int) -> None:
        """Count payload of an own flow on the links of its path; headers are added."""
        for hop in hops:
            self._own[hop] += size_bytes * FRAME_BYTES / PATH_MTU_BYTES

    def rates_bps(self, received_bytes: Mapping[str, int], over_s: float) -> dict[str, float]:
        """The traffic of others on each link between two readings, bit/s; begins the next reading.

        `received_bytes` are what ports received in `over_s` seconds. Links with less than the noise are left out.
        """
        own, self._own = self._own, defaultdict(float)
        largest = max(own.values(), default=0.0)
        others = {hop: count - own.get(hop, 0.0) for hop, count in received_bytes.items()}
        return {hop: rest * 8 / over_s for hop, rest in others.items() if rest > _OWN_NOISE * largest and rest > 0}
