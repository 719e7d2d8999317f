"""The traffic of others: what switches have counted, less what flows of our own have carried."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from c4bench.units import FRAME_BYTES, PATH_MTU_BYTES

# Acknowledgements, grants, and bytes that one side has counted before a reading and the other after it.
_OWN_NOISE = 0.1


class Background:
    """Bytes of our own by hop, since the last reading of the switches."""

    def __init__(self) -> None:
        self._own: dict[str, float] = defaultdict(float)

    def carried(self, hops: Iterable[str], size_bytes: int) -> None:
        """A flow of ours has carried this payload over these links."""
        for hop in hops:
            self._own[hop] += size_bytes * FRAME_BYTES / PATH_MTU_BYTES

    def rates_bps(self, received_bytes: Mapping[str, int], over_s: float) -> dict[str, float]:
        """What others have sent over each link between two readings, bit/s; begins the next reading.

        Links on which that is within the noise of our own traffic are left out.
        """
        own, self._own = self._own, defaultdict(float)
        most = max(own.values(), default=0.0)
        others = {hop: count - own.get(hop, 0.0) for hop, count in received_bytes.items()}
        return {hop: rest * 8 / over_s for hop, rest in others.items() if rest > _OWN_NOISE * most and rest > 0}
