"""Intermittent stragglers: always the same rank is late, in some operations only.

Uneven work, garbage collection and slow reads hit all ranks alike. If one rank has so many episodes that chance would
give them to it less than once in ten million, that rank is the cause. The whole job's episodes are counted together,
as a group of a few ranks would need many more.

Lateness in consecutive operations is one episode; what outlasts any benign stall begins another.
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping

from c4bench.c4d.columns import Ints
from c4bench.c4d.thresholds import CHANCE
from c4bench.chance import binomial_tail

# The latest episodes are enough to tell one member from all others.
_EPISODES = 64
# Episodes older than this, in operations of all members, say nothing about the present.
_MEMORY_OPS = 512
# A named member that was not late in so many operations of all members has recovered.
_WELL_OPS = 64


class IntermittentStragglers:
    """Counts the episodes of lateness of each of a job's members."""

    def __init__(self) -> None:
        self._members: set[int] = set()
        self._episodes: deque[tuple[int, float]] = deque(maxlen=_EPISODES)
        # Since when (s) those are late that were in their last operation.
        self._late: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._ops = 0.0

    @property
    def standing(self) -> frozenset[int]:
        """Named members that have been late again recently."""
        return frozenset(self._last)

    def evaluate(
        self, late: Mapping[int, tuple[float, float]], members: Collection[int], stall_s: float
    ) -> dict[int, int]:
        """Add an operation of these members; return those newly found with their number of episodes.

        Of those that were late it is known since when they had computed, and when they came (s). No benign stall lasts
        longer than `stall_s`.
        """
        self._members.update(members)
        self._ops += len(members) / len(self._members)
        began = {
            rank: since_s for rank, (since_s, at_s) in late.items() if at_s - self._late.get(rank, -math.inf) > stall_s
        }
        kept = {rank: since_s for rank, since_s in self._late.items() if rank in late or rank not in members}
        self._late = kept | began
        self._last = {rank: last for rank, last in self._last.items() if self._ops - last < _WELL_OPS}
        for member in began:
            if member in self._last:
                self._last[member] = self._ops
            else:
                self._episodes.append((member, self._ops))
        return self._beyond_chance() if began else {}

    def skip(self, members: Ints) -> None:
        """Add operations in which nobody was late, of members known before; shape (operations, members)."""
        if self._late:
            for op in members.tolist():
                self.evaluate({}, op, math.inf)
        elif members.size:
            self._ops += members.size / len(self._members)
            self._last = {rank: last for rank, last in self._last.items() if self._ops - last < _WELL_OPS}

    def _beyond_chance(self) -> dict[int, int]:
        while self._episodes and self._ops - self._episodes[0][1] > _MEMORY_OPS:
            self._episodes.popleft()
        counts = Counter(member for member, _ in self._episodes)
        total = counts.total()
        beyond = {rank: count for rank, count in counts.items() if self._by_chance(count, total) < CHANCE}
        self._last.update(dict.fromkeys(beyond, self._ops))
        self._episodes = deque((e for e in self._episodes if e[0] not in beyond), maxlen=_EPISODES)
        return beyond

    def _by_chance(self, count: int, total: int) -> float:
        """The probability that some member has `count` or more of `total` episodes that hit all alike."""
        members = len(self._members)
        return members * binomial_tail(count, total, 1 / members)
