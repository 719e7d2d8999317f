"""How many answers to probes a switch has left for a NIC, by Linux's limits of ICMP errors. Pure.

Linux answers a prober six times at once, then once a second (`icmp_ratelimit` in Documentation/networking/ip-sysctl).
Network operating systems based on it, such as SONiC and Cumulus, do the same. ICMP errors about other packets of the
prober, such as "host unreachable", count too, and nobody here sees them.
"""

import msgspec

from c4bench.c4p.disjoint_sets import DisjointSets

_BURST = 6.0
_PER_S = 1.0


class _Bucket(msgspec.Struct):
    """A token bucket: the answers left at `at_s`, and those left `surely`, whatever silence meant."""

    left: float
    surely: float
    at_s: float

    def refill(self, now_s: float) -> None:
        """Add the answers of the time since `at_s`."""
        added = max(now_s - self.at_s, 0.0) * _PER_S
        self.left, self.surely = min(self.left + added, _BURST), min(self.surely + added, _BURST)
        self.at_s = now_s

    def merge(self, other: "_Bucket") -> None:
        """Count what was spent of another bucket too, that was refilled at the same time."""
        self.left = max(self.left + other.left - _BURST, 0.0)
        self.surely = max(self.surely + other.surely - _BURST, 0.0)


class AnswerBudget:
    """Token buckets by NIC and switch. Times are seconds on the caller's clock.

    Buckets are full at first, unless somebody else may have spent them until `spent_until_s`.
    """

    def __init__(self) -> None:
        self.spent_until_s = float("-inf")
        self._switches: DisjointSets[str] = DisjointSets()
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def regroup(self, switches: DisjointSets[str], now_s: float) -> None:
        """Count hops of one set as one switch from now on, with the answers that any of them has given."""
        self._switches = switches
        buckets, self._buckets = self._buckets, {}
        for (nic, hop), bucket in buckets.items():
            bucket.refill(now_s)
            merged = self._buckets.setdefault((nic, switches.root(hop)), bucket)
            if merged is not bucket:
                merged.merge(bucket)

    def left(self, nic: str, hop: str, now_s: float) -> float:
        """The answers that the switch of this hop has left for a NIC, if silence was not for want of answers."""
        return self._bucket(nic, hop, now_s).left

    def surely_left(self, nic: str, hop: str, now_s: float) -> float:
        """The answers that the switch of this hop has left for a NIC, even if it had none when it was in doubt."""
        return self._bucket(nic, hop, now_s).surely

    def spend(self, nic: str, hop: str, now_s: float) -> None:
        """Count one answer."""
        bucket = self._bucket(nic, hop, now_s)
        bucket.left, bucket.surely = max(bucket.left - 1, 0.0), max(bucket.surely - 1, 0.0)

    def exhaust(self, nic: str, hop: str, now_s: float) -> None:
        """Count every answer as given: the switch was silent, perhaps because of ICMP errors to others' packets."""
        bucket = self._bucket(nic, hop, now_s)
        bucket.left = bucket.surely = 0.0

    def doubt(self, nic: str, hop: str, now_s: float) -> None:
        """Note that a switch was silent which may be this one: it may have no answers left."""
        self._bucket(nic, hop, now_s).surely = 0.0

    def _bucket(self, nic: str, hop: str, now_s: float) -> _Bucket:
        left = min((now_s - self.spent_until_s) * _PER_S, _BURST)
        bucket = self._buckets.setdefault((nic, self._switches.root(hop)), _Bucket(left, left, now_s))
        bucket.refill(now_s)
        return bucket
