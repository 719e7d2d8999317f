"""How fast messages may follow each other: posted in bursts they make queues in which acknowledgements wait."""

# A little faster than messages are acknowledged, so that a path that has become faster is noticed, and no burst follows
# acknowledgements that come in one. Both as TCP has it: pacing while it avoids congestion, and the smoothed round trip.
_AHEAD = 1.2
_SMOOTHING = 1 / 8


class Pacer:
    """When messages may be posted; times in ns of the caller's clock.

    No faster than the NIC sends, and hardly faster than the path carries: `window` messages in the time that one takes
    to be acknowledged.
    """

    def __init__(self, rate_bps: float, window: int) -> None:
        self._ns_per_byte = 8e9 / rate_bps
        self._window = window
        self._due_ns = 0.0
        self._round_trip_ns: float | None = None

    def wait_ns(self, now_ns: int) -> int:
        """How long until the next message may go; 0 when it may."""
        return max(0, round(self._due_ns - now_ns))

    def took(self, size_bytes: int, now_ns: int) -> None:
        """A message has gone."""
        apart_ns = (self._round_trip_ns or 0.0) / self._window / _AHEAD
        self._due_ns = max(self._due_ns, now_ns) + max(size_bytes * self._ns_per_byte, apart_ns)

    def acknowledged(self, took_ns: int) -> None:
        """A message has been acknowledged, so long after it was posted."""
        usual_ns = took_ns if self._round_trip_ns is None else self._round_trip_ns
        self._round_trip_ns = usual_ns + (took_ns - usual_ns) * _SMOOTHING
