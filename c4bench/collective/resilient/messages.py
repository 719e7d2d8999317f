"""What ranks tell each other out of band. What the two ends of a rail say names the rail and the life it is about.

A rail begins a new life each time it is connected again; a word about an earlier one is ignored.
"""

import msgspec

from c4bench.verbs.transport import Remote


class RailName(msgspec.Struct, frozen=True, array_like=True):
    """From which rank to which, and the number of the QP among those of this edge."""

    source: int
    destination: int
    index: int


class ReceiveProgress(msgspec.Struct, frozen=True, array_like=True):
    """What a receiving channel has: of operation `seq` every message below `consumed`, and those `ahead` of it."""

    seq: int
    consumed: int
    ahead: tuple[int, ...]

    def has(self, seq: int, index: int) -> bool:
        """Whether message `index` of operation `seq` needs not be sent again."""
        return self.seq > seq or (self.seq == seq and (index < self.consumed or index in self.ahead))


class Fence(msgspec.Struct, frozen=True, tag=True):
    """Sender to receiver: I write nothing more by this rail; fence your end and say what you have."""

    rail: RailName
    life: int


class Fenced(msgspec.Struct, frozen=True, tag=True):
    """Receiver to sender: nothing arrives by this rail any more. What I have, by channel."""

    rail: RailName
    life: int
    held: tuple[ReceiveProgress, ...]


class Offer(msgspec.Struct, frozen=True, tag=True):
    """Sender to receiver: let us try this rail again, in a new life; my ends are these."""

    rail: RailName
    life: int
    data: Remote
    probe: Remote


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """Receiver to sender: my ends are connected to yours, and are these."""

    rail: RailName
    life: int
    data: Remote
    probe: Remote


class RailUp(msgspec.Struct, frozen=True, tag=True):
    """Sender to receiver: the rail has proved itself; use it."""

    rail: RailName
    life: int


class RailDeath(msgspec.Struct, frozen=True, tag=True):
    """To all peers of a NIC that a rail has died on: from which NIC to which, and whether nothing gets through."""

    nic: int
    cells: tuple[tuple[str, str, bool], ...]


class SilenceQuery(msgspec.Struct, frozen=True, tag=True):
    """To all, by way of each other: something is silent here, or elsewhere; ask after all your rails."""


ControlMessage = Fence | Fenced | Offer | Accepted | RailUp | RailDeath | SilenceQuery
encode = msgspec.msgpack.encode
decode = msgspec.msgpack.Decoder(ControlMessage).decode
