"""The offset of a host's clock from ours."""

import time
from collections.abc import Callable

import msgspec

_EXCHANGES = 8


class ClockOffset(msgspec.Struct, frozen=True):
    """A host's clock against ours: it reads `offset_s` more than ours does, give or take `error_s`."""

    offset_s: float = 0.0
    error_s: float = 0.0

    def ours(self, time_s: float) -> float:
        """A time of that clock on ours; unchanged where the exchange cannot tell the two apart."""
        return time_s if abs(self.offset_s) <= self.error_s else time_s - self.offset_s


def offset(ask: Callable[[], float], exchanges: int = _EXCHANGES) -> ClockOffset:
    """The offset of the clock that `ask` reads, from the exchange with the shortest round trip.

    Half of that round trip bounds the error, however asymmetric the delays are (RFC 5905, section 8).
    """
    return min((_exchange(ask) for _ in range(exchanges)), key=lambda one: one.error_s)


def _exchange(ask: Callable[[], float]) -> ClockOffset:
    sent_s = time.time()
    theirs_s = ask()
    received_s = time.time()
    return ClockOffset(theirs_s - (sent_s + received_s) / 2, (received_s - sent_s) / 2)
