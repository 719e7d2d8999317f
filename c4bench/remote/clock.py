"""The offset of a host's clock from ours."""

import time
from collections.abc import Callable

from c4bench.model.clocks import ClockOffset

_EXCHANGES = 8


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
