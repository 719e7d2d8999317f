"""Switches that choose a next hop by more than a packet's addresses and UDP ports, as many real ones do.

`dest-qp`: besides by these, by the queue pair that the packet is for (DestQP of the BTH, InfiniBand Architecture
Specification, volume 1, 9.2), so that two connections of one source port part. `adaptive`: besides, by which run of 64
packets a RoCE packet is in, as switches with adaptive routing send a flow's next flowlet elsewhere.

A switch divides the RoCE packets that go up into buckets by bits of either number. A port has a device for each
bucket, with the port's own address, by which a switch says where an expired packet has come from. tc redirects received
packets to it, a rule leads those from it to the bucket's routing table, and the table has the switch's routes with the
next hops turned by the bucket: the kernel's hash of the addresses and ports counts on from there. Each tier takes other
bits.
"""

from collections import defaultdict
from typing import NamedTuple

from c4bench.lab.topology import NextHops, Topology, next_hops
from c4bench.model.fabric import ADAPTIVE, DEST_QP

_BUCKET_BITS = 2
BUCKETS = 1 << _BUCKET_BITS
# Those of spraying are others, and no topology has both.
_FIRST_TABLE = 100
_FILTER_PREFERENCE = 100
_ROCE_PORT = 4791
# Bytes of an IPv4 packet without options, up to the 32-bit words of the BTH that end with either number.
_DEST_QP_WORD, _PSN_WORD = 32, 36
# A run has so many bits of the packet sequence number.
_RUN_BITS = 6


class _Bits(NamedTuple):
    """The bits of the lowest tier: the word that they are in, and how far they are from its end."""

    word: int
    shift: int


_BITS = {DEST_QP: _Bits(_DEST_QP_WORD, 0), ADAPTIVE: _Bits(_PSN_WORD, _RUN_BITS)}


def hashers(topology: Topology) -> frozenset[str]:
    """The switches that have a choice of next hops, if they choose by more than the 5-tuple."""
    if topology.hash not in _BITS:
        return frozenset()
    routes = next_hops(topology)
    return frozenset(name for name, hops in routes.items() if any(len(each) > 1 for each in hops.values()))


def _ports(topology: Topology) -> dict[str, dict[str, str]]:
    """By switch that chooses, the addresses of the ports by which packets come that go up."""
    found: dict[str, dict[str, str]] = {name: {} for name in sorted(hashers(topology))}
    ends = [(port.switch, port.interface, port.switch_addresses[0]) for port in topology.ports]
    tiers = {switch.name: switch.tier for switch in topology.switches}
    for link in topology.links:
        sides = link.ends if tiers[link.lower.switch] == tiers[link.upper.switch] else (link.upper,)
        ends += [(end.switch, end.interface, end.address) for end in sides]
    for switch, interface, address in ends:
        if switch in found:
            found[switch][interface] = address
    return found


def _device(interface: str, bucket: int) -> str:
    return f"{interface}-b{bucket}"


def ip_commands(topology: Topology) -> dict[str, list[str]]:
    """`ip` batches by switch: the devices of every port, and their rules."""
    batches: dict[str, list[str]] = defaultdict(list)
    for switch, ports in _ports(topology).items():
        for interface, address in ports.items():
            for bucket in range(BUCKETS):
                device, table = _device(interface, bucket), _FIRST_TABLE + bucket
                batches[switch] += [
                    f"link add {device} type ifb",
                    f"address add {address}/32 dev {device}",
                    f"link set {device} up",
                    f"rule add iif {device} lookup {table} pref {table}",
                ]
    return batches


def route_commands(routes: NextHops) -> list[str]:
    """A switch's routes in the tables of all buckets; main has them for an edge switch that cannot be reached."""
    commands = []
    for edge, hops in routes.items():
        for bucket in range(BUCKETS):
            target = f"10.{edge}.0.0/16 table {_FIRST_TABLE + bucket}"
            first = bucket % len(hops) if hops else 0
            turned = (*hops[first:], *hops[:first])
            listed = " ".join(
                f"nexthop via {link.far_end(end.switch).address} dev {end.interface}" for link, end in turned
            )
            commands.append(f"route replace {target} {listed}" if hops else f"route replace throw {target}")
    return commands


def tc_commands(topology: Topology) -> dict[str, list[str]]:
    """`tc` batches by switch: every port by which packets come that go up leads them to its devices."""
    batches: dict[str, list[str]] = defaultdict(list)
    tiers = {switch.name: switch.tier for switch in topology.switches}
    for switch, ports in _ports(topology).items():
        word, lowest = _BITS[topology.hash]
        shift = lowest + _BUCKET_BITS * (tiers[switch] - 1)
        for interface in ports:
            batches[switch].append(f"qdisc add dev {interface} clsact")
            batches[switch] += [
                f"filter add dev {interface} ingress protocol ip pref {_FILTER_PREFERENCE} u32 "
                f"match ip protocol 17 0xff match ip dport {_ROCE_PORT} 0xffff "
                f"match u32 {bucket << shift:#x} {(BUCKETS - 1) << shift:#x} at {word} "
                f"action mirred ingress redirect dev {_device(interface, bucket)}"
                for bucket in range(BUCKETS)
            ]
    return batches
