"""Pace messages: bursts would build queues in which acknowledgements wait."""

_GAIN = 1 / 256  # g: how far a notification moves alpha
_ALPHA_TIMER_NS = 55_000  # K: without a notification for so long, alpha falls
_INCREASE_TIMER_NS = 55_000  # T
_INCREASE_BYTES = 10_000_000  # B
_FAST_RECOVERY = 5  # F: steps that halve the distance to the rate before the cut
_ADDITIVE_BPS = 40e6  # R_AI
_HYPER_BPS = 400e6  # R_HAI
# A sender always probes the path with some packets.
_LEAST_SHARE = 1e-3


class RateControl:
    """The rate at which a sender may send, by notifications that its packets came marked: DCQCN's reaction point.

    Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, 3.1 ("RP Algorithm"), with the
    parameters of its section 5: each notification cuts the rate by half the estimate `alpha` of how congested the path
    is; between them the rate recovers, in steps that a timer and a byte counter set off. Times are in ns of the
    caller's clock.
    """

    def __init__(self, line_bps: float) -> None:
        self._line_bps = self._rate_bps = self._target_bps = line_bps
        self._alpha = 1.0
        self._alpha_ns = self._increase_ns = 0
        self._timer_steps = self._byte_steps = 0
        self._bytes = 0

    def notified(self, now_ns: int) -> None:
        """Packets came marked at the receiver: cut the rate."""
        self._advance(now_ns)
        self._target_bps = self._rate_bps
        self._rate_bps = max(self._rate_bps * (1 - self._alpha / 2), self._line_bps * _LEAST_SHARE)
        self._alpha = (1 - _GAIN) * self._alpha + _GAIN
        self._alpha_ns = self._increase_ns = now_ns
        self._timer_steps = self._byte_steps = self._bytes = 0

    def sent(self, size_bytes: int) -> None:
        """So many bytes are sent."""
        self._bytes += size_bytes
        while self._bytes >= _INCREASE_BYTES:
            self._bytes -= _INCREASE_BYTES
            self._byte_steps += 1
            self._increase()

    def rate_bps(self, now_ns: int) -> float:
        """The rate at which to send now, bit/s."""
        self._advance(now_ns)
        return self._rate_bps

    def _advance(self, now_ns: int) -> None:
        """Take the steps of both timers up to now."""
        falls, self._alpha_ns = _periods(self._alpha_ns, now_ns, _ALPHA_TIMER_NS)
        self._alpha *= (1 - _GAIN) ** falls
        steps, self._increase_ns = _periods(self._increase_ns, now_ns, _INCREASE_TIMER_NS)
        for _ in range(steps):
            if self._rate_bps == self._target_bps == self._line_bps:
                break
            self._timer_steps += 1
            self._increase()

    def _increase(self) -> None:
        """One step: fast recovery, then additive increase, and hyper increase once timer and bytes are past both."""
        if min(self._timer_steps, self._byte_steps) > _FAST_RECOVERY:
            hyper = min(self._timer_steps, self._byte_steps) - _FAST_RECOVERY
            self._target_bps += hyper * _HYPER_BPS
        elif max(self._timer_steps, self._byte_steps) > _FAST_RECOVERY:
            self._target_bps += _ADDITIVE_BPS
        self._target_bps = min(self._target_bps, self._line_bps)
        self._rate_bps = (self._rate_bps + self._target_bps) / 2
        if self._line_bps - self._rate_bps < 1.0:
            self._rate_bps = self._target_bps = self._line_bps


def _periods(since_ns: int, now_ns: int, period_ns: int) -> tuple[int, int]:
    """How many whole periods have passed, and when the last one ended."""
    count = max(0, now_ns - since_ns) // period_ns
    return count, since_ns + count * period_ns


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
