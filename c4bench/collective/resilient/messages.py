"""Control messages between ranks. A message about a rail names the rail and its life.

A rail begins a new life each time it is reconnected. Messages about an earlier life are ignored.
"""

import msgspec

from c4bench.collective.rail import RailName, ReceiveProgress
from c4bench.verbs.transport import Remote


class Fence(msgspec.Struct, frozen=True, tag=True):
    """Sender to receiver: this end of the rail is fenced; fence yours and report what you have received."""

    rail: RailName
    life: int


class Fenced(msgspec.Struct, frozen=True, tag=True):
    """Receiver to sender: this end of the rail is fenced; `held` is what has been received, by channel."""

    rail: RailName
    life: int
    held: tuple[ReceiveProgress, ...]


class RailOffer(msgspec.Struct, frozen=True, tag="Offer"):
    """Sender to receiver: reconnect this rail, in a new life, to these QPs."""

    rail: RailName
    life: int
    data: Remote
    probe: Remote


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """Receiver to sender: this end is connected to yours; its QPs are these."""

    rail: RailName
    life: int
    data: Remote
    probe: Remote


class RailUp(msgspec.Struct, frozen=True, tag=True):
    """Sender to receiver: the rail has passed its probes and is in use."""

    rail: RailName
    life: int


class RailDeath(msgspec.Struct, frozen=True, tag=True):
    """To all peers of a NIC with a dead rail: the probe results (local NIC, remote NIC, whether the rail is bad)."""

    nic: int
    cells: tuple[tuple[str, str, bool], ...]


class SilenceQuery(msgspec.Struct, frozen=True, tag=True):
    """To all ranks, forwarded: a rail is silent somewhere; probe all your rails."""


ControlMessage = Fence | Fenced | RailOffer | Accepted | RailUp | RailDeath | SilenceQuery
encode = msgspec.msgpack.encode
decode = msgspec.msgpack.Decoder(ControlMessage).decode
