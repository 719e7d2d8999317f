"""Sums of message times at both ends of a connection, whose difference is the one-way latency.

Two sums can be compared when both ends have counted equally many messages. The newest counts may never be equal, when
messages are always in flight or the job's period is in phase with the telemetry reader's. So each end also keeps its
sum as of the last multiple of each of `STRIDES`, and a reader takes the roundest count since its last reading. For any
stride longer than the number of messages between two readings, both ends then report every multiple.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

STRIDES = tuple(4**power for power in range(8))
_LEVELS = tuple(min((bits - 1) // 2, len(STRIDES) - 1) for bits in range(65))  # by the length of a difference
_MASK = (1 << 64) - 1


class LatencyMark(NamedTuple):
    """The times of the first `messages` messages sum to `sum_ns`, in ns modulo 2^64."""

    messages: int
    sum_ns: int


@dataclass(slots=True)
class LatencySums:
    """Counts messages and sums their times; `sums` has a sum in ns, modulo 2^64, for each of `STRIDES`."""

    count: int = 0
    sums: list[int] = field(default_factory=lambda: [0] * len(STRIDES))

    def add(self, now_ns: int) -> None:
        """Count one message."""
        self.count += 1
        total = self.sums[0] = (self.sums[0] + now_ns) & _MASK
        level = 1
        while level < len(STRIDES) and not self.count % STRIDES[level]:
            self.sums[level] = total
            level += 1


def roundest(before: int, count: int, sums: Sequence[int]) -> LatencyMark:
    """Among the counts after `before` up to `count`, the last multiple of the longest stride that has one."""
    # The highest bit in which the two differ is the largest power of two that has a multiple among them.
    level = _LEVELS[(before ^ count).bit_length()]
    return LatencyMark(count - count % STRIDES[level], sums[level])
