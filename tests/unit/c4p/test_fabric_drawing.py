"""The drawing of a fabric, from paths and the switches' names."""

import sys
from pathlib import Path

from c4bench.c4p.knowledge.atlas import Atlas, PathTrace
from c4bench.control.paths.switches import PortCount
from c4bench.model.fabric import Host, Nic
from c4bench.record.artefacts import FabricHost, FabricLink, Switch

sys.path.append(str(Path(__file__).parents[2] / "scenarios/c4p"))

from fabric_drawing import drawn


def test_the_fabric_is_drawn_from_paths_and_addresses():
    """Switches have names where the counters know them and a tier by their distance from the nearest NIC."""
    nics = [Nic(f"h{number}", 0, "r", "n", f"10.0.0.{number}", rate) for number, rate in enumerate((1e10, 4e10))]
    hosts = [Host(nic.host, "", (nic,)) for nic in nics]
    traces = [
        PathTrace("h0/0", "h1/0", 49152, ("leaf0in", "spinein", "leaf1in", "10.0.0.1")),
        PathTrace("h1/0", "h0/0", 49152, ("leaf1up", "spineback", "leaf0back", "10.0.0.0")),
    ]
    ports = {
        hop: PortCount(name, "p", 0, 0)
        for hop, name in {"leaf0in": "leaf0", "leaf0back": "leaf0", "leaf1in": "leaf1", "leaf1up": "leaf1"}.items()
    }
    fabric = drawn(hosts, Atlas.from_answers(traces), ports)
    assert fabric.switches == (Switch("leaf0", 1), Switch("leaf1", 1), Switch("spineback", 2), Switch("spinein", 2))
    assert fabric.hosts == (FabricHost("h0", ("h0/0",)), FabricHost("h1", ("h1/0",)))
    assert FabricLink("h0/0", "leaf0", 1e10, "leaf0in") in fabric.links
    assert FabricLink("spinein", "leaf1", 1e10, "leaf1in") in fabric.links
    assert FabricLink("leaf0", "h0/0", 4e10, "10.0.0.0") in fabric.links
    assert [link.hop for link in fabric.links] == sorted(hop for trace in traces for hop in trace.hops)


def test_both_links_of_a_bond_are_drawn_to_the_nic():
    """Links named by a bond's address and a switch end at the bond, and are two links."""
    a, b = (
        Host(name, "", (Nic(name, 0, "", "", f"10.0.0.{at}", 1e10, bond=("x", "y")),)) for at, name in enumerate("ab")
    )
    traces = {("a/0", "b/0", leaf): (f"leaf{leaf} from a", f"10.0.0.1@leaf{leaf}") for leaf in (0, 1)}
    traces |= {("b/0", "a/0", leaf): (f"leaf{leaf} from b", f"10.0.0.0@leaf{leaf}") for leaf in (0, 1)}
    ports = {f"leaf{leaf} from {host}": PortCount(f"leaf{leaf}", "p0", 0, 0) for leaf in (0, 1) for host in "ab"}
    fabric = drawn([a, b], Atlas.from_answers(traces), ports)
    assert [(switch.name, switch.tier) for switch in fabric.switches] == [("leaf0", 1), ("leaf1", 1)]
    assert sorted((link.source, link.target) for link in fabric.links) == [
        ("a/0", "leaf0"),
        ("a/0", "leaf1"),
        ("b/0", "leaf0"),
        ("b/0", "leaf1"),
        ("leaf0", "a/0"),
        ("leaf0", "b/0"),
        ("leaf1", "a/0"),
        ("leaf1", "b/0"),
    ]
