"""The output of `look`, decoded strictly: any other answer is an error."""

import msgspec

_DSCPS = 64


class Port(msgspec.Struct, frozen=True):
    """A port of an RDMA device; `subnet_manager_lid` is 0 without a subnet manager."""

    number: int
    link_layer: str
    state: str
    rate: str
    gid_types: tuple[str, ...]
    netdev: str
    subnet_manager_lid: int


class Device(msgspec.Struct, frozen=True):
    """An RDMA device, in `software` or in hardware with `firmware`.

    `traffic_class` is the one that its driver gives all packets, None if each connection has its own. `driver` is that
    of hardware, and `ack_floor` whether acknowledgement time-outs have a floor there, None where it is unknown.
    """

    name: str
    software: bool
    firmware: str
    board: str
    ports: tuple[Port, ...]
    traffic_class: int | None = None
    driver: str = ""
    ack_floor: bool | None = None


class Netdev(msgspec.Struct, frozen=True):
    """An interface; `pfc` and `ecn` are priorities, `pfc` is None where it is unknown.

    `trust` is the field that a packet's priority comes from, `dscp` or `pcp`, "" where it is unknown. `priorities` has
    the priority of each DSCP, if that is what is trusted.
    """

    mtu_bytes: int
    state: str
    pfc: tuple[int, ...] | None
    ecn: tuple[int, ...]
    trust: str = ""
    priorities: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for a trusted DSCP without the priorities of all of them."""
        if self.trust == "dscp" and len(self.priorities) != _DSCPS:
            raise ValueError(f"{len(self.priorities)} priorities of {_DSCPS} DSCPs")


class Knob(msgspec.Struct, frozen=True):
    """The path control that works on a NIC, "" for none; and the reason."""

    name: str
    why: str


class InjectorState(msgspec.Struct, frozen=True):
    """Whether the injector may run as root; and its lines about faults in force and quarantines."""

    runs: bool
    why: str
    lines: tuple[str, ...]


class HostSelfReport(msgspec.Struct, frozen=True):
    """A host's own report. `knobs` are by NIC index; `memlock_bytes` is -1 without a limit.

    `lldp` is the output of lldpd or systemd-networkd, "" for none.
    """

    python: str
    root: bool
    agent: str
    rdma: tuple[Device, ...]
    uverbs: str
    netdevs: dict[str, Netdev]
    knobs: dict[str, Knob]
    memlock_bytes: int
    gpus: tuple[str, ...]
    injector: InjectorState
    lldp: str = ""


class MtuToPeer(msgspec.Struct, frozen=True):
    """The largest RDMA MTU that passes from a NIC to a peer's address, 0 without a reply."""

    nic: str
    peer: str
    mtu_bytes: int
