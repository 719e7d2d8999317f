"""Times of other hosts on our clock, and how far they may be off."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import msgspec

from c4bench.inject.protocol import Applied
from c4bench.remote.clock import ClockOffset


class Clocks:
    """The clocks of reserved hosts, as last read; a host that is not among them shares ours, as all of a lab do."""

    def __init__(self, known: Mapping[str, ClockOffset]) -> None:
        self._known = known

    def error_s(self, *hosts: str) -> float:
        """How much a time of any of these hosts, put on our clock, may be off."""
        return max((self._known.get(host, ClockOffset()).error_s for host in hosts), default=0.0)

    def ours(self, host: str, time_s: float) -> float:
        """A time that this host's clock told, on our clock."""
        return self._known.get(host, ClockOffset()).ours(time_s)

    @contextmanager
    def translated(self, fault: AbstractContextManager[Applied], host: str) -> Iterator[Applied]:
        """The fault with its times on our clock."""
        with fault as applied:
            yield on_our_clock(applied, self._known.get(host, ClockOffset()))


def on_our_clock(applied: Applied, clock: ClockOffset) -> Applied:
    """A fault whose times were the host's."""
    seen = applied.witness.observed_s
    witness = msgspec.structs.replace(applied.witness, observed_s=None if seen is None else clock.ours(seen))
    onset_s, expires_s = clock.ours(applied.onset_s), clock.ours(applied.expires_s)
    times = {"onset_s": onset_s, "expires_s": expires_s, "clock_error_s": clock.error_s}
    return msgspec.structs.replace(applied, witness=witness, **times)
