"""LLDP neighbours against the graph that an inventory states."""

import json

import msgspec
import pytest

from c4bench.c4p.knowledge.cabling import CableDifference, Kind
from c4bench.cli import doctor
from c4bench.cli.main import main
from c4bench.doctor import look, overview
from c4bench.doctor.capabilities import Capability, Report, State
from c4bench.doctor.facts import Mark, Remark
from c4bench.doctor.lldp import Neighbour, neighbours
from c4bench.doctor.overview import DeviceRemark, Document, document
from c4bench.doctor.switches import SwitchReport
from c4bench.inventory import load

INVENTORY = """\
all:
  vars:
    c4_fabric:
      switches: [spine1]
      links:
        - {between: [a, leaf0/Ethernet0], rate: 100gbit}
        - {between: [b, leaf1], rate: 100gbit}
        - {between: [c, leaf0/Ethernet8], rate: 100gbit, bond: b0}
        - {between: [c, leaf1/Ethernet8], rate: 100gbit, bond: b0}
        - {between: [leaf0/Ethernet48, spine0/Ethernet0], rate: 400gbit}
        - {between: [leaf0/Ethernet52, spine0/Ethernet4], rate: 400gbit}
        - {between: [leaf1, spine0], rate: 400gbit, count: 2}
        - {between: [leaf0, spine1], rate: 400gbit}
  hosts:
    a: {c4: {management: eth0, nics: [{netdev: eth2}]}}
    b: {c4: {nics: [{netdev: eth2}]}}
    c: {c4: {nics: [{netdev: bond0, bond: [eth2, eth3]}]}}
  children: {switches: {hosts: {leaf0: , leaf1: , spine0: }}}
"""
# As lldpd 1.0 prints it, with what a SONiC switch and an unnamed device send.
RECORDED = json.dumps(
    {
        "lldp": [
            {
                "interface": [
                    {
                        "name": "eth2",
                        "via": "LLDP",
                        "rid": "1",
                        "age": "0 day, 00:12:01",
                        "chassis": [
                            {
                                "id": [{"type": "mac", "value": "1c:34:da:00:00:01"}],
                                "name": [{"value": "leaf0.dc1.example"}],
                                "descr": [{"value": "SONiC Software Version: SONiC.202305"}],
                                "capability": [{"type": "Bridge", "enabled": True}],
                            }
                        ],
                        "port": [
                            {
                                "id": [{"type": "local", "value": "Ethernet0"}],
                                "descr": [{"value": "a:eth2"}],
                                "ttl": [{"value": "120"}],
                            }
                        ],
                    },
                    {
                        "name": "eth0",
                        "via": "LLDP",
                        "chassis": [{"id": [{"type": "mac", "value": "aa"}]}],
                        "port": [{}],
                    },
                ]
            }
        ]
    }
)
AS_STATED = {
    "a": [("eth2", "leaf0.dc1.example", "Ethernet0"), ("eth0", "mgmt7", "ge-0/0/1")],
    "b": [("eth2", "leaf1", "Ethernet9")],
    "c": [("eth2", "leaf0", "Ethernet8"), ("eth3", "leaf1", "Ethernet8")],
    "leaf0": [
        ("Ethernet0", "a", "b8:59:9f:00:00:01"),
        ("Ethernet48", "spine0", "Ethernet0"),
        ("Ethernet52", "spine0", "Ethernet4"),
        ("Ethernet56", "spine1", "Ethernet0"),
        ("eth0", "mgmt7", "ge-0/0/2"),
    ],
    "spine0": [
        ("Ethernet0", "leaf0", "Ethernet48"),
        ("Ethernet4", "leaf0", "Ethernet52"),
        ("Ethernet8", "leaf1", "Ethernet48"),
        ("Ethernet12", "leaf1", "Ethernet52"),
    ],
}


@pytest.fixture
def found(tmp_path):
    """`found(seen)`: what the doctor finds when hosts and switches see these neighbours."""
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    inventory = load(path)

    def find(seen, speaking=()):
        of = {name: tuple(Neighbour(*row) for row in rows) for name, rows in seen.items()}
        hosts = [
            Report(host.name, (), neighbours=of.get(host.name, ()), lldp=host.name in speaking)
            for host in inventory.hosts
        ]
        switches = [SwitchReport(name, True, 0, (), neighbours=of.get(name, ())) for name in inventory.switches]
        return document(inventory, hosts, switches)

    return find


