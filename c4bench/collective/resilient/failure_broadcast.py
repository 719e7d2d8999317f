"""Broadcast to all ranks of a communicator that a rail is silent somewhere.

A failed leaf switch, for example, may silence rails of many ranks. Each rank would notice only when it waits for its
own, one after another in the same operation. So the first rank to notice notifies all, and all probe at once.
"""

from collections.abc import Callable

from c4bench.collective.resilient.messages import ControlMessage, SilenceQuery

# A rank forwards at most one broadcast in this time.
_EVERY_S = 1.0


class FailureBroadcast:
    """Notifies the ranks at distances 1, 2, 4, ..., which forward it: n ranks are reached in log2(n) steps."""

    def __init__(self, rank: int, size: int, send: Callable[[int, ControlMessage], None]) -> None:
        self._targets = [(rank + (1 << power)) % size for power in range((size - 1).bit_length())]
        self._send = send
        self._passed_ns: int | None = None

    def announce(self, now_ns: int) -> bool:
        """Notify other ranks of silence here or elsewhere; False if this rank has done so recently."""
        if self._passed_ns is not None and now_ns - self._passed_ns < _EVERY_S * 1e9:
            return False
        self._passed_ns = now_ns
        for rank in self._targets:
            self._send(rank, SilenceQuery())
        return True
