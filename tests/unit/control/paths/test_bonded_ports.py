"""The ports of switches, as `ip` prints them, and the drawing of a fabric with bonds."""

import json
from pathlib import Path
from types import SimpleNamespace

from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.control.paths.switches import PortCount, Switches, drawn
from c4bench.inventory import Access, Inventory
from c4bench.inventory.facts import HostFacts
from c4bench.model.fabric import Host, Nic

PRINTED = [
    {"ifname": "lo", "addr_info": [], "stats64": {"rx": {"bytes": 1, "packets": 1}}},
    {
        "ifname": "p0",
        "addr_info": [{"local": "10.4.0.253"}, {"local": "10.4.0.254", "secondary": True}],
        "stats64": {"rx": {"bytes": 900, "packets": 9}, "tx": {"bytes": 500, "packets": 5}},
    },
]


def test_a_port_is_known_by_its_primary_address():
    """Two leaves share a bond's gateway address, which is a secondary one of both and would stand for either port."""
    inventory = Inventory(
        Path("hosts.yml"),
        (),
        ("leaf0",),
        {"leaf0": Access("leaf0", netns="/run/netns/leaf0")},
        {},
        "",
        {"leaf0": HostFacts(rates={"p0": "5gbit"})},
    )
    printed = SimpleNamespace(stdout=json.dumps(PRINTED).encode())
    switches = Switches(inventory, lambda _: SimpleNamespace(run=lambda *_, **__: printed))
    assert switches.ports() == {"10.4.0.253": PortCount("leaf0", "p0", 900, 9, 5e9, sent_bytes=500)}


def test_both_links_of_a_bond_are_drawn_to_the_nic():
    """Links named by a bond's address and a switch end at the bond, and are two links."""
    a, b = (
        Host(name, "", (Nic(name, 0, "", "", f"10.0.0.{at}", 1e10, bond=("x", "y")),)) for at, name in enumerate("ab")
    )
    traces = {("a/0", "b/0", leaf): (f"leaf{leaf} from a", f"10.0.0.1@leaf{leaf}") for leaf in (0, 1)}
    ports = {f"leaf{leaf} from a": PortCount(f"leaf{leaf}", "p0", 0, 0) for leaf in (0, 1)}
    fabric = drawn([a, b], Atlas.from_answers(traces), ports)
    assert [(switch.name, switch.tier) for switch in fabric.switches] == [("leaf0", 1), ("leaf1", 1)]
    assert sorted((link.source, link.target) for link in fabric.links) == [
        ("a/0", "leaf0"),
        ("a/0", "leaf1"),
        ("leaf0", "b/0"),
        ("leaf1", "b/0"),
    ]
