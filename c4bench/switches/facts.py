"""What is known of a switch, whatever its system. What could not be found out is None, or left out of its mapping."""

from collections.abc import Mapping

import msgspec


class Port(msgspec.Struct, frozen=True):
    """A port: whether it is set up, whether it is up, its speed (bit/s, 0 where unknown) and its MTU (bytes, likewise).

    `addresses` are its IP addresses with their prefix lengths, `carrier_changes` is how often it has gone up or down.
    """

    name: str
    admin_up: bool
    oper_up: bool
    speed_bps: float = 0.0
    mtu_bytes: int = 0
    addresses: tuple[str, ...] = ()
    carrier_changes: int | None = None


class Ecn(msgspec.Struct, frozen=True):
    """Marking of a queue: none below `min_bytes`, `percent` of the packets at `max_bytes`, and all above."""

    min_bytes: int
    max_bytes: int
    percent: float


class PortQos(msgspec.Struct, frozen=True):
    """How a port treats packets.

    `pfc` are the priorities with PFC. `classes` is the traffic class by DSCP. `queues` is the queue by traffic class;
    a class without an entry has the queue of its number. `ecn` has the queues that mark. `watchdog` says whether the
    PFC watchdog looks after the port. `shaped_bps` is the port's own rate limit, 0 for none. `trust` is the field that
    a packet's class comes from, `dscp`, `pcp` or `none`, "" where unknown. `adaptive_routing` is the port's own, None
    where the switch has one for all.
    """

    pfc: tuple[int, ...] | None = None
    classes: Mapping[int, int] | None = None
    queues: Mapping[int, int] = {}
    ecn: Mapping[int, Ecn] | None = None
    watchdog: bool | None = None
    shaped_bps: float = 0.0
    trust: str = ""
    adaptive_routing: bool | None = None


class AclTable(msgspec.Struct, frozen=True):
    """An access list: its `stage` is `ingress` or `egress`, `rules` is how many it has."""

    name: str
    kind: str
    stage: str
    ports: tuple[str, ...]
    rules: int


class SwitchFacts(msgspec.Struct, frozen=True):
    """A switch.

    `qos` is by port. `acl_free` is how many more access lists can be bound to ports, by stage. `adaptive_routing` says
    whether packets of one flow may take several paths. `neighbours` is the address of the router at the other end, by
    port. `printed` is what the system's commands printed, by name, for what is particular to it.
    """

    system: str
    version: str
    ports: Mapping[str, Port]
    qos: Mapping[str, PortQos] = {}
    acl_tables: tuple[AclTable, ...] = ()
    acl_free: Mapping[str, int] | None = None
    adaptive_routing: bool | None = None
    neighbours: Mapping[str, str] = {}
    printed: Mapping[str, str] = {}
