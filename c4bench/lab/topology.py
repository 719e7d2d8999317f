"""A lab's fabric as data: switches, hosts, links, their addresses, and routes. Nothing here touches a system.

Switches with NICs are edge switches, numbered in order. A NIC gets a /24 on its edge switch (`10.EDGE.PORT.1`, gateway
`.254`), a link between switches a /30 of 172.16.0.0/12, a host a management address in 10.255.0.0/24, as has a switch
with an operating system. Two edge switches that bonds are cabled to have a further number together: both are the
gateway, and have an address of their own (`.253`, `.252`) beside it, with which they answer probes. Every switch
forwards over all shortest paths (ECMP), as OSPF with equal costs would.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from string import ascii_lowercase
from typing import Annotated

import msgspec

from c4bench.inventory.facts import InsideFacts
from c4bench.model.fabric import FIVE_TUPLE, Hash, Host, Inside, Nic
from c4bench.model.graph import FabricGraph, HostPort, by_nic, distances, tiers_of

MANAGEMENT_GATEWAY = "10.255.0.1"
# What a port may send at once, bytes: too little to raise measured rates at 10 Gbit/s and more.
BURST_BYTES = 16 << 10
_SUBNETS_IN_A_BYTE = 64
_FIRST_SWITCH = 100  # the last byte of its management address; those of hosts are lower
_SONIC_STEP = 4  # SONiC numbers ports by their first serial link


class IcmpLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many ICMP errors, such as answers to probes, a switch sends; the defaults are the kernel's.

    To one address it sends six at once, then one every `ratelimit_ms`, and at most `msgs_per_sec` to all, `msgs_burst`
    of them at once (see ip-sysctl.rst of the kernel). Without `answers` it sends none. With `interfaces` it
    answers from any of its addresses, and names the interface that the probe came in by (RFC 5837).
    """

    answers: bool = True
    ratelimit_ms: int = 1000
    msgs_per_sec: int = 1000
    msgs_burst: int = 50
    interfaces: bool = False


class EcnMarking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When switches mark packets (RED): above `min_bytes` in a port's queue some, above `max_bytes` all.

    In between the share grows up to `probability`. DCQCN calls these K_min, K_max and P_max (Zhu et al., SIGCOMM 2015,
    3.1).
    """

    min_bytes: int = 100_000
    max_bytes: int = 400_000
    probability: float = 0.2


class Nics(StrEnum):
    """What a lab's NICs are to their hosts: rxe as it is, or like a ConnectX-6 (docs/reference/twin.md)."""

    RXE = "rxe"
    CONNECTX_6 = "connectx-6"


class AckTimeout(StrEnum):
    """A ConnectX-6's time-outs: as it is shipped, or with the floor off (`c4bench.cost.ack_timeout`)."""

    CX6 = "cx6"
    CX6_FLOOR_OFF = "cx6-floor-off"


class FlowControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Priority flow control (PFC, IEEE 802.1Qbb) of all ports of switches and NICs; `priorities` are lossless.

    A packet's priority is its DSCP's upper three bits. Where a switch holds more than `xoff_bytes` of a lossless
    priority that came in by one port, it pauses that at the cable's other end, until there are `xon_bytes` left; what
    still arrives has `headroom_bytes`. Of another priority a port's queue holds `queue_bytes`. With `watchdog_s` a port
    of a switch drops what has been paused for so long, until no pause has come for as long.
    """

    priorities: tuple[Annotated[int, msgspec.Meta(ge=0, le=7)], ...] = (3,)
    xoff_bytes: int = 200_000
    xon_bytes: int = 100_000
    headroom_bytes: int = 100_000
    queue_bytes: int = 400_000
    watchdog_s: float = 0.0


Dscp = Annotated[int, msgspec.Meta(ge=0, le=63)]


class SwitchOs(StrEnum):
    """What runs on the switches: nothing, a network namespace that forwards; or what speaks SONiC over SSH."""

    NONE = ""
    SONIC = "sonic"


class SwitchRouting(StrEnum):
    """How switches learn what lies behind a dead link: all at once and late, or by BGP with BFD, from FRR's daemons."""

    DELAYED = "delayed"
    BGP = "bgp"


class FabricOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a lab's fabric has besides its cables.

    `nics` are like ConnectX-6 where asked for, with the time-outs `ack_timeout`. `withdraw_s` is how long after a
    link dies the switches that are not at its ends stop using it, with delayed `routing`. `icmp` are every switch's
    limits. `dscp` is that of every NIC's packets. Switches spray RoCE packets of `spray_dscp`; 0 is none. `hash` is
    what they choose the next hops of all others by. With `ecn` switches mark packets, and NICs send such as may be
    marked. With `pfc` both pause each other. After it has sent nothing for a while, a port sends `burst_bytes` at
    once, faster than its rate. `switch_os` is what runs on every switch. `gpus` has the index of the NIC next to
    each GPU of every host, and `inside` is what joins a host's GPUs.
    """

    name: str
    description: str
    withdraw_s: float = 0.2
    routing: SwitchRouting = SwitchRouting.DELAYED
    icmp: IcmpLimits = IcmpLimits()
    dscp: Dscp = 0
    spray_dscp: Dscp = 0
    hash: Hash = FIVE_TUPLE
    ecn: EcnMarking | None = None
    pfc: FlowControl | None = None
    burst_bytes: int = BURST_BYTES
    nics: Nics = Nics.RXE
    ack_timeout: AckTimeout = AckTimeout.CX6
    switch_os: SwitchOs = SwitchOs.NONE
    gpus: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()
    inside: InsideFacts | None = None


class Switch(msgspec.Struct, frozen=True):
    """A switch; `tier` is its distance from the nearest host, `edge` its number among edge switches or -1."""

    name: str
    tier: int
    edge: int = -1


class Port(msgspec.Struct, frozen=True):
    """A NIC's cable: `netdev` at its host's end, `interface` at the edge switch's.

    `edge` and `port` are the numbers in the NIC's address. Port `member` of a bond counts from 0. A NIC like a ConnectX
    has its end of the cable on its own side, where the host's `tc` does not reach: `wire`, "" for none. With `pfc` the
    ends pause each other.
    """

    nic: Nic
    switch: str
    edge: int
    port: int
    interface: str
    netdev: str
    rate_bps: float
    delay_s: float = 0.0
    member: int = 0
    burst_bytes: int = BURST_BYTES
    wire: str = ""
    pfc: bool = False

    @property
    def sender(self) -> tuple[str, str]:
        """The network namespace and the interface in it that send at the NIC's rate."""
        return (wires_of(self.nic.host), self.wire) if self.wire else (self.nic.host, self.netdev)

    @property
    def gateway(self) -> str:
        """The address of the NIC's next hop: the switch's, or that of both switches of a bond."""
        return f"10.{self.edge}.{self.port}.254"

    @property
    def switch_addresses(self) -> tuple[str, ...]:
        """The switch's addresses on this NIC's subnet; it answers probes with the first."""
        own = (f"10.{self.edge}.{self.port}.{253 - self.member}",) if self.nic.bond else ()
        return *own, self.gateway


class LinkEnd(msgspec.Struct, frozen=True):
    """One end of a link between switches."""

    switch: str
    interface: str
    address: str


class Link(msgspec.Struct, frozen=True):
    """A link between switches: `lower` is nearer to hosts, or named first. With `pfc` its ends pause each other."""

    number: int
    lower: LinkEnd
    upper: LinkEnd
    rate_bps: float
    delay_s: float = 0.0
    burst_bytes: int = BURST_BYTES
    pfc: bool = False

    @property
    def ends(self) -> tuple[LinkEnd, LinkEnd]:
        """Both ends, the lower one first."""
        return self.lower, self.upper

    def far_end(self, switch: str) -> LinkEnd:
        """The end that is not at `switch`."""
        return self.upper if self.lower.switch == switch else self.lower


