"""A window as a message to the master, which accepts messages up to a size only and closes the connection otherwise."""

import logging

import msgspec

from c4bench.model.telemetry import Window
from c4bench.wire.channel import MESSAGE_BYTES_MAX
from c4bench.wire.peer import encode

_logger = logging.getLogger(__name__)

# Left for what the message says around the window.
_FRAME_BYTES = 1 << 10


class WindowMessages:
    """Encodes windows; `reduced` counts those that were too large and were sent without some of their records."""

    def __init__(self, at_most_bytes: int = MESSAGE_BYTES_MAX - _FRAME_BYTES) -> None:
        self._at_most_bytes = at_most_bytes
        self.reduced = 0

    def encode(self, window: Window) -> msgspec.Raw:
        """The window; where it is too large, its processes and NICs, with its communicators if these fit."""
        whole = encode(window)
        if len(whole) <= self._at_most_bytes:
            return msgspec.Raw(whole)
        if not self.reduced:
            values = (len(whole), self._at_most_bytes, len({comm.comm for comm in window.comms}))
            _logger.warning(
                "windows of %d bytes are more than %d, and are sent without operations and connections: C4D sees less "
                "of this host; use fewer of its %d communicators, or fewer ranks a host",
                *values,
            )
        self.reduced += 1
        bare = msgspec.structs.replace(window, ops=(), conns=(), arrivals=())
        listed = encode(bare)
        return msgspec.Raw(
            listed if len(listed) <= self._at_most_bytes else encode(msgspec.structs.replace(bare, comms=()))
        )
