"""Pace messages: bursts would build queues in which acknowledgements wait."""

from c4bench.collective.rate_control import RateControl

# As TCP does in congestion avoidance: pace a little faster than messages are acknowledged, to notice when a path gets
# faster, and smooth the round-trip time, so that a burst of acknowledgements causes no burst of messages.
_PACING_GAIN = 1.2
_SMOOTHING = 1 / 8


class Pacer:
    """Decides when messages may be posted. Times are in ns of the caller's clock.

    The limit is the NIC's rate, and little more than the path's: `window` messages for each round trip. With `control`
    it is the rate that this allows.
    """

    def __init__(self, rate_bps: float, window: int, control: RateControl | None = None) -> None:
        self._ns_per_byte = 8e9 / rate_bps
        self._control = control
        self._window = window
        self._due_ns = 0.0
        self._round_trip_ns: float | None = None

    def wait_ns(self, now_ns: int) -> int:
        """How long until the next message may be sent, 0 if now."""
        return max(0, round(self._due_ns - now_ns))

    def sent(self, size_bytes: int, now_ns: int) -> None:
        """A message has been posted."""
        gap_ns = (self._round_trip_ns or 0.0) / self._window / _PACING_GAIN
        ns_per_byte = self._ns_per_byte
        if self._control:
            ns_per_byte = 8e9 / self._control.rate_bps(now_ns)
            self._control.sent(size_bytes)
        self._due_ns = max(self._due_ns, now_ns) + max(size_bytes * ns_per_byte, gap_ns)

    def notified(self, now_ns: int) -> None:
        """Packets came marked at the receiver."""
        if self._control:
            self._control.notified(now_ns)

    def acknowledged(self, latency_ns: int) -> None:
        """A message has been acknowledged `latency_ns` after it was posted."""
        previous_ns = latency_ns if self._round_trip_ns is None else self._round_trip_ns
        self._round_trip_ns = previous_ns + (latency_ns - previous_ns) * _SMOOTHING
