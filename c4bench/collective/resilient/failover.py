"""Who carries a message to a peer: its own channel's NIC, or all NICs by their rates where one is lost."""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from c4bench.collective.resilient.send_endpoint import RailSendEndpoint

Item = TypeVar("Item", bound=Hashable)


class WeightedRoundRobin(Generic[Item]):
    """Items share a load in proportion to weights: it is the turn of the one that is furthest behind its share."""

    def __init__(self) -> None:
        self._carried: dict[Item, float] = {}

    def choose(self, weights: Mapping[Item, float], length: int) -> Item:
        """Whose turn it is to carry so many bytes, of the items that have weights, 0 for none."""
        if weights.keys() != self._carried.keys():
            self._carried = dict.fromkeys(weights, 0.0)
        item = min(weights, key=lambda item: (self._carried[item] + length) / weights[item])
        self._carried[item] += length
        return item


class ChannelFailover:
    """The channels to a peer, which carry for each other.

    Where one that is in use has lost its NIC all of them share those that are left. If the others kept to their own,
    and only what is lost were shared, some would be done before others, and their NICs idle in the end. Not to `spread`
    is to have the next channel that can carry all that a lost one carried.
    """

    def __init__(self, *, spread: bool) -> None:
        self.senders: list[RailSendEndpoint] = []
        self._spread = spread
        self._round_robin: WeightedRoundRobin[RailSendEndpoint] = WeightedRoundRobin()

    def carrier(self, sender: "RailSendEndpoint", length: int) -> "RailSendEndpoint":
        """Whose NIC carries a message of `outlet`'s. One at least must be able to."""
        able = [each for each in self.senders if each.able]
        if not self._spread:
            return min(able, key=lambda each: (each.channel - sender.channel) % len(self.senders))
        if len(able) == len(self.senders) or not any(each.stranded for each in self.senders):
            return sender
        return self._round_robin.choose({each: each.rate_bps for each in able}, length)
