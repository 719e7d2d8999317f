"""A window as a message to the master, which accepts messages up to a size only and closes the connection otherwise."""

import logging

import msgspec

from c4bench.model.window import HostNames, Window
from c4bench.wire.framing import MESSAGE_BYTES_MAX
from c4bench.wire.peer import encode
from c4bench.wire.window_codec import EncodedWindow, NamesChange, WindowEncoder

_logger = logging.getLogger(__name__)

# Left for what the message says around the window.
_FRAME_BYTES = 1 << 10


class WindowMessages:
    """Encodes windows; `reduced` counts those that were too large and were sent without some of their records.

    `named` is whether the newest one has names that those before do not have.
    """

    def __init__(self, at_most_bytes: int = MESSAGE_BYTES_MAX - _FRAME_BYTES) -> None:
        self._at_most_bytes = at_most_bytes
        self._encoder = WindowEncoder()
        self.reduced = 0
        self.named = False

    def begin(self) -> None:
        """A connection begins: the master knows no names."""
        self._encoder = WindowEncoder()

    def encode(self, window: Window) -> msgspec.Raw:
        """The window; where it is too large, its processes and NICs, with its communicators if these fit."""
        if (whole := self._encoded(window)) is not None:
            return whole
        if not self.reduced:
            values = (self._at_most_bytes, len(window.comms))
            _logger.warning(
                "windows of more than %d bytes are sent without operations and connections: C4D sees less of "
                "this host; use fewer of its %d communicators, or fewer ranks a host",
                *values,
            )
        self.reduced += 1
        bare = Window(window.host, window.sequence, window.start_s, window.end_s, HostNames(window.names.comms))
        bare = msgspec.structs.replace(bare, ranks=window.ranks, nics=window.nics)
        listed = self._encoded(bare)
        return listed or self._raw(self._encoder.encode(msgspec.structs.replace(bare, names=HostNames())))

    def _encoded(self, window: Window) -> msgspec.Raw | None:
        """The window if it fits; else None, and its names count as not sent."""
        encoder = self._encoder.copy()
        encoded = encoder.encode(window)
        whole = self._raw(encoded)
        if len(bytes(whole)) > self._at_most_bytes:
            return None
        self._encoder = encoder
        return whole

    def _raw(self, encoded: EncodedWindow) -> msgspec.Raw:
        self.named = encoded.names != NamesChange()
        return msgspec.Raw(encode(encoded))
