"""How many answers to probes a switch has left for a NIC, by Linux's limits of ICMP errors. Pure.

Linux answers a prober six times at once, then once a second (`icmp_ratelimit` in Documentation/networking/ip-sysctl).
Network operating systems based on it, such as SONiC and Cumulus, do the same.
"""

from collections.abc import Callable, Hashable

import msgspec

_BURST = 6.0
_PER_S = 1.0


class _Bucket(msgspec.Struct):
    """A token bucket: the answers left at `at_s`."""

    left: float
    at_s: float


class AnswerBudget:
    """Token buckets by NIC and switch; `switch_of` is the switch of a hop. Times are seconds on the caller's clock.

    Buckets are full at first, unless somebody else may have spent them until `spent_until_s`.
    """

    def __init__(self, switch_of: Callable[[str], Hashable]) -> None:
        self.spent_until_s = float("-inf")
        self._switch_of = switch_of
        self._buckets: dict[tuple[str, Hashable], _Bucket] = {}

    def left(self, nic: str, hop: str, now_s: float) -> float:
        """The answers that the switch of this hop has left for a NIC."""
        return self._bucket(nic, hop, now_s).left

    def spend(self, nic: str, hop: str, now_s: float) -> None:
        """Count one answer."""
        bucket = self._bucket(nic, hop, now_s)
        bucket.left = max(bucket.left - 1, 0.0)

    def _bucket(self, nic: str, hop: str, now_s: float) -> _Bucket:
        first = _Bucket(min((now_s - self.spent_until_s) * _PER_S, _BURST), now_s)
        bucket = self._buckets.setdefault((nic, self._switch_of(hop)), first)
        bucket.left = min(bucket.left + max(now_s - bucket.at_s, 0.0) * _PER_S, _BURST)
        bucket.at_s = now_s
        return bucket
