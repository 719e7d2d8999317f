"""Windows of a job's hosts as they come over the bus, to a reader who may begin in the middle.

Names are in some windows only (`c4bench.wire.window_codec`). Those are also kept in a stream of their own. Who begins
in the middle reads that first: it has the names that a host's windows had when the first one was sent that is read.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from c4bench.budget import JOB, OverBudgetError
from c4bench.bus import incoming
from c4bench.decoding import DecodingError, decoding
from c4bench.model.window import Window
from c4bench.wire.window_codec import EncodedWindow, WindowDecoder

UNREADABLE, FOREIGN, LOST = "unreadable window", "foreign window", "lost on the bus"
_BAD = (DecodingError, OverBudgetError)


class _Named(NamedTuple):
    """A window's names: whether it has all of its host, the window without tables, and how many bytes it had."""

    begins: bool
    window: EncodedWindow
    size_bytes: int


class _Host:
    """The decoder of a host's windows, and names that were read before and that it has not reached."""

    def __init__(self) -> None:
        self.decoder = WindowDecoder()
        self.ahead: deque[_Named] = deque()
        self._ahead_bytes = 0

    def note(self, named: _Named) -> None:
        """Note names; of more than a job may bring, the oldest go."""
        self.ahead.append(named)
        self._ahead_bytes += named.size_bytes
        while self._ahead_bytes > JOB.bytes:
            self._next()

    def _next(self) -> _Named:
        named = self.ahead.popleft()
        self._ahead_bytes -= named.size_bytes
        return named

    def advance(self, end_s: float) -> None:
        """Apply the names of windows that ended before."""
        while self.ahead and self.ahead[0].window.end_s < end_s:
            named = self._next()
            if named.begins:
                self.decoder = WindowDecoder()
            self.decoder.decode(named.window)

    def passes(self, window: EncodedWindow) -> None:
        """A window is read, and with it its names."""
        if self.ahead and self.ahead[0].window.sequence == window.sequence:
            self._next()


class HostWindows:
    """Decodes the windows of a job's `hosts`; `drop` is called with the host, the reason and how many it loses.

    `newest` has the number of each host's newest window that was read, by an earlier reader to begin with.
    """

    def __init__(
        self, hosts: Collection[str], drop: Callable[[str, str, int], None], newest: Mapping[str, int]
    ) -> None:
        self._drop = drop
        self._hosts = {host: _Host() for host in hosts}
        self.newest = {host: number for host, number in newest.items() if host in self._hosts}

    def note_names(self, host: str, body: bytes, *, begins: bool) -> None:
        """Note a window with names, of the stream that keeps them; in that stream's order."""
        if (known := self._hosts.get(host)) is None:
            return
        try:
            window = incoming.window(body)
        except _BAD:
            return
        bare = msgspec.structs.replace(window, op_table=b"", awaits=b"", conn_table=b"", arrival_table=b"")
        known.note(_Named(begins, bare, len(body)))

    def receive(self, host: str, body: bytes, *, begins: bool = False) -> Window | None:
        """The next window of a host, which `begins` if it has all names; None if it is none of this host."""
        if (known := self._hosts.get(host)) is None:
            self._drop(host, FOREIGN, 1)
            return None
        try:
            encoded = incoming.window(body)
            if encoded.host != host:
                self._drop(host, FOREIGN, 1)
                return None
            with decoding():
                window = _decoded(known, encoded, begins=begins)
        except _BAD:
            self._drop(host, UNREADABLE, 1)
            return None
        self._count_lost(host, encoded.sequence, begins=begins)
        return window

    def _count_lost(self, host: str, sequence: int, *, begins: bool) -> None:
        """Count the numbers that are missing; what was read before is read again without that."""
        lost = sequence - self.newest.get(host, sequence - 1) - 1
        if lost > 0:
            self._drop(host, LOST, lost)
        # An agent that was restarted counts from 0 again.
        if begins or lost >= 0:
            self.newest[host] = sequence


def _decoded(known: _Host, encoded: EncodedWindow, *, begins: bool) -> Window:
    """The window with the names that its host has sent before, or only its own where it `begins`."""
    known.advance(encoded.end_s)
    known.passes(encoded)
    if begins:
        known.decoder = WindowDecoder()
    return known.decoder.decode(encoded)
