"""Sums of times that both ends of a connection can be compared by, at whatever moments each of them is read.

Sums are compared where both ends have counted equally many messages. Where something is always under way, or a job's
period is in phase with the reading of its telemetry, the newest counts of both ends never are equal. So each end keeps
its sum as of the last multiple of each of `STRIDES`, too, and a reader takes the roundest count since it read last.
Whichever stride is longer than what is counted between two readings, each of its multiples is then told by both ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

STRIDES = tuple(4**power for power in range(8))
_LEVELS = tuple(min((bits - 1) // 2, len(STRIDES) - 1) for bits in range(65))  # by the length of a difference
_MASK = (1 << 64) - 1


class LatencyMark(NamedTuple):
    """The times of the first `messages` add up to `sum_ns`, modulo 2^64."""

    messages: int
    sum_ns: int


@dataclass(slots=True)
class LatencySums:
    """Counts messages and sums up their times; `sums` has a sum in ns, modulo 2^64, for each of `STRIDES`."""

    count: int = 0
    sums: list[int] = field(default_factory=lambda: [0] * len(STRIDES))

    def add(self, now_ns: int) -> None:
        """One more message."""
        self.count += 1
        total = self.sums[0] = (self.sums[0] + now_ns) & _MASK
        level = 1
        while level < len(STRIDES) and not self.count % STRIDES[level]:
            self.sums[level] = total
            level += 1


def roundest(before: int, count: int, sums: Sequence[int]) -> LatencyMark:
    """Of the counts after `before` up to `count`, the last multiple of the longest stride that has one."""
    # The highest bit in which the two differ is the largest power of two that has a multiple among them.
    level = _LEVELS[(before ^ count).bit_length()]
    return LatencyMark(count - count % STRIDES[level], sums[level])
