"""The witness of a lowered rate: the most that passes the point within any short while.

The peak, because traffic comes and goes with the job's rhythm and its mean says nothing about the ceiling.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from c4bench.inject import nics
from c4bench.inject.drivers.netdev import limited_bps, shaper_for
from c4bench.inject.witness.base import Aftermath, Counters, Evidence, Values
from c4bench.model.fault import FaultRequest

_WINDOW_MIN_S = 1e-3
_TOLERANCE = 1.1
# So long that one burst let through at once is well inside the tolerance.
_BURSTS_PER_WINDOW = 20


class Sample(NamedTuple):
    """What passed in one window, and when the window closed (host's clock)."""

    end_s: float
    rate_bps: float


class PeakRate:
    """On the NIC's own counters; for what it receives during the fault, on the intermediate device's."""

    def __init__(self, request: FaultRequest) -> None:
        nic = request.the_nic
        self._limited_bps = limited_bps(request)
        self._counters = Counters(nic.netns)
        self._receiving = request.word("direction") == "rx"
        self._netdev, self._ifb = nic.netdev, nics.ifb_name(nics.index_of(nic))
        burst_s = shaper_for(self._limited_bps).burst_bytes * 8 / self._limited_bps
        self._window_s = max(_WINDOW_MIN_S, _BURSTS_PER_WINDOW * burst_s)
        self._windows = max(1, round(request.witness_s / self._window_s))
        self._peak_before_bps = 0.0

    def before(self) -> Values:
        """`peak_bps`: what passes in health."""
        self._peak_before_bps = self._peak(self._health())
        return {"peak_bps": self._peak_before_bps}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (the samples begin at the onset)
        """`peak_bps`, `limit_bps`; seen when traffic passed, never above the limit, and more than that before."""
        found = self._samples(self._passed if self._receiving else self._health_counter)
        peak = self._peak(found)
        first = next((sample.end_s for sample in found if sample.rate_bps > 0), None)
        seen = peak <= _TOLERANCE * self._limited_bps and self._peak_before_bps > self._limited_bps
        return Evidence({"peak_bps": peak, "limit_bps": self._limited_bps}, first if seen else None)

    def after(self) -> Aftermath:
        """`peak_bps`; above the limit is proof of recovery, below it says nothing about a job that pauses."""
        peak = self._peak(self._health())
        return Aftermath({"peak_bps": peak}, True if peak > _TOLERANCE * self._limited_bps else None)

    def _health(self) -> list[Sample]:
        return self._samples(self._health_counter)

    def _health_counter(self) -> int:
        traffic = self._counters.read(self._netdev)
        return traffic.rx_bytes if self._receiving else traffic.tx_bytes

    def _passed(self) -> int:
        return self._counters.read(self._ifb).tx_bytes

    def _samples(self, count: Callable[[], int]) -> list[Sample]:
        found = []
        last_s, last = time.monotonic(), count()
        for _ in range(self._windows):
            time.sleep(self._window_s)
            now_s, now = time.monotonic(), count()
            found.append(Sample(time.time(), (now - last) * 8 / (now_s - last_s)))
            last_s, last = now_s, now
        return found

    @staticmethod
    def _peak(samples: list[Sample]) -> float:
        return max(sample.rate_bps for sample in samples)
