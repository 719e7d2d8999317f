"""Packet spraying: a switch sends the packets of one connection over all next hops in turn, instead of by a hash.

Only RoCE packets of the topology's `spray_dscp` are sprayed. A switch divides them into buckets by bits of the packet
sequence number (BTH, InfiniBand Architecture Specification, volume 1, 9.2). Each bucket has a device that tc redirects
received packets to, a rule for packets from that device, and a routing table with one next hop for each edge switch.
Where that next hop is down, the lookup goes on to the main table, which hashes over those that are left.

Each tier takes other bits. With the same bits, a switch would receive only packets that choose the same next hop there.
"""

from collections import defaultdict

from c4bench.lab.topology import NextHops, Topology, next_hops

_BUCKET_BITS = 4
BUCKETS = 1 << _BUCKET_BITS
# Not the prefix of a fault's device with a number, which it would collide with.
_DEVICE = "c4ifb-b{bucket}"
_FIRST_TABLE = 100
_FILTER_PREFERENCE = 100
_DSCP_MASK = 0xFC
# The 24 bits of the number end 40 bytes into an IPv4 packet without options: after 20 of IP, 8 of UDP and 12 of BTH.
_PSN_BITS = 24
_PSN_WORD = 36
_ROCE_PORT = 4791


def sprayers(topology: Topology) -> frozenset[str]:
    """The switches that have a choice of next hops, if the topology sprays at all."""
    if not topology.spray_dscp:
        return frozenset()
    routes = next_hops(topology)
    return frozenset(name for name, hops in routes.items() if any(len(each) > 1 for each in hops.values()))


def ip_commands(topology: Topology) -> dict[str, list[str]]:
    """`ip` batches by switch: the device and the rule of every bucket."""
    batches: dict[str, list[str]] = {}
    for switch in sorted(sprayers(topology)):
        batches[switch] = [command for bucket in range(BUCKETS) for command in _bucket(bucket)]
    return batches


def _bucket(bucket: int) -> list[str]:
    device, table = _DEVICE.format(bucket=bucket), _FIRST_TABLE + bucket
    return [
        f"link add {device} type ifb",
        f"link set {device} up",
        f"rule add iif {device} lookup {table} pref {table}",
    ]


def route_commands(routes: NextHops) -> list[str]:
    """A sprayer's routes in the tables of all buckets; main has them for an edge switch that cannot be reached."""
    commands = []
    for edge, hops in routes.items():
        for bucket in range(BUCKETS):
            target = f"10.{edge}.0.0/16 table {_FIRST_TABLE + bucket}"
            if hops:
                link, end = hops[bucket % len(hops)]
                commands.append(f"route replace {target} via {link.far_end(end.switch).address} dev {end.interface}")
            else:
                commands.append(f"route replace throw {target}")
    return commands


def tc_commands(topology: Topology) -> dict[str, list[str]]:
    """`tc` batches by switch: every port leads packets to the devices of their buckets."""
    batches: dict[str, list[str]] = defaultdict(list)
    tiers = {switch.name: switch.tier for switch in topology.switches}
    ends = [end for link in topology.links for end in link.ends]
    ports = [(end.switch, end.interface) for end in ends]
    ports += [(port.switch, port.interface) for port in topology.ports]
    spraying = sprayers(topology)
    for switch, interface in ports:
        if switch in spraying:
            batches[switch].append(f"qdisc add dev {interface} clsact")
            batches[switch] += _filters(interface, topology.spray_dscp, _shift(tiers[switch]))
    return batches


def _shift(tier: int) -> int:
    """How far the bits of a tier are from the lowest."""
    return _BUCKET_BITS * (tier - 1) % _PSN_BITS


def _filters(interface: str, dscp: int, shift: int) -> list[str]:
    """A filter for each bucket, by the numbers of the packets that belong to it."""
    mask = (BUCKETS - 1) << shift
    return [
        f"filter add dev {interface} ingress protocol ip pref {_FILTER_PREFERENCE} u32 "
        f"match ip protocol 17 0xff match ip dport {_ROCE_PORT} 0xffff match ip dsfield {dscp << 2:#x} {_DSCP_MASK:#x} "
        f"match u32 {bucket << shift:#x} {mask:#x} at {_PSN_WORD} "
        f"action mirred ingress redirect dev {_DEVICE.format(bucket=bucket)}"
        for bucket in range(BUCKETS)
    ]
