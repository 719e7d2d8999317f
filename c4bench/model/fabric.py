"""Hosts, their NICs, and the flows and paths between them."""

from typing import Final, Literal

import msgspec

ECN_BITS = 2  # below the DSCP in IP's traffic class (RFC 3168)
ECN_CAPABLE = 0b10  # ECT(0)
# QPs of a connection whose number is left to C4P, where no link is thinner than its NICs.
USUAL_QPS = 4
# What a fabric's switches choose a packet's way by: its addresses and UDP ports; also the queue pair that it is for; or
# by what else they see at the time, so that equal packets part.
Hash = Literal["5-tuple", "dest-qp", "adaptive"]
FIVE_TUPLE: Final = "5-tuple"
DEST_QP: Final = "dest-qp"
ADAPTIVE: Final = "adaptive"
# Said in place of a source port on a fabric that hashes queue pairs, while the flow's is not known.
ASK_QPS: Final = -1


class Nic(msgspec.Struct, frozen=True):
    """One RDMA port of a host, or a bond of several with one address.

    `plane` groups the ports of a multi-plane or rail fabric. `dscp` (RFC 2474) and `service_level` (InfiniBand
    Architecture Specification, volume 1, 7.6.5) choose the queues that all its packets take. `bond` are the interfaces
    of a bond's ports, which share `rate_bps` alike; a NIC with one cable has none. `ecn`: its packets say that they may
    be marked (ECT(0), RFC 3168); NICs with congestion control of their own say so themselves.
    """

    host: str
    index: int
    device: str
    netdev: str
    address: str
    rate_bps: float
    plane: int = 0
    dscp: int = 0
    service_level: int = 0
    bond: tuple[str, ...] = ()
    ecn: bool = False

    @property
    def cables(self) -> int:
        """How many cables it has."""
        return len(self.bond) or 1

    @property
    def cable_bps(self) -> float:
        """The rate of each of its cables, bit/s."""
        return self.rate_bps / self.cables

    @property
    def traffic_class(self) -> int:
        """The GRH's traffic class, which is IP's: the DSCP, and the ECN bits of `ecn`."""
        return self.dscp << ECN_BITS | (ECN_CAPABLE if self.ecn else 0)

    @property
    def name(self) -> str:
        """`host/index`: how people, plans and diagnoses name a NIC."""
        return f"{self.host}/{self.index}"


def host_of_nic(name: str) -> str:
    """The host in a NIC's name; empty for what is no such name."""
    return name.rpartition("/")[0]


class Inside(msgspec.Struct, frozen=True):
    """What joins a host's GPUs, as NVLink does: each sends and receives at `rate_bps`, and takes `delay_s` more.

    A rate of 0 is no limit: memory's own.
    """

    rate_bps: float = 0.0
    delay_s: float = 0.0


_GPU = "gpu"


def gpu_name(host: str, index: int) -> str:
    """`host/gpuN`: how the end of a GPU's link to others of its host is named, as a NIC is by its index."""
    return f"{host}/{_GPU}{index}"


def is_gpu(name: str) -> bool:
    """Whether a name is that of a GPU's link, and not a NIC's."""
    return name.rpartition("/")[2].startswith(_GPU)


class Host(msgspec.Struct, frozen=True, omit_defaults=True):
    """A machine of the inventory; `address` is its management address.

    `gpus` has the index of each GPU's nearest NIC, which may be that of others too; `inside` is what joins the GPUs.
    """

    name: str
    address: str
    nics: tuple[Nic, ...] = ()
    disruptive: bool = False
    gpus: tuple[int, ...] = ()
    inside: Inside = Inside()

    def nic(self, index: int) -> Nic:
        """The NIC with that index; LookupError when the host has no such NIC."""
        for nic in self.nics:
            if nic.index == index:
                return nic
        raise LookupError(f"{self.name} has no NIC {index}")


class Path(msgspec.Struct, frozen=True):
    """The way a UDP source port takes through the fabric.

    `hops` are the addresses that answered TTL-limited probes, in order: each is the ingress interface of a switch, so
    each names one directed link. Two flows share a link exactly when they share a hop.
    """

    source_port: int
    hops: tuple[str, ...]


class HopProbe(msgspec.Struct, frozen=True, array_like=True):
    """A packet with the 5-tuple of a data flow, from UDP source port `source_port`, that expires after `ttl` hops."""

    destination: str
    source_port: int
    ttl: int


class HopAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The address that answered a probe, "" for none, and the TTL with which the answer arrived."""

    address: str = ""
    ttl: int = 0


class NumberedFlow(msgspec.Struct, frozen=True, array_like=True):
    """Where numbered packets go, and from which UDP source port."""

    destination: str
    source_port: int


class Train(msgspec.Struct, frozen=True, array_like=True):
    """A packet train that arrived whole: numbered packets of about an MTU, sent back to back.

    `delay_s` is from when it was sent to its first packet's arrival, by the clocks of two hosts. `s_per_byte` is from
    that packet to the last one, by one clock, for each byte of the others.
    """

    delay_s: float
    s_per_byte: float


class Arrived(msgspec.Struct, frozen=True, array_like=True):
    """How many numbered packets arrived from an address and source port: such as data, such as acknowledgements.

    `late` times packets had been overtaken. Packets of `trains` are not counted as either.
    """

    source: str
    source_port: int
    data: int
    acks: int
    late: int
    trains: tuple[Train, ...] = ()


class MissingLink(msgspec.Struct, frozen=True):
    """A link that nothing goes over, by the address of its far end: when it was last heard, and found to be missing.

    `instead` are the links between switches that may carry what it did, `through` those of them that carry all of it,
    `onward` those that came next on the ways that led over it.
    One that is `silent` should have answered, and is `confirmed` once it is silent again to a question for which its
    switch has an answer left. Of any other no way leads over it now, which may be for want of a link further on, or
    because a switch sends everything elsewhere.
    """

    name: str
    heard_s: float
    missed_s: float
    instead: tuple[str, ...]
    silent: bool = False
    through: tuple[str, ...] = ()
    onward: tuple[str, ...] = ()
    confirmed: bool = True


class Flow(msgspec.Struct, frozen=True):
    """A long-lived transfer to be placed: from one NIC to another, for a job, with the rate it would like."""

    id: str
    job: str
    source: str
    destination: str
    demand_bps: float


class LinkLoad(msgspec.Struct, frozen=True):
    """What `flows` planned flows bring to a link if all send at once, bit/s, and its rate; None where not known.

    `carried_bps` is what the switch at its far end counted of all traffic; None where no switch was read.
    """

    offered_bps: float
    flows: int
    rate_bps: float | None
    carried_bps: float | None = None
