"""The witness of lost packets: how many passed the point on its interface counters, and how many its queue dropped."""

import json
import math
import time
from typing import NamedTuple

from c4bench.inject import nics
from c4bench.inject.actions import run
from c4bench.inject.witness.base import Aftermath, Counters, Evidence, Values, wait_until
from c4bench.model.fault import FaultRequest

_POLL_S = 5e-3
# Standard deviations of a binomial count that chance is allowed.
_SIGMAS = 4.0


class Count(NamedTuple):
    """Packets since the fault began."""

    passed: int
    dropped: int


class PacketLoss:
    """For a black hole the probability is one: then nothing at all may pass."""

    def __init__(self, request: FaultRequest) -> None:
        nic = self._nic = request.the_nic
        self._receiving = request.word("direction") == "rx"
        self._point = nics.ifb_name(nics.index_of(nic)) if self._receiving else nic.netdev
        self._probability = float(request.parameters.get("probability", 1.0))
        self._look_s = request.witness_s
        self._counters = Counters(nic.netns)
        self._passed_before = 0

    def before(self) -> Values:
        """`passed`: packets in the look."""
        self._passed_before = self._healthy_look()
        return {"passed": float(self._passed_before)}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (the counts begin at the onset)
        """`passed` and `dropped` packets; seen when about as many as asked for were dropped, and some passed before."""
        base = self._counters.read(self._point).tx_packets
        end_s = time.monotonic() + self._look_s
        observed_s = wait_until(lambda: self._dropped() > 0, self._look_s, _POLL_S)
        time.sleep(max(0.0, end_s - time.monotonic()))
        count = Count(self._counters.read(self._point).tx_packets - base, self._dropped())
        seen = self._passed_before > 0 and plausible(count, self._probability)
        return Evidence({"passed": count.passed, "dropped": count.dropped}, observed_s if seen else None)

    def after(self) -> Aftermath:
        """`passed`; some is proof that a black hole is gone, none says nothing."""
        passed = self._healthy_look()
        return Aftermath({"passed": passed}, True if passed and self._probability == 1.0 else None)

    def _healthy_look(self) -> int:
        base = self._healthy_packets()
        time.sleep(self._look_s)
        return self._healthy_packets() - base

    def _healthy_packets(self) -> int:
        traffic = self._counters.read(self._nic.netdev)
        return traffic.rx_packets if self._receiving else traffic.tx_packets

    def _dropped(self) -> int:
        text = run(("tc", "-statistics", "-json", "qdisc", "show", "dev", self._point), self._nic.netns)
        return sum(qdisc["drops"] for qdisc in json.loads(text) if qdisc["kind"] == "netem")


def plausible(count: Count, probability: float) -> bool:
    """Whether losing each packet with `probability` explains the count; never for a count without losses."""
    total = count.passed + count.dropped
    spread = _SIGMAS * math.sqrt(total * probability * (1 - probability))
    return count.dropped > 0 and abs(count.dropped - total * probability) <= spread
