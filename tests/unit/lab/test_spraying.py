"""Packet spraying: which switches divide the packets of a connection, by which bits, and over which links."""

import re
from collections import Counter

import msgspec
import pytest

from c4bench.lab.guest import fabric, spraying
from c4bench.lab.topology import next_hops
from c4bench.lab.topology_file import load

SPRAYING = load("clos-2x4-spray")
TREE = msgspec.structs.replace(load("fat-tree-2x2"), spray_dscp=8)
MATCHED = re.compile(r"match u32 (0x[0-9a-f]+) (0x[0-9a-f]+) at 36 action mirred ingress redirect dev c4ifb-b(\d+)")


def filters(topology, switch, interface):
    """(value, mask, bucket) of each filter on an interface."""
    lines = fabric.tc_commands(topology)[switch]
    of_interface = [line for line in lines if line.startswith(f"filter add dev {interface} ")]
    found = [MATCHED.search(line) for line in of_interface]
    return [(int(match[1], 16), int(match[2], 16), int(match[3])) for match in found]


def test_a_fabric_that_does_not_spray_has_nothing_of_it():
    """Without a DSCP no switch gets a filter, a device or a table more; with one, only switches that have a choice."""
    plain = msgspec.structs.replace(SPRAYING, spray_dscp=0)
    for make in (fabric.ip_commands, fabric.tc_commands):
        assert make(plain) == make(load("clos-2x4"))
    assert spraying.sprayers(plain) == frozenset()
    assert spraying.sprayers(SPRAYING) == {"leaf0", "leaf1"}
    assert fabric.tc_commands(SPRAYING)["spine0"] == fabric.tc_commands(plain)["spine0"]


@pytest.mark.parametrize("psn", [0, 1, 15, 16, 0xABCDEF])
def test_every_packet_belongs_to_one_bucket(psn):
    """Each packet sequence number matches one filter of each port, in every tier."""
    for topology, switch, interface in (
        (SPRAYING, "leaf0", "p0"),
        (SPRAYING, "leaf1", "up3"),
        (TREE, "spine0", "down1"),
    ):
        found = filters(topology, switch, interface)
        assert len(found) == spraying.BUCKETS
        assert len([bucket for value, mask, bucket in found if psn & mask == value]) == 1


def test_only_roce_packets_of_the_dscp_are_sprayed():
    """Probes and packets of other classes keep the path of their hash; ECN bits make no difference."""
    lines = [line for line in fabric.tc_commands(SPRAYING)["leaf0"] if line.startswith("filter")]
    assert all(
        "match ip protocol 17 0xff match ip dport 4791 0xffff match ip dsfield 0x20 0xfc" in line for line in lines
    )


def test_tiers_choose_by_other_bits():
    """Else a spine would receive only packets that all take the same of its uplinks."""
    masks = {switch: {mask for _, mask, _ in filters(TREE, switch, "up0")} for switch in ("leaf0", "spine0")}
    assert masks == {"leaf0": {0x0F}, "spine0": {0xF0}}


@pytest.mark.parametrize(("dead", "shares"), [((), [4, 4, 4, 4]), ((1,), [5, 5, 6])])
def test_buckets_are_divided_evenly_over_the_links_that_are_left(dead, shares):
    """Each table has one next hop, and each link as many tables as the others, or one more."""
    routes = next_hops(SPRAYING, dead)["leaf0"]
    commands = fabric.route_commands(routes, sprayed=True)
    of_tables = [command for command in commands if " table " in command]
    assert len({command.split(" table ")[1].split()[0] for command in of_tables}) == spraying.BUCKETS
    assert sorted(Counter(command.rpartition(" ")[2] for command in of_tables).values()) == shares
    assert commands[: len(routes)] == fabric.route_commands(routes)


def test_tables_of_buckets_leave_the_unreachable_to_main():
    """Without any link, the old next hops go from all tables, and main says that the leaf is unreachable."""
    commands = fabric.route_commands(next_hops(SPRAYING, [0, 1, 2, 3])["leaf0"], sprayed=True)
    assert commands[0] == "route replace unreachable 10.1.0.0/16"
    assert [command.split()[2] for command in commands[1:]] == ["throw"] * spraying.BUCKETS


def test_devices_and_rules_lead_to_their_tables():
    """Each bucket's device is up before the rule that names it, and its table is not one of another bucket."""
    lines = fabric.ip_commands(SPRAYING)["leaf0"]
    rules = [line.split() for line in lines if line.startswith("rule add iif")]
    assert len({rule[5] for rule in rules}) == len(rules) == spraying.BUCKETS
    for rule in rules:
        assert lines.index(f"link set {rule[3]} up") < lines.index(" ".join(rule))