class Topology(msgspec.Struct, frozen=True):
    """A fabric with all names and addresses; see `build`."""

    name: str
    description: str
    switches: tuple[Switch, ...]
    hosts: tuple[Host, ...]
    ports: tuple[Port, ...]
    links: tuple[Link, ...]
    withdraw_s: float
    icmp: IcmpLimits = IcmpLimits()
    spray_dscp: int = 0
    ecn: EcnMarking | None = None
    hash: Hash = FIVE_TUPLE
    pfc: FlowControl | None = None
    nics: Nics = Nics.RXE
    ack_timeout: AckTimeout = AckTimeout.CX6
    switch_os: SwitchOs = SwitchOs.NONE
    routing: SwitchRouting = SwitchRouting.DELAYED

    @property
    def nic_rate_bps(self) -> float:
        """The line rate of the slowest NIC, bit/s."""
        return min(port.nic.rate_bps for port in self.ports)

    @property
    def edges(self) -> tuple[Switch, ...]:
        """The switches with NICs, by number."""
        return tuple(sorted((switch for switch in self.switches if switch.edge >= 0), key=lambda switch: switch.edge))

    @property
    def subnets(self) -> dict[int, tuple[str, ...]]:
        """The edge switches that deliver to `10.NUMBER.0.0/16`, by number: one, or the two of bonds."""
        switches: dict[int, dict[str, None]] = defaultdict(dict)
        for port in self.ports:
            switches[port.edge][port.switch] = None
        return {number: tuple(switches[number]) for number in sorted(switches)}

    @property
    def addresses(self) -> dict[str, str]:
        """The management addresses of all hosts, then of all switches with an operating system, by name."""
        hosts = {host.name: host.address for host in self.hosts}
        return hosts | {switch.name: self.management(switch.name) for switch in self.machines}

    @property
    def machines(self) -> tuple[Switch, ...]:
        """The switches that are reached by SSH: all that have an operating system."""
        return self.switches if self.switch_os else ()

    def management(self, switch: str) -> str:
        """The management address of a switch with an operating system."""
        return f"10.255.0.{_FIRST_SWITCH + [known.name for known in self.switches].index(switch)}"

    def cables(self, nic: Nic) -> tuple[Port, ...]:
        """The cables of a NIC: one, or those of a bond in order."""
        return tuple(port for port in self.ports if port.nic == nic)


def wires_of(host: str) -> str:
    """The network namespace that is the inside of a host's NICs."""
    return f"{host}.nics"


def build(graph: FabricGraph, options: FabricOptions) -> Topology:
    """Name and number everything; `topology_file` has checked both.

    A switch's interface is `pN` to a NIC, `upN` to a switch farther from hosts, `downN` to a nearer one and `sideN` to
    one of the same tier, each counted in order of the links. With SONiC it is `EthernetN`, of every fourth number.
    """
    names = _InterfaceNames(options.switch_os)
    ports = _ports(graph, options, names)
    tiers = tiers_of(graph)
    edges = _edges(graph)
    return Topology(
        name=options.name,
        description=options.description,
        switches=tuple(Switch(name, tiers[name], edges.get(name, -1)) for name in graph.switches),
        hosts=tuple(
            Host(
                name=name,
                address=f"10.255.0.{10 + index}",
                nics=tuple(dict.fromkeys(port.nic for port in ports if port.nic.host == name)),
                disruptive=True,
                gpus=options.gpus,
                inside=options.inside.parsed() if options.inside else Inside(),
            )
            for index, name in enumerate(graph.hosts)
        ),
        ports=ports,
        links=tuple(_links(graph, tiers, options, names)),
        withdraw_s=options.withdraw_s,
        icmp=options.icmp,
        spray_dscp=options.spray_dscp,
        ecn=options.ecn,
        hash=options.hash,
        pfc=options.pfc,
        nics=options.nics,
        ack_timeout=options.ack_timeout,
        switch_os=options.switch_os,
        routing=options.routing,
    )


class _InterfaceNames:
    """Names the interfaces of every switch in the order of asking."""

    def __init__(self, system: SwitchOs) -> None:
        self._system = system
        self._used: Counter[tuple[str, str]] = Counter()

    def next(self, switch: str, kind: str) -> str:
        """The next name of that kind, such as `p`; SONiC has one kind."""
        kind = "Ethernet" if self._system is SwitchOs.SONIC else kind
        number = self._used[switch, kind]
        self._used[switch, kind] += 1
        return f"{kind}{_SONIC_STEP * number if self._system is SwitchOs.SONIC else number}"


def _edges(graph: FabricGraph) -> dict[str, int]:
    used = {port.switch for port in graph.host_ports}
    return {name: number for number, name in enumerate(name for name in graph.switches if name in used)}


def subnet_numbers(graph: FabricGraph) -> dict[frozenset[str], int]:
    """The number in the addresses of NICs that are cabled to these switches: first each edge switch's, then pairs'."""
    singles = {frozenset({name}): number for name, number in _edges(graph).items()}
    sets = (frozenset(cable.switch for cable in cables) for cables in _nics(graph))
    pairs = dict.fromkeys(switches for switches in sets if switches not in singles)
    return singles | {switches: len(singles) + position for position, switches in enumerate(pairs)}


def _nics(graph: FabricGraph) -> list[tuple[HostPort, ...]]:
    """The cables of every NIC, host by host."""
    place = {host: number for number, host in enumerate(graph.hosts)}
    return by_nic(sorted(graph.host_ports, key=lambda port: place[port.host]))


