"""Windows of a job's hosts as they come over the bus, to a reader who may begin in the middle.

Names are in some windows only (`c4bench.wire.window_codec`). Those are also kept in a stream of their own. Who begins
in the middle reads that first: it has the names that a host's windows had when the first one was sent that is read.
"""

from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from c4bench.model.window import Window
from c4bench.wire.window_codec import EncodedWindow, WindowDecoder, from_message

UNREADABLE, FOREIGN, LOST = "unreadable window", "foreign window", "lost on the bus"
# Raised by what is no window.
_BAD = (msgspec.DecodeError, UnicodeError, RecursionError)


class _Host:
    """The decoder of a host's windows, and names that were read before and that it has not reached."""

    def __init__(self) -> None:
        self.decoder = WindowDecoder()
        self.ahead: deque[tuple[bool, EncodedWindow]] = deque()

    def advance(self, end_s: float) -> None:
        """Apply the names of windows that ended before."""
        while self.ahead and self.ahead[0][1].end_s < end_s:
            begins, window = self.ahead.popleft()
            if begins:
                self.decoder = WindowDecoder()
            self.decoder.decode(window)

    def passes(self, window: EncodedWindow) -> None:
        """A window is read, and with it its names."""
        if self.ahead and self.ahead[0][1].sequence == window.sequence:
            self.ahead.popleft()


class HostWindows:
    """Decodes the windows of all hosts of a job; `drop` is called with the host and the reason for what it loses.

    `newest` has the number of each host's newest window that was read, by an earlier reader to begin with.
    """

    def __init__(self, drop: Callable[[str, str], None], newest: Mapping[str, int]) -> None:
        self._drop = drop
        self._hosts: dict[str, _Host] = {}
        self.newest = dict(newest)

    def note_names(self, host: str, body: bytes, *, begins: bool) -> None:
        """Note a window with names, of the stream that keeps them; in that stream's order."""
        try:
            window = from_message(body)
        except _BAD:
            return
        self._hosts.setdefault(host, _Host()).ahead.append((begins, window))

    def receive(self, host: str, body: bytes, *, begins: bool = False) -> Window | None:
        """The next window of a host, which `begins` if it has all names; None if it is none of this host."""
        known = self._hosts.setdefault(host, _Host())
        try:
            encoded = from_message(body)
            if encoded.host != host:
                self._drop(host, FOREIGN)
                return None
            known.advance(encoded.end_s)
            known.passes(encoded)
            if begins:
                known.decoder = WindowDecoder()
            window = known.decoder.decode(encoded)
        except _BAD:
            self._drop(host, UNREADABLE)
            return None
        self._count_lost(host, encoded.sequence, begins=begins)
        return window

    def _count_lost(self, host: str, sequence: int, *, begins: bool) -> None:
        """Count the numbers that are missing; what was read before is read again without that."""
        before = self.newest.get(host, sequence - 1)
        for _ in range(sequence - before - 1):
            self._drop(host, LOST)
        # An agent that was restarted counts from 0 again.
        if begins or sequence > before:
            self.newest[host] = sequence
