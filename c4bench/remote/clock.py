"""A host's clock against ours, by asking it the time."""

import time
from collections.abc import Callable

from c4bench.model.clocks import ClockOffset

_EXCHANGES = 8


def offset(ask: Callable[[], float], exchanges: int = _EXCHANGES) -> ClockOffset:
    """What `ask`, which reads the clock at the other end, tells of it: the exchange with the shortest round trip.

    Half that round trip bounds the error, whatever the way there and the way back take each (RFC 5905, section 8).
    """
    return min((_exchange(ask) for _ in range(exchanges)), key=lambda one: one.error_s)


def _exchange(ask: Callable[[], float]) -> ClockOffset:
    sent_s = time.time()
    theirs_s = ask()
    received_s = time.time()
    return ClockOffset(theirs_s - (sent_s + received_s) / 2, (received_s - sent_s) / 2)