def _ports(graph: FabricGraph, options: FabricOptions, names: _InterfaceNames) -> tuple[Port, ...]:
    numbers = subnet_numbers(graph)
    used: Counter[int] = Counter()
    found: list[Port] = []
    nics: Counter[str] = Counter()
    for cables in _nics(graph):
        host, edge = cables[0].host, numbers[frozenset(cable.switch for cable in cables)]
        nic = _nic(nics[host], cables, f"10.{edge}.{used[edge]}.1", options)
        if options.nics is Nics.CONNECTX_6:
            nic = msgspec.structs.replace(nic, device=f"mlx5_{nics.total()}")
        nics[host] += 1
        for member, cable in enumerate(cables):
            netdev = nic.bond[member] if nic.bond else nic.netdev
            ends = cable.switch, edge, used[edge], names.next(cable.switch, "p"), netdev
            wire = f"{netdev}w" if options.nics is Nics.CONNECTX_6 else ""
            pauses = options.pfc is not None and not cable.delay_s
            found.append(Port(nic, *ends, cable.rate_bps, cable.delay_s, member, options.burst_bytes, wire, pauses))
        used[edge] += 1
    return tuple(found)


def _nic(index: int, cables: Sequence[HostPort], address: str, options: FabricOptions) -> Nic:
    first = cables[0]
    netdev = f"{first.host}n{index}"
    return Nic(
        host=first.host,
        index=index,
        device=f"{first.host}r{index}",
        netdev=netdev,
        address=address,
        rate_bps=sum(cable.rate_bps for cable in cables),
        plane=first.plane,
        dscp=options.dscp,
        ecn=options.ecn is not None,
        bond=tuple(netdev + letter for letter, _ in zip(ascii_lowercase, cables, strict=False)) if first.bond else (),
    )


def _links(graph: FabricGraph, tiers: dict[str, int], options: FabricOptions, names: _InterfaceNames) -> Iterable[Link]:
    for number, trunk in enumerate(graph.trunks):
        lower, upper = sorted((trunk.a, trunk.b), key=lambda name: tiers[name])
        kinds = ("side", "side") if tiers[lower] == tiers[upper] else ("up", "down")
        yield Link(
            number,
            LinkEnd(lower, names.next(lower, kinds[0]), _subnet(number, 1)),
            LinkEnd(upper, names.next(upper, kinds[1]), _subnet(number, 2)),
            trunk.rate_bps,
            trunk.delay_s,
            options.burst_bytes,
            options.pfc is not None and not trunk.delay_s,
        )


def _subnet(number: int, host: int) -> str:
    return f"172.16.{number // _SUBNETS_IN_A_BYTE}.{4 * (number % _SUBNETS_IN_A_BYTE) + host}"


# By the number of a subnet: the links that a switch forwards over to it, each with the end it leaves by.
NextHops = dict[int, tuple[tuple[Link, LinkEnd], ...]]


def next_hops(
    topology: Topology, dead: Collection[int] = frozenset(), unusable: Collection[tuple[int, str]] = frozenset()
) -> dict[str, NextHops]:
    """The next hops of every switch to the subnets of all other edge switches (`Topology.subnets`).

    `dead` are the numbers of links that all switches know to be dead; `unusable` are links, each with the name of a
    switch at its end, that only this switch does not use yet.
    """
    alive = [link for link in topology.links if link.number not in dead]
    neighbours: dict[str, list[str]] = defaultdict(list)
    incident: dict[str, list[Link]] = defaultdict(list)
    for link in alive:
        for end in link.ends:
            neighbours[end.switch].append(link.far_end(end.switch).switch)
            incident[end.switch].append(link)
    routes: dict[str, NextHops] = {switch.name: {} for switch in topology.switches}
    for number, edges in topology.subnets.items():
        away = distances(edges, neighbours)
        for switch in topology.switches:
            if switch.name not in edges:
                here = away.get(switch.name, 0)
                routes[switch.name][number] = tuple(
                    (link, near_end(link, switch.name))
                    for link in incident[switch.name]
                    if (link.number, switch.name) not in unusable
                    and away.get(link.far_end(switch.name).switch, here) < here
                )
    return routes


def near_end(link: Link, switch: str) -> LinkEnd:
    """The end of a link that is at `switch`."""
    return link.lower if link.lower.switch == switch else link.upper
