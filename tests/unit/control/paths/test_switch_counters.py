"""What switches count for each of their ports."""

import json
from pathlib import Path

import pytest

from c4bench.control.paths.switches import PortCount, Switches, carried_bytes, carried_packets
from c4bench.inventory import load
from c4bench.remote import Completed

INVENTORY = """
all:
  hosts:
    h0: {c4: {nics: [{device: r0, netdev: n0, address: 10.0.0.1, rate: 10gbit}]}}
  children:
    switches:
      hosts:
        leaf0: {c4: {rates: {up0: 40gbit}}}
        leaf1: {c4: {netns: inside}}
"""


def port(name, *addresses, size=0, packets=0):
    """A port as `ip -s -j address` prints it, with fields that nobody needs."""
    known = [{"family": "inet", "local": address, "prefixlen": 31} for address in addresses]
    counted = {"rx": {"bytes": size, "packets": packets, "errors": 7}, "tx": {"bytes": 5, "packets": 6}}
    return {"ifname": name, "mtu": 4200, "addr_info": known, "stats64": counted}


class Console:
    """A switch with these ports that does not run SONiC; it keeps the commands."""

    def __init__(self, *ports):
        self._ports, self.commands = ports, []

    def run(self, command, *, timeout_s, check=True):
        """As a connection."""
        assert timeout_s > 1
        self.commands.append(command)
        if not check:
            return Completed(1, b"", b"")
        return Completed(0, json.dumps(self._ports).encode(), b"")


@pytest.fixture
def switches(tmp_path):
    """The switches of an inventory, and the consoles that stand for their connections."""
    path = Path(tmp_path / "hosts.yml")
    path.write_text(INVENTORY)
    consoles = {
        "leaf0": Console(
            port("lo"), port("up0", "10.1.0.1", "fe80::1", size=1000, packets=10), port("down0", "10.1.0.3")
        ),
        "leaf1": Console(port("up0", "10.1.1.1", size=400, packets=4)),
    }
    return Switches(load(path), consoles.__getitem__), consoles


def test_every_address_of_a_port_has_its_counters(switches):
    """What a port received, its switch and the rate that the inventory states; a port without address is left out."""
    known, consoles = switches
    counted = PortCount("leaf0", "up0", 1000, 10, 4e10, sent_bytes=5)
    assert known.any
    assert known.ports() == {
        "10.1.0.1": counted,
        "fe80::1": counted,
        "10.1.0.3": PortCount("leaf0", "down0", 0, 0, sent_bytes=5),
        "10.1.1.1": PortCount("leaf1", "up0", 400, 4, sent_bytes=5),
    }
    assert consoles["leaf0"].commands[1:] == [["ip", "-s", "-j", "address"]]
    assert consoles["leaf1"].commands[0][:1] == ["nsenter"]
    assert consoles["leaf1"].commands[0][-4:] == ["ip", "-s", "-j", "address"]


def test_an_inventory_without_switches_has_none(tmp_path):
    """Where no switch is named there are no counters, and nothing is connected to."""
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY.partition("  children")[0])
    known = Switches(load(path), lambda _: pytest.fail("nothing to connect to"))
    assert (known.any, known.ports()) == (False, {})


def test_what_crossed_a_link_is_the_difference_of_two_readings():
    """Bytes and packets by hop; a port that was not there before has no difference."""
    before = {"a": PortCount("s", "p", 100, 1), "gone": PortCount("s", "q", 5, 5)}
    after = {"a": PortCount("s", "p", 350, 4), "new": PortCount("s", "r", 9, 9)}
    assert carried_bytes(before, after) == {"a": 250}
    assert carried_packets(before, after) == {"a": 3}
