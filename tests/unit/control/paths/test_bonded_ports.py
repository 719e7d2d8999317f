"""The ports of switches, as `ip` prints them."""

import json
from pathlib import Path
from types import SimpleNamespace

from c4bench.control.paths.switches import PortCount, Switches
from c4bench.inventory import Access, Inventory
from c4bench.inventory.facts import HostFacts

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
