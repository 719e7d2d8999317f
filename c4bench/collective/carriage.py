"""How much of an array each channel carries, and in which pieces."""

from collections.abc import Sequence
from typing import NamedTuple

from c4bench.collective import lanes
from c4bench.collective.lanes import Cut
from c4bench.collective.memory import Array
from c4bench.collective.schedule import Span

# Below this size a channel's share is not worth its messages.
_LANE_BYTES = 64 << 10


class Carriage(NamedTuple):
    """By channels in proportion to `weights`, 0 spares one, in messages up to `chunk_bytes`."""

    weights: tuple[int, ...]
    chunk_bytes: int

    def by(self, channels: frozenset[int]) -> "Carriage":
        """The same by some of its channels only."""
        return self._replace(weights=tuple(w if c in channels else 0 for c, w in enumerate(self.weights)))

    def without(self, channels: frozenset[int]) -> "Carriage":
        """The same by all but these channels."""
        return self.by(frozenset(range(len(self.weights))) - channels)

    def cuts(self, segments: Sequence[Span], array: Array) -> list[tuple[int, Cut]]:
        """Each used channel and its share of every segment: one channel where the array is not worth more."""
        used = [channel for channel, weight in enumerate(self.weights) if weight]
        if array.nbytes < len(self.weights) * _LANE_BYTES:
            used = used[:1]
        shares = lanes.share(segments, [self.weights[channel] for channel in used])
        return [
            (channel, lanes.cut(share, array.itemsize, self.chunk_bytes))
            for channel, share in zip(used, shares, strict=True)
        ]
