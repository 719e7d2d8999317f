"""What comes off the bus is decoded here, and nowhere else: what cannot be used is left out, counted, and said once."""

import gc
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from c4bench.budget import BUS_MESSAGE, Account, Budget, OverBudgetError
from c4bench.decoding import DecodingError, decoding
from c4bench.wire.window_codec import EncodedWindow, from_message

T = TypeVar("T")
_logger = logging.getLogger(__name__)

# What is left out is counted under this name where hosts have theirs: no host is called so.
SOURCE = "bus"
# No count is larger (integers that every JSON reader has exactly), and no clock shows more (s).
COUNT_AT_MOST, TIME_AT_MOST_S = 1 << 53, 1e11


class MessageKind(NamedTuple, Generic[T]):
    """What a message should be, in words, what decodes it and raises DecodingError, and how much it may bring."""

    name: str
    decode: Callable[[bytes], T]
    budget: Budget = BUS_MESSAGE


class Incoming:
    """Decodes what comes over one connection. `left_out` counts what could not be used, by what it should have been."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()

    def decoded(self, kind: MessageKind[T], subject: str, body: bytes) -> T | None:
        """What a message says; None if it cannot be used."""
        return self.used(kind.name, subject, lambda: decoded(kind, body))

    def used(self, what: str, subject: str, read: Callable[[], T]) -> T | None:
        """What `read` returns; None if it raises DecodingError or OverBudgetError for a message on this subject."""
        try:
            return read()
        except (DecodingError, OverBudgetError) as error:
            reason = f"unreadable {what}"
            self.left_out[reason] += 1
            if self.left_out[reason] == 1:
                _logger.warning(
                    "bus: %s is no %s, and is left out (%s); further ones are only counted, as %r",
                    *(subject, what, error, reason),
                )
            return None


def decoded(kind: MessageKind[T], body: bytes) -> T:
    """What a message says. Raises DecodingError, or OverBudgetError where it is too large."""
    Account(f"a {kind.name}", kind.budget).spend(bytes=len(body))
    with _without_collection(), decoding():
        return kind.decode(body)


def window(body: bytes) -> EncodedWindow:
    """A host's window, whose numbers are such as an agent counts and a clock shows. Raises as `decoded`."""
    found = decoded(_WINDOW, body)
    if not 0 <= found.sequence <= COUNT_AT_MOST:
        raise DecodingError(f"window number {found.sequence:.3g}, where agents count from 0")
    check_times((found.start_s, found.end_s))
    return found


def check_times(times_s: Iterable[float]) -> None:
    """Raises DecodingError for what no clock shows."""
    for time_s in times_s:
        if not 0 <= time_s <= TIME_AT_MOST_S:
            raise DecodingError(f"a time of {time_s:g} s")


def check_rates(rates_bps: Iterable[float]) -> None:
    """Raises DecodingError for what is no rate (bit/s)."""
    for rate_bps in rates_bps:
        if not (math.isfinite(rate_bps) and rate_bps >= 0):
            raise DecodingError(f"a rate of {rate_bps:g} bit/s")


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage in the block: of hundreds of thousands of new records none is, and looking takes 4/5."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


_WINDOW = MessageKind("window", from_message)
