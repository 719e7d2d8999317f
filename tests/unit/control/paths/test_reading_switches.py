"""Reading switches: addresses, the inventory's rates, and whose counters count."""

import json

import pytest

from c4bench.control.paths.switches import PortCount, PortCounters, Switches, carried_bytes, port_counters
from c4bench.errors import UnhealthyError
from c4bench.inventory import load
from c4bench.remote import Completed


def interface(name, address, received):
    """An interface as `ip -s -j address` of iproute2 6 prints it."""
    return {
        "ifindex": 7,
        "ifname": name,
        "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
        "mtu": 9100,
        "operstate": "UP",
        "addr_info": [{"family": "inet", "local": address, "prefixlen": 31, "scope": "global", "label": name}],
        "stats64": {
            "rx": {"bytes": received, "packets": received // 100, "errors": 0, "dropped": 0, "multicast": 0},
            "tx": {"bytes": 1, "packets": 1, "errors": 0, "dropped": 0, "carrier_errors": 0, "collisions": 0},
        },
    }


def dumped(key, value):
    """An entry as `sonic-db-dump` prints it."""
    return {key: {"expireat": 1700000000.1, "ttl": -0.001, "type": "hash", "value": value}}


NAME_MAP = dumped("COUNTERS_PORT_NAME_MAP", {"Ethernet0": "oid:0x1000000000002", "Ethernet4": "oid:0x1000000000003"})
ROWS = dumped(
    "COUNTERS:oid:0x1000000000002",
    {
        "SAI_PORT_STAT_IF_IN_OCTETS": "98765432109",
        "SAI_PORT_STAT_IF_IN_UCAST_PKTS": "24000000",
        "SAI_PORT_STAT_IF_IN_NON_UCAST_PKTS": "17",
        "SAI_PORT_STAT_IF_OUT_OCTETS": "5",
        "SAI_PORT_STAT_PFC_3_RX_PKTS": "N/A",
    },
) | dumped("COUNTERS:oid:0x100000000000f", {"SAI_PORT_STAT_IF_IN_OCTETS": "1"})


class Connection:
    """A switch that answers commands from a table, and notes them."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def run(self, argv, check=True, **_):
        command = " ".join(argv)
        self.asked.append(command)
        code, output = self.answers.get(command, (127, b""))
        assert not check or code == 0, command
        return Completed(code, output, b"")


@pytest.fixture
def waited():
    """For how long it was waited before the ports were read (s)."""
    return []


@pytest.fixture
def switches(tmp_path, waited):
    """`switches(leaf0=connection)`: the switches of an inventory with rates."""
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {h0: }, children: {switches: {hosts: {leaf0: {c4: {rates: {Ethernet0: 100gbit}}}}}}}")
    return lambda **connections: Switches(load(path), lambda name: connections[name], waited.append)


ADDRESSES = json.dumps([{"ifname": "lo"}, interface("Ethernet0", "10.0.0.1", 900), interface("swp5", "10.0.0.3", 700)])


def test_a_linux_switch_counts_in_the_kernel(switches, waited):
    """On Cumulus and plain Linux, a port's bytes and packets are those of `ip -s -j address`, with the stated rate."""
    linux = Connection({"ip -s -j address": (0, ADDRESSES.encode())})
    known = switches(leaf0=linux)
    assert known.ports() == {
        "10.0.0.1": PortCount("leaf0", "Ethernet0", 900, 9, 1e11, sent_bytes=1),
        "10.0.0.3": PortCount("leaf0", "swp5", 700, 7, sent_bytes=1),
    }
    known.ports()
    assert len([command for command in linux.asked if "sonic" in command]) == 1
    assert waited == []


def test_a_sonic_switch_counts_in_its_database(switches, waited):
    """On SONiC the kernel sees only what goes to the processor: ports count as the database says, others nothing.

    An interface whose traffic is the session that reads it has no part in what is measured. The database is a second
    behind, so each reading waits for the next refresh.
    """
    answers = {
        "ip -s -j address": (0, ADDRESSES.encode()),
        "sh -c command -v sonic-db-dump": (0, b"/usr/local/bin/sonic-db-dump\n"),
        "sonic-db-dump -n COUNTERS_DB -k COUNTERS_PORT_NAME_MAP": (0, json.dumps(NAME_MAP).encode()),
        "sonic-db-dump -n COUNTERS_DB -k COUNTERS:oid:0x1000*": (0, json.dumps(ROWS).encode()),
    }
    known = switches(leaf0=Connection(answers))
    ports = known.ports()
    assert ports["10.0.0.1"] == PortCount("leaf0", "Ethernet0", 98765432109, 24000000, 1e11, sent_bytes=5)
    assert ports["10.0.0.3"] == PortCount("leaf0", "swp5", 0, 0)
    row = ROWS["COUNTERS:oid:0x1000000000002"]["value"] | {"SAI_PORT_STAT_IF_IN_OCTETS": "98765433109"}
    later = ROWS | dumped("COUNTERS:oid:0x1000000000002", row)
    answers["sonic-db-dump -n COUNTERS_DB -k COUNTERS:oid:0x1000*"] = (0, json.dumps(later).encode())
    assert carried_bytes(ports, known.ports()) == {"10.0.0.1": 1000, "10.0.0.3": 0}
    assert len(waited) == 2
    assert min(waited) > 1


def test_ports_without_counters_are_left_out():
    """A port of the name map without a row, and a row without bytes, give nothing; unknown figures are 0."""
    rows = dumped("COUNTERS:oid:0x1000000000002", {"SAI_PORT_STAT_IF_IN_OCTETS": "N/A"})
    names, counters = json.dumps(NAME_MAP).encode(), json.dumps(rows).encode()
    assert port_counters("leaf0", names, counters) == {"Ethernet0": PortCounters(0, 0, 0)}
    assert port_counters("leaf0", names, b"{}") == {}


@pytest.mark.parametrize(
    "output", [b"", b"Traceback (most recent call last):", b"[]", b'{"a": {"value": 3}}', b"[" * 9999]
)
def test_other_output_is_refused_with_the_switchs_name(output):
    """What is not the database's form is no counter of anything."""
    with pytest.raises(UnhealthyError, match="leaf0: sonic-db-dump printed no counters"):
        port_counters("leaf0", json.dumps(NAME_MAP).encode(), output)
