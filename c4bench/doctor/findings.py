"""What `look` says of a host, read strictly: a host that answers something else is no host to trust."""

import msgspec


class Port(msgspec.Struct, frozen=True):
    """A port of an RDMA device; `subnet_manager_lid` is 0 where no subnet manager has spoken to it."""

    number: int
    link_layer: str
    state: str
    rate: str
    gid_types: tuple[str, ...]
    netdev: str
    subnet_manager_lid: int


class Device(msgspec.Struct, frozen=True):
    """An RDMA device, of `software` or of hardware with its `firmware`."""

    name: str
    software: bool
    firmware: str
    board: str
    ports: tuple[Port, ...]


class Netdev(msgspec.Struct, frozen=True):
    """An interface; `pfc` and `ecn` are priorities, `pfc` None where nothing could tell."""

    mtu_bytes: int
    state: str
    pfc: tuple[int, ...] | None
    ecn: tuple[int, ...]


class Knob(msgspec.Struct, frozen=True):
    """The path control that works on a NIC, "" for none; and why."""

    name: str
    why: str


class InjectorState(msgspec.Struct, frozen=True):
    """Whether the injector may run as root; and its lines about faults in force and quarantines."""

    runs: bool
    why: str
    lines: tuple[str, ...]


class HostSelfReport(msgspec.Struct, frozen=True):
    """A host as it sees itself. `knobs` are by NIC index; `memlock_bytes` is -1 without a limit."""

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


class MtuToPeer(msgspec.Struct, frozen=True):
    """What passes from a NIC of ours to a peer's address: the largest RDMA MTU, 0 where nothing comes back."""

    nic: str
    peer: str
    mtu_bytes: int
