"""Messages about numbered packets, which one agent sends and others count."""

import msgspec

from c4bench.model.fabric import Arrived, NumberedFlow


class ListenRequest(msgspec.Struct, frozen=True):
    """Master to agent: count the numbered packets with this `token` that reach this NIC, for `within_s` at most."""

    nic: int
    token: int
    within_s: float


class NumberRequest(msgspec.Struct, frozen=True):
    """Master to agent: send `count` numbered packets of each kind on these flows; `rate_pps` at most.

    With `train_bytes`, `count` packet trains of so many bytes in place of packets. `traffic_class` is as in a
    `ProbeRequest`.
    """

    nic: int
    flows: tuple[NumberedFlow, ...]
    count: int
    token: int
    rate_pps: float
    traffic_class: int = 0
    train_bytes: int = 0


class HeardRequest(msgspec.Struct, frozen=True):
    """Master to agent: what has been counted of the packets with this token at this NIC? The count ends."""

    nic: int
    token: int


class Heard(msgspec.Struct, frozen=True):
    """What has arrived, flow by flow."""

    arrived: tuple[Arrived, ...]
