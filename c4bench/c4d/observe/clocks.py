"""Host clocks against the master's: the one-way minimum filter of NTP (RFC 5905, section 10)."""

from collections import defaultdict, deque

# Windows of a host whose least difference counts: enough to have met no delay, few enough to follow a stepped clock.
_SAMPLES = 16
# Windows of a host follow each other; a clock is slewed by less than this between two of them.
_OVERLAP_S = 0.01


class HostClocks:
    """Translates a host's times to the master's clock.

    A window that ends at `end_s` on the host is seen at `now_s` by the master; the smallest difference of the last few
    windows is the offset plus the shortest delay. Only the last few count, so a stepped clock is followed. One that was
    set back is followed at once, if a window begins before the last one has ended.
    """

    def __init__(self) -> None:
        self._samples: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_SAMPLES))
        self._end_s: dict[str, float] = {}
        self._cadence_s: dict[str, float] = {}
        self._offset_s: dict[str, float] = {}
        self._unseen: set[str] = set()

    def arrived(self, host: str, start_s: float, end_s: float) -> None:
        """A window of `host` covering `start_s` to `end_s` on its own clock has come in."""
        if start_s < self._end_s.get(host, start_s) - _OVERLAP_S:
            self._samples[host].clear()
        self._end_s[host] = end_s
        self._cadence_s[host] = end_s - start_s
        self._unseen.add(host)

    def observe(self, now_s: float) -> None:
        """It is `now_s` on the master's clock: pair it with what arrived since the last call."""
        for host in self._unseen:
            samples = self._samples[host]
            samples.append(now_s - self._end_s[host])
            self._offset_s[host] = min(samples)
        self._unseen.clear()

    def offset_s(self, host: str) -> float:
        """What to add to a time of `host` to have it on the master's clock; 0 for a host never observed."""
        return self._offset_s.get(host, 0.0)

    def last_heard_s(self, host: str) -> float:
        """End of the latest window of `host`, on the master's clock; minus infinity when there was none."""
        return self._end_s.get(host, -float("inf")) + self.offset_s(host)

    def latest_heard_s(self) -> float:
        """End of the latest window of any host, on the master's clock; minus infinity before the first."""
        return max(map(self.last_heard_s, self._end_s), default=-float("inf"))

    def cadence_s(self) -> float:
        """The longest interval that any host's latest window covers; 0 before the first window."""
        return max(self._cadence_s.values(), default=0.0)