def seeing(name, old, new):
    """What is seen, with one neighbour replaced, or removed."""
    rows = [row for row in ([new if row == old else row for row in AS_STATED[name]]) if row]
    assert rows != AS_STATED[name]
    return AS_STATED | {name: rows}


def test_lldpds_output_is_read():
    """Interface, system and port come from the json0 form; what has no name, and any other output, gives nothing."""
    assert neighbours(RECORDED) == (Neighbour("eth2", "leaf0.dc1.example", "Ethernet0"),)
    for other in ("", "{}", "[]", "{", '{"lldp": [{"interface": [{"name": 3}]}]}', b"\xff", "[" * 5000):
        assert neighbours(other) == ()


def test_networkds_output_is_read():
    """Interface, system and port come from networkctl's form, too; a neighbour without a name gives nothing."""
    recorded = {
        "Neighbors": [
            {
                "InterfaceIndex": 4,
                "InterfaceName": "eth2",
                "Neighbors": [
                    {
                        "ChassisID": "1c:34:da:00:00:01",
                        "RawChassisID": [4, 28, 52, 218, 0, 0, 1],
                        "PortID": "Ethernet0",
                        "RawPortID": [5, 69],
                        "PortDescription": "a:eth2",
                        "SystemName": "leaf0",
                        "EnabledCapabilities": 20,
                    },
                    {"ChassisID": "1c:34:da:00:00:02", "PortID": "x"},
                ],
            }
        ]
    }
    assert neighbours(json.dumps(recorded)) == (Neighbour("eth2", "leaf0", "Ethernet0"),)


