"""How much of an array each channel carries, and in which pieces."""

from collections.abc import Sequence
from typing import NamedTuple

from c4bench.collective import transfer_plan
from c4bench.collective.memory import Array
from c4bench.collective.schedule import Span
from c4bench.collective.transfer_plan import ChunkedShare

# Below this size a channel's share is not worth its messages.
_LANE_BYTES = 64 << 10
# The largest packet's load: a message that is shorter costs as much.
_PACKET_BYTES = 4 << 10
# Where messages are finer, at most so many times the usual number may be under way: send queues are as deep as that.
MOST_FINER = 4


class ChannelSplit(NamedTuple):
    """By channels in proportion to `weights`, 0 spares one, in messages up to `chunk_bytes`, `window` at a time."""

    weights: tuple[int, ...]
    chunk_bytes: int
    window: int

    def by(self, channels: frozenset[int]) -> "ChannelSplit":
        """The same by some of its channels only."""
        return self._replace(weights=tuple(w if c in channels else 0 for c, w in enumerate(self.weights)))

    def without(self, channels: frozenset[int]) -> "ChannelSplit":
        """The same by all but these channels."""
        return self.by(frozenset(range(len(self.weights))) - channels)

    def finer(self, share_bytes: int, chunks: int) -> "ChannelSplit":
        """The same in so many chunks of a share, so that the way of the first counts for little.

        No fewer bytes are under way: an acknowledgement waits behind all that its sender has queued.
        """
        packets = share_bytes // (sum(map(bool, self.weights)) * chunks * _PACKET_BYTES)
        chunk_bytes = min(self.chunk_bytes, max(1, packets) * _PACKET_BYTES)
        times = min(MOST_FINER, -(-self.chunk_bytes // chunk_bytes))
        return self._replace(chunk_bytes=chunk_bytes, window=times * self.window)

    def cuts(self, segments: Sequence[Span], array: Array) -> list[tuple[int, ChunkedShare]]:
        """Each used channel and its share of every segment: one channel where the array is not worth more."""
        used = [channel for channel, weight in enumerate(self.weights) if weight]
        if array.nbytes < len(self.weights) * _LANE_BYTES:
            used = used[:1]
        shares = transfer_plan.share(segments, [self.weights[channel] for channel in used])
        return [
            (channel, transfer_plan.cut(share, array.itemsize, self.chunk_bytes))
            for channel, share in zip(used, shares, strict=True)
        ]
