"""Messages about probes that an agent sends, and bursts of packets that switches count."""

import msgspec

from c4bench.model.fabric import Arrived, HopAnswer, HopProbe, NumberedFlow


class ProbeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Master to agent: send these probes from this NIC to UDP port `to_port`, `rate_pps` a second at most.

    Each is repeated while it has no answer, for `timeout_s` in all. `traffic_class` is the NIC's in the master's
    inventory. `qps` are the queue pairs that probes are for, if they are to look like RDMA's packets.
    """

    nic: int
    probes: tuple[HopProbe, ...]
    timeout_s: float
    rate_pps: float
    to_port: int
    traffic_class: int = 0
    qps: tuple[int, ...] = ()


class ProbeAnswer(msgspec.Struct, frozen=True):
    """The answer to each probe."""

    answers: tuple[HopAnswer, ...]


class Burst(msgspec.Struct, frozen=True):
    """`count` packets from a source port that go `hops` switches far."""

    source_port: int
    hops: int
    count: int


class BurstRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Master to agent: send these from this NIC to that address, for switches to count; `rate_pps` at most.

    `traffic_class` is as in a `ProbeRequest`. With `qp`, a queue pair of the NIC sends each burst at once, to that one,
    of which there must be none.
    """

    nic: int
    destination: str
    bursts: tuple[Burst, ...]
    rate_pps: float
    traffic_class: int = 0
    qp: int = 0


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