def test_a_host_is_asked_for_either(tmp_path, monkeypatch):
    """The report has lldpd's output, networkd's where lldpd does not answer, and nothing where neither does."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look.lldp() == ""
    networkctl = tmp_path / "networkctl"
    networkctl.write_text("#!/bin/sh\necho '{\"Neighbors\": []}'\n")
    networkctl.chmod(0o755)
    lldpctl = tmp_path / "lldpctl"
    lldpctl.write_text("#!/bin/sh\nexit 1\n")
    lldpctl.chmod(0o755)
    assert json.loads(look.lldp()) == {"Neighbors": []}
    lldpctl.write_text("#!/bin/sh\necho '{\"lldp\": []}'\n")
    assert json.loads(look.lldp()) == {"lldp": []}


def test_cables_as_stated_are_one_line(found):
    """Neighbours that are as stated give no difference, whether both ends of a cable report it or one."""
    assert found(AS_STATED).differences == ()
    assert overview.cable_lines(found(AS_STATED)) == ["ok   cables: what 5 hosts and switches see by LLDP is as stated"]
    assert found({"a": AS_STATED["a"], "leaf0": AS_STATED["leaf0"]}).differences == ()


def test_nothing_is_missed_where_nobody_looks(found):
    """Without any neighbour nothing is claimed, and the page says why."""
    assert found({}).differences == ()
    assert "no LLDP neighbours" in overview.cable_lines(found({}))[0]


@pytest.mark.parametrize(
    ("name", "old", "new", "difference"),
    [
        ("a", AS_STATED["a"][0], ("eth2", "leaf1", "Ethernet3"), ("a/0", "leaf0", Kind.ELSEWHERE, 1, 0, "leaf1")),
        (
            "a",
            AS_STATED["a"][0],
            ("eth2", "leaf0", "Ethernet4"),
            ("a/0", "leaf0/Ethernet0", Kind.ELSEWHERE, 1, 0, "leaf0/Ethernet4"),
        ),
        ("a", AS_STATED["a"][0], None, ("a/0", "leaf0", Kind.MISSING, 1, 0, "")),
        ("b", AS_STATED["b"][0], ("eth2", "tor9", "x"), ("b/0", "leaf1", Kind.ELSEWHERE, 1, 0, "tor9")),
        ("c", AS_STATED["c"][1], None, ("c/0", "leaf1", Kind.MISSING, 1, 0, "")),
        (
            "c",
            AS_STATED["c"][0],
            ("eth2", "leaf0", "Ethernet12"),
            ("c/0", "leaf0/Ethernet8", Kind.ELSEWHERE, 1, 0, "leaf0/Ethernet12"),
        ),
        ("leaf0", AS_STATED["leaf0"][3], None, ("leaf0", "spine1", Kind.MISSING, 1, 0, "")),
        ("spine0", AS_STATED["spine0"][2], None, ("leaf1", "spine0", Kind.FEWER, 2, 1, "")),
    ],
)
def test_a_cable_that_is_not_as_stated_is_named(found, name, old, new, difference):
    """Another switch, another port, a missing link and too few parallel ones: each is one difference and one line."""
    seen = found(seeing(name, old, new))
    assert seen.differences == (CableDifference(*difference, "LLDP"),)
    assert overview.cable_lines(seen) == [f"BAD  cable {seen.differences[0]}"]
    assert msgspec.json.decode(msgspec.json.encode(seen))["differences"][0]["by"] == "LLDP"


def test_a_host_that_hears_nobody_is_missed_by_its_switch(found):
    """Its only port is shut: it speaks LLDP, and the switch that hears others does not hear it."""
    seen = {name: rows for name, rows in AS_STATED.items() if name != "b"}
    seen["leaf1"] = [("Ethernet48", "spine0", "Ethernet8"), ("Ethernet52", "spine0", "Ethernet12")]
    assert found(seen).differences == ()
    assert found(seen, speaking=("b",)).differences == (
        CableDifference("b/0", "leaf1", Kind.MISSING, 1, 0, "", "LLDP"),
    )
    heard = seen | {"leaf1": [*seen["leaf1"], ("Ethernet9", "b.example", "eth2")]}
    assert found(heard, speaking=("b",)).differences == ()


def test_a_link_that_is_not_stated_is_named(found):
    """A further link between two switches, and one between switches that should have none."""
    more = AS_STATED | {"spine0": [*AS_STATED["spine0"], ("Ethernet16", "leaf1", "Ethernet56")]}
    assert [(one.a, one.b, one.kind, one.found) for one in found(more).differences] == [
        ("leaf1", "spine0", Kind.MORE, 3)
    ]
    across = AS_STATED | {"spine0": [*AS_STATED["spine0"], ("Ethernet16", "spine1", "Ethernet56")]}
    assert [(one.a, one.b, one.kind) for one in found(across).differences] == [("spine0", "spine1", Kind.UNEXPECTED)]


BAD_MTU = DeviceRemark("leaf0", Remark(Mark.BAD, "mtu", "Ethernet0", "another MTU"))


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({}, 0),
        ({"hosts": (Report("a", (Capability("rdma", State.ABSENT, "no device", "load it", needed=True),)),)}, 3),
        ({"hosts": (Report("a", (), remarks=(Remark(Mark.BAD, "link", "eth2", "no link"),)),)}, 3),
        ({"hosts": (Report("a", (), remarks=(Remark(Mark.NOTE, "age", "eth2", "it is old"),)),)}, 0),
        ({"switches": (SwitchReport("leaf0", True, 1, ("Ethernet0: errors grow",)),)}, 3),
        ({"switches": (SwitchReport("leaf0", False, 0, ("its system is not known",)),)}, 0),
        ({"misconfigurations": (BAD_MTU,)}, 3),
        ({"misconfigurations": (DeviceRemark("leaf0", Remark(Mark.UNKNOWN, "pfc", "", "its QoS")),)}, 0),
        ({"disagreements": ("MTU: 9216 at leaf0, 1500 at leaf1",)}, 3),
        ({"differences": (CableDifference("a/0", "leaf0", Kind.MISSING, 1, 0, by="LLDP"),)}, 3),
    ],
)
def test_whatever_the_page_calls_bad_is_the_exit_code(monkeypatch, tmp_path, capsys, wrong, code):
    """Code 3 with a line that begins with BAD, also for a setting, a switch or a cable; else 0."""
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    neighbours = (Neighbour("eth2", "leaf0", "Ethernet0"),)
    healthy = Document((Report("a", (), neighbours=neighbours),), (SwitchReport("leaf0", True, 1, ()),))
    found = msgspec.structs.replace(healthy, **wrong)
    for name, answer in (("look_at", ()), ("ask_all", ()), ("document", found)):
        monkeypatch.setattr(doctor, name, lambda *_, answer=answer, **__: answer)
    assert main(["doctor", "--hosts", str(path)]) == code
    assert any(line.startswith("BAD") for line in capsys.readouterr().out.splitlines()) == bool(code)
