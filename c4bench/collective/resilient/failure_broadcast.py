"""Word to all ranks of a communicator that something is silent somewhere.

What takes acknowledgements away, or a leaf that dies, may silence rails of ranks that are far apart. Each by itself
would notice only once it waits for them, one after another in the same operation. So whoever notices silence says so,
and all ask after their rails at the same time.
"""

from collections.abc import Callable

from c4bench.collective.resilient.messages import ControlMessage, SilenceQuery

# A rank passes no more on than that.
_EVERY_S = 1.0


class FailureBroadcast:
    """Tells the ranks 1, 2, 4, ... places further, and each of them goes on: it reaches n ranks in log n turns."""

    def __init__(self, rank: int, size: int, send: Callable[[int, ControlMessage], None]) -> None:
        self._targets = [(rank + (1 << power)) % size for power in range((size - 1).bit_length())]
        self._send = send
        self._passed_ns: int | None = None

    def announce(self, now_ns: int) -> bool:
        """Something is silent, here or elsewhere; False where that has been passed on lately, and is no news."""
        if self._passed_ns is not None and now_ns - self._passed_ns < _EVERY_S * 1e9:
            return False
        self._passed_ns = now_ns
        for rank in self._targets:
            self._send(rank, SilenceQuery())
        return True
