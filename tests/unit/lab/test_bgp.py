"""What the switches' routing daemons are told, and which fabrics cannot have them."""

import pytest

from c4bench.errors import UsageError
from c4bench.lab import topology_file
from c4bench.lab.guest import bgp
from c4bench.lab.topology_file import load


def test_a_switch_is_told_of_its_neighbours_and_of_what_it_delivers_to():
    """A leaf has every spine as a neighbour with BFD, and says that its own subnet lies behind it; a spine has none."""
    topology = load("clos-2x4-bgp")
    leaf, spine = (bgp.configuration(topology, name).splitlines() for name in ("leaf0", "spine1"))
    assert [line for line in leaf if " bfd" in line] == [
        f" neighbor {address} bfd" for address in ("172.16.0.2", "172.16.0.6", "172.16.0.10", "172.16.0.14")
    ]
    assert [line for line in leaf + spine if " network" in line and "import" not in line] == [" network 10.0.0.0/16"]
    systems = bgp.autonomous_systems(topology)
    assert f"router bgp {systems['leaf0']}" in leaf
    assert f" neighbor 172.16.0.5 remote-as {systems['leaf0']}" in spine


@pytest.mark.parametrize(
    ("name", "alike"),
    [
        ("clos-2x4", [["spine0", "spine1", "spine2", "spine3"]]),
        ("fat-tree-2x2", [["spine0", "spine1"], ["spine2", "spine3"], ["core0", "core1", "core2", "core3"]]),
        ("planes-2", [["spine0", "spine1"]]),
    ],
)
def test_switches_above_the_same_ones_are_of_one_autonomous_system(name, alike):
    """So a route does not lead down and up again: its own system is in the path. Leaves have one each."""
    systems = bgp.autonomous_systems(load(name))
    found = [[switch for switch in systems if systems[switch] == number] for number in dict.fromkeys(systems.values())]
    assert [switches for switches in found if len(switches) > 1] == alike
    assert all(len(switches) == 1 for switches in found if switches[0].startswith("leaf"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("hash: dest-qp", "routing: bgp: with spray_dscp or hash"),
        ("spray_dscp: 8", "routing: bgp: with spray_dscp or hash"),
    ],
)
def test_routes_that_the_lab_writes_are_not_mixed_with_those_of_daemons(more, message):
    """What needs routes of its own is refused before anything starts."""
    text = (topology_file.DIRECTORY / "clos-2x4-bgp.yml").read_text()
    with pytest.raises(UsageError, match=message):
        topology_file.parse(f"{text}{more}\n", "mine.yml")


def test_switches_of_one_tier_that_are_joined_are_refused():
    """They would be of one autonomous system, in which a route is not passed on."""
    text = (topology_file.DIRECTORY / "sites-2.yml").read_text()
    with pytest.raises(UsageError, match="equally far from hosts"):
        topology_file.parse(f"{text}routing: bgp\n", "mine.yml")
