"""A lab's fabric as data: switches, hosts, links and their addresses. Nothing here touches a system.

Switches with NICs are edge switches, numbered in order. A NIC gets a /24 on its edge switch (`10.EDGE.PORT.1`, gateway
`.254`), a link between switches a /30 of 172.16.0.0/12, a host a management address in 10.255.0.0/24.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from c4bench.model.fabric import Host, Nic
from c4bench.model.graph import FabricGraph, Trunk, tiers_of

MANAGEMENT_GATEWAY = "10.255.0.1"
_SUBNETS_IN_A_BYTE = 64


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


class Graph(FabricGraph, frozen=True, kw_only=True):
    """A lab's fabric as its cables.

    `withdraw_s` is how long after a link dies the switches that are not at its ends stop using it. `icmp` are every
    switch's limits. `dscp` is that of every NIC's packets. Switches spray RoCE packets of `spray_dscp`; 0 is none.
    """

    name: str
    description: str
    withdraw_s: float = 0.2
    icmp: IcmpLimits = IcmpLimits()
    dscp: int = 0
    spray_dscp: int = 0


class Switch(msgspec.Struct, frozen=True):
    """A switch; `tier` is its distance from the nearest host, `edge` its number among edge switches or -1."""

    name: str
    tier: int
    edge: int = -1


class Port(msgspec.Struct, frozen=True):
    """A NIC and the port of the edge switch at the other end of its cable."""

    nic: Nic
    switch: str
    edge: int
    port: int
    delay_s: float = 0.0

    @property
    def gateway(self) -> str:
        """The switch's address on this NIC's subnet."""
        return f"10.{self.edge}.{self.port}.254"

    @property
    def interface(self) -> str:
        """The switch's interface towards the NIC."""
        return f"p{self.port}"


class LinkEnd(msgspec.Struct, frozen=True):
    """One end of a link between switches."""

    switch: str
    interface: str
    address: str


class Link(msgspec.Struct, frozen=True):
    """A link between switches: `lower` is nearer to hosts, or named first."""

    number: int
    lower: LinkEnd
    upper: LinkEnd
    rate_bps: float
    delay_s: float = 0.0

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

    @property
    def nic_rate_bps(self) -> float:
        """The line rate of the slowest NIC, bit/s."""
        return min(port.nic.rate_bps for port in self.ports)

    @property
    def edges(self) -> tuple[Switch, ...]:
        """The switches with NICs, by number."""
        return tuple(sorted((switch for switch in self.switches if switch.edge >= 0), key=lambda switch: switch.edge))


def build(graph: Graph) -> Topology:
    """Name and number everything. `graph` is one that `topology_file` has checked.

    A switch's interface is `pN` to a NIC, `upN` to a switch farther from hosts, `downN` to a nearer one and `sideN` to
    one of the same tier, each counted in order of the links.
    """
    ports = _ports(graph)
    tiers = tiers_of(graph)
    edges = _edges(graph)
    return Topology(
        name=graph.name,
        description=graph.description,
        switches=tuple(Switch(name, tiers[name], edges.get(name, -1)) for name in graph.switches),
        hosts=tuple(
            Host(
                name=name,
                address=f"10.255.0.{10 + index}",
                nics=tuple(port.nic for port in ports if port.nic.host == name),
                disruptive=True,
            )
            for index, name in enumerate(graph.hosts)
        ),
        ports=ports,
        links=tuple(_links(graph.trunks, tiers)),
        withdraw_s=graph.withdraw_s,
        icmp=graph.icmp,
        spray_dscp=graph.spray_dscp,
    )


def _edges(graph: Graph) -> dict[str, int]:
    used = {port.switch for port in graph.host_ports}
    return {name: number for number, name in enumerate(name for name in graph.switches if name in used)}


def _ports(graph: Graph) -> tuple[Port, ...]:
    edges = _edges(graph)
    used: Counter[str] = Counter()
    nics: Counter[str] = Counter()
    found: list[Port] = []
    for cable in sorted(graph.host_ports, key=lambda port: graph.hosts.index(port.host)):
        index, number, edge = nics[cable.host], used[cable.switch], edges[cable.switch]
        nics[cable.host] += 1
        used[cable.switch] += 1
        nic = Nic(
            host=cable.host,
            index=index,
            device=f"{cable.host}r{index}",
            netdev=f"{cable.host}n{index}",
            address=f"10.{edge}.{number}.1",
            rate_bps=cable.rate_bps,
            plane=cable.plane,
            dscp=graph.dscp,
        )
        found.append(Port(nic, cable.switch, edge, number, cable.delay_s))
    return tuple(found)


def _links(trunks: Sequence[Trunk], tiers: dict[str, int]) -> Iterable[Link]:
    counts: Counter[tuple[str, str]] = Counter()

    def interface(switch: str, kind: str) -> str:
        counts[switch, kind] += 1
        return f"{kind}{counts[switch, kind] - 1}"

    for number, trunk in enumerate(trunks):
        lower, upper = sorted((trunk.a, trunk.b), key=lambda name: tiers[name])
        kinds = ("side", "side") if tiers[lower] == tiers[upper] else ("up", "down")
        yield Link(
            number,
            LinkEnd(lower, interface(lower, kinds[0]), _subnet(number, 1)),
            LinkEnd(upper, interface(upper, kinds[1]), _subnet(number, 2)),
            trunk.rate_bps,
            trunk.delay_s,
        )


def _subnet(number: int, host: int) -> str:
    return f"172.16.{number // _SUBNETS_IN_A_BYTE}.{4 * (number % _SUBNETS_IN_A_BYTE) + host}"
