"""Switches that hash more than the 5-tuple: which ports divide packets, by which bits, and over which links."""

import re

import msgspec
import pytest

from c4bench.errors import UsageError
from c4bench.lab.guest import fabric, hashing
from c4bench.lab.topology import next_hops
from c4bench.lab.topology_file import DIRECTORY, load, parse

QP = load("clos-2x4-qp")
TREE = load("fat-tree-2x2")
MATCHED = re.compile(r"match u32 (0x[0-9a-f]+) (0x[0-9a-f]+) at (\d+) action mirred ingress redirect dev (\S+)")


def filters(topology, switch, interface):
    """(value, mask, offset, device) of each filter on an interface."""
    lines = fabric.tc_commands(topology)[switch]
    of_interface = [line for line in lines if line.startswith(f"filter add dev {interface} ")]
    found = [MATCHED.search(line) for line in of_interface]
    return [(int(match[1], 16), int(match[2], 16), int(match[3]), match[4]) for match in found]


def test_a_fabric_that_hashes_the_five_tuple_has_nothing_of_it():
    """No switch gets a filter, a device or a table more; else only switches that have a choice do."""
    plain = msgspec.structs.replace(QP, hash="5-tuple")
    for make in (fabric.ip_commands, fabric.tc_commands):
        assert make(plain) == make(load("clos-2x4"))
    assert hashing.hashers(plain) == frozenset()
    assert hashing.hashers(QP) == {"leaf0", "leaf1"}


@pytest.mark.parametrize(
    ("kind", "numbers", "offset"),
    [("dest-qp", [0, 1, 2, 3], 32), ("adaptive", [0, 64, 128, 192], 36)],
)
def test_packets_that_go_up_belong_to_one_bucket_each(kind, numbers, offset):
    """Successive queue pairs, or runs of 64 packets, have buckets in turn; ports that lead up have no filters."""
    topology = msgspec.structs.replace(QP, hash=kind)
    found = filters(topology, "leaf0", "p0")
    assert {at for _, _, at, _ in found} == {offset}
    devices = [[device for value, mask, _, device in found if number & mask == value] for number in numbers]
    assert devices == [["p0-b0"], ["p0-b1"], ["p0-b2"], ["p0-b3"]]
    assert not filters(topology, "leaf0", "up0")


def test_tiers_choose_by_other_bits():
    """Else a spine would receive only packets that all choose alike there."""
    tree = msgspec.structs.replace(TREE, hash="dest-qp")
    masks = [{mask for _, mask, _, _ in filters(tree, *port)} for port in (("leaf0", "p0"), ("spine0", "down0"))]
    assert masks == [{0x3}, {0xC}]


def test_a_device_answers_with_the_address_of_its_port():
    """So that a probe that expires behind it is answered by the link that it came by."""
    lines = fabric.ip_commands(QP)["leaf1"]
    port = next(port for port in QP.ports if port.switch == "leaf1")
    assert f"address add {port.gateway}/32 dev {port.interface}-b3" in lines


def test_next_hops_are_turned_by_the_bucket():
    """Every table has all links that are left, each bucket beginning with another one; none is left to main."""
    for dead, links in (((), 4), ((1,), 3)):
        commands = fabric.route_commands(next_hops(QP, dead)["leaf0"], hashed=True)
        tables = [re.findall(r"dev (\S+)", command) for command in commands if " table " in command]
        assert len(tables) == hashing.BUCKETS
        assert {tuple(sorted(hops)) for hops in tables} == {tuple(sorted(tables[0]))}
        assert len(tables[0]) == links
        assert [hops[0] for hops in tables] == [tables[0][bucket % links] for bucket in range(hashing.BUCKETS)]
    none = fabric.route_commands(next_hops(QP, [0, 1, 2, 3])["leaf0"], hashed=True)
    assert [command.split()[2] for command in none[1:]] == ["throw"] * hashing.BUCKETS


def test_spraying_and_another_hash_exclude_each_other():
    """The key is named; so is a hash that there is not."""
    text = (DIRECTORY / "clos-2x4-qp.yml").read_text()
    with pytest.raises(UsageError, match="hash: dest-qp, with spray_dscp 8"):
        parse(text + "spray_dscp: 8\n", "here")
    with pytest.raises(UsageError, match="hash"):
        parse(text.replace("dest-qp", "crc"), "here")
