"""Facts about a host or a switch, as its tools print them, and the remarks that rules make about them.

A parser yields facts, wherever the text is from: a session on a live host, a file, an archive. Rules judge facts only.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec

from c4bench.doctor.lldp import Neighbour
from c4bench.switches.facts import SwitchFacts

_PORT = "PORT"


class Mark(StrEnum):
    """What a remark asks for: to act, to know, nothing, or further outputs because something is not known."""

    BAD = "bad"
    NOTE = "note"
    OK = "ok"
    UNKNOWN = "unknown"


class Remark(msgspec.Struct, frozen=True):
    """What a rule says of `where`, a port or a GPU of a device; `kind` groups what needs the same `advice`."""

    mark: Mark
    kind: str
    where: str
    text: str
    advice: str = ""


def alike(remarks: Iterable[tuple[str, Remark]]) -> Iterator[tuple[Remark, tuple[str, ...]]]:
    """Remarks of places, by name, that say the same; in the advice `PORT` stands for several ports."""
    groups: dict[tuple[Mark, str, str], list[tuple[str, Remark]]] = {}
    for name, one in remarks:
        advice = one.advice.replace(one.where, _PORT) if one.where else one.advice
        groups.setdefault((one.mark, one.text, advice), []).append((name, one))
    for (_, _, advice), own in groups.items():
        first = own[0][1]
        shared = first if len(own) == 1 else msgspec.structs.replace(first, advice=advice)
        yield shared, tuple(name for name, _ in own)


class RdmaPort(msgspec.Struct, frozen=True):
    """A port of an RDMA device: `state` such as `ACTIVE`, `physical` such as `LINK_UP`; "" and 0 are unknown.

    `mtu_bytes` is the active RDMA MTU, `most_mtu_bytes` the largest one that the device can do.
    """

    device: str
    number: int
    state: str
    physical: str = ""
    netdev: str = ""
    rate: str = ""
    mtu_bytes: int = 0
    most_mtu_bytes: int = 0

    @property
    def name(self) -> str:
        """The device and its port, and the interface if it is known."""
        return f"{self.device} port {self.number}" + (f" ({self.netdev})" if self.netdev else "")


class Gid(msgspec.Struct, frozen=True):
    """An entry of a port's GID table; `address` is its IPv4 address, "" for none; `version` is `v1` or `v2`."""

    device: str
    number: int
    index: int
    address: str
    version: str


class Firmware(msgspec.Struct, frozen=True):
    """The firmware of an interface or an RDMA device, and the driver or the kind of adapter."""

    device: str
    kind: str
    version: str


class Counters(msgspec.Struct, frozen=True):
    """One reading of the counters of a port, by the names that the tool gives them."""

    port: str
    counts: Mapping[str, int]


class Interface(msgspec.Struct, frozen=True):
    """The state of an interface: `up` and `admin_up` are None where they are not stated; rates in bit/s, 0 unknown."""

    name: str
    up: bool | None = None
    admin_up: bool | None = None
    rate_bps: float = 0.0
    most_rate_bps: float = 0.0
    mtu_bytes: int = 0


class TrafficClass(msgspec.Struct, frozen=True):
    """A traffic class of an interface: `scheduling` such as `ets` or `strict`, its share in percent, 0 for none."""

    number: int
    scheduling: str
    share_percent: int
    priorities: tuple[int, ...]


class Qos(msgspec.Struct, frozen=True):
    """The settings that decide how an interface queues packets; `priorities` has that of each DSCP, if trusted.

    `cable_m` is the length of cable that the buffers of lossless priorities are made for, 0 where it is not stated.
    """

    netdev: str
    trust: str
    priorities: tuple[int, ...]
    pfc: tuple[int, ...] | None
    queues: tuple[TrafficClass, ...] = ()
    cable_m: int = 0


class Module(msgspec.Struct, frozen=True):
    """An optic or a cable: the alarms that are on, and the received power (dBm) of each of its parts."""

    port: str
    alarms: tuple[str, ...]
    received_dbm: tuple[float, ...] = ()


class Advice(msgspec.Struct, frozen=True):
    """What a tool itself says about a port or a fabric; `serious` is the tool's own word for it."""

    tool: str
    where: str
    text: str
    serious: bool


class Gpu(msgspec.Struct, frozen=True):
    """A GPU by its address on the bus or its number, and what its driver counts or reports."""

    name: str
    troubles: tuple[str, ...] = ()


class KernelLine(msgspec.Struct, frozen=True):
    """A line of the kernel's log that is about a NIC, a GPU or the PCIe bus: what it is about, and its text."""

    subject: str
    kind: str
    text: str


class Setting(msgspec.Struct, frozen=True):
    """A setting of the kernel, as sysctl names it."""

    name: str
    value: str


class DropRule(msgspec.Struct, frozen=True):
    """A rule of an access list, and how many packets it has matched."""

    name: str
    table: str
    packets: int


class Watchdog(msgspec.Struct, frozen=True):
    """A queue that SONiC's PFC watchdog looks after: its status, storms detected, and those that ended."""

    queue: str
    status: str
    detected: int
    restored: int


class PausedPriorities(msgspec.Struct, frozen=True):
    """The priorities of a switch port with PFC, such as `3,4`."""

    port: str
    priorities: str


class EcnProfile(msgspec.Struct, frozen=True):
    """A profile of a switch that decides which packets are marked; `ecn` is such as `ecn_all`."""

    name: str
    ecn: str


class CongestionControl(msgspec.Struct, frozen=True):
    """The priorities of an interface at which both ends of DCQCN are on: notification and reaction point."""

    netdev: str
    priorities: tuple[int, ...]


class FixedClass(msgspec.Struct, frozen=True):
    """The traffic class that the driver gives all packets of an RDMA device."""

    device: str
    traffic_class: int


class FabricLink(msgspec.Struct, frozen=True):
    """A link as an InfiniBand tool lists it: both ends, `speed` such as `4xHDR`, and what it could be."""

    ends: tuple[str, str]
    speed: str
    could_be: str = ""
    between_switches: bool = False


class Nearness(msgspec.Struct, frozen=True):
    """The NICs below the same PCIe switch as a GPU; none if the file shows that there are none."""

    gpu: str
    nics: tuple[str, ...]


Fact = (
    RdmaPort
    | Gid
    | Firmware
    | Counters
    | Interface
    | Qos
    | Module
    | Advice
    | Gpu
    | KernelLine
    | Setting
    | DropRule
    | Watchdog
    | EcnProfile
    | PausedPriorities
    | SwitchFacts
    | CongestionControl
    | FixedClass
    | FabricLink
    | Nearness
    | Neighbour
)
