"""Messages about probes that an agent sends, and bursts of packets that switches count."""

import msgspec

from c4bench.model.fabric import HopAnswer, HopProbe


class ProbeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Master to agent: send these probes from this NIC to UDP port `to_port`, `rate_pps` a second at most.

    Each is repeated while it has no answer, for `timeout_s` in all. `traffic_class` is the NIC's in the master's
    inventory.
    """

    nic: int
    probes: tuple[HopProbe, ...]
    timeout_s: float
    rate_pps: float
    to_port: int
    traffic_class: int = 0


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

    `traffic_class` is as in a `ProbeRequest`.
    """

    nic: int
    destination: str
    bursts: tuple[Burst, ...]
    rate_pps: float
    traffic_class: int = 0
