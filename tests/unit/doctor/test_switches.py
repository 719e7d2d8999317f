"""What of a SONiC switch's settings would hurt RoCE."""

import copy
import json

import pytest

from c4bench.doctor import overview
from c4bench.doctor.switches import SwitchReport, audit, audit_all
from c4bench.inventory import load
from c4bench.remote import Completed

QOS = {"dscp_to_tc_map": "AZURE", "pfc_enable": "3,4", "pfc_to_queue_map": "AZURE", "tc_to_queue_map": "AZURE"}
GOOD = {
    "PORT": {
        "Ethernet0": {"admin_status": "up", "mtu": "9100", "speed": "100000"},
        "Ethernet4": {"admin_status": "up", "mtu": "9100", "speed": "100000"},
        "Ethernet8": {"mtu": "1500"},
    },
    "PORT_QOS_MAP": {"Ethernet0,Ethernet4": QOS},
    "QUEUE": {
        "Ethernet0,Ethernet4|3": {"wred_profile": "AZURE_LOSSLESS"},
        "Ethernet0|4": {"wred_profile": "[WRED_PROFILE|AZURE_LOSSLESS]"},
        "Ethernet4|4": {"wred_profile": "AZURE_LOSSLESS"},
    },
    "WRED_PROFILE": {"AZURE_LOSSLESS": {"ecn": "ecn_all", "green_min_threshold": "250000"}},
    "PFC_WD": {"Ethernet0": {"action": "drop"}, "Ethernet4": {"action": "drop"}},
}
COUNTERS = {"Ethernet0": {"STATE": "U", "RX_ERR": "1,204", "RX_DRP": "0", "TX_ERR": "N/A", "TX_DRP": "0"}}
LATER = {"Ethernet0": COUNTERS["Ethernet0"] | {"RX_ERR": "1,300"}}


def without(*path):
    config = copy.deepcopy(GOOD)
    table_ = config
    for key in path[:-1]:
        table_ = table_[key]
    del table_[path[-1]]
    return config


def test_a_switch_that_is_set_up_for_roce_has_no_problem():
    """Lossless priorities with marking, trust and watchdog on every port that is up; others do not matter."""
    assert list(audit(GOOD)) == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GOOD | {"PORT_QOS_MAP": {"Ethernet0": QOS}}, ["Ethernet4: PFC is off"]),
        (
            without("WRED_PROFILE", "AZURE_LOSSLESS"),
            ["Ethernet0: queue 3", "Ethernet4: queue 4", "without ECN marking"],
        ),
        (without("PFC_WD", "Ethernet4"), ["Ethernet4: no PFC watchdog"]),
        (without("PORT_QOS_MAP", "Ethernet0,Ethernet4", "dscp_to_tc_map"), ["no dscp_to_tc_map"]),
        (GOOD | {"PORT": {"Ethernet0": {"admin_status": "up", "mtu": "1500"}}}, ["Ethernet0: MTU 1500"]),
        (
            GOOD | {"PORT_QOS_MAP": {"Ethernet0": QOS, "Ethernet4": QOS | {"pfc_enable": "3"}}},
            ["different lossless priorities: 3,4 on 1 ports (Ethernet0); 3 on 1 ports (Ethernet4)"],
        ),
    ],
)
def test_each_gap_is_named_with_its_port(config, words):
    """What would drop, not mark, or fragment."""
    problems = "\n".join(audit(config))
    assert problems
    assert all(word in problems for word in words), problems


class Switch:
    """A connection to a switch that answers from a table."""

    def __init__(self, answers):
        self.answers = answers

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass

    def run(self, argv, **_):
        code, said = self.answers.get(" ".join(argv[2:]) if argv[0] == "sh" else argv[0], (127, ""))
        if isinstance(said, list):
            said = said.pop(0)
        return Completed(code, said.encode(), b"")


def test_a_switch_is_asked_and_one_of_another_make_says_so(tmp_path):
    """SONiC's own words are read past what it says before them; what is not SONiC is not judged."""
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {n1: }, children: {switches: {hosts: {leaf0: , leaf1: }}}}")
    sonic = Switch(
        {
            "command -v sonic-cfggen": (0, "/usr/local/bin/sonic-cfggen\n"),
            "sonic-cfggen": (0, json.dumps(GOOD)),
            "portstat": (0, ["Last cached time was 2026-01-01\n" + json.dumps(one) for one in (COUNTERS, LATER)]),
        }
    )
    reports = audit_all(load(path), lambda name, _: sonic if name == "leaf0" else Switch({}), apart_s=0.0)
    grown = "Ethernet0: errors grow, RX_ERR 1204 to 1300; check the cable, the optics, and the port at its other end"
    assert reports[0] == SwitchReport("leaf0", True, 2, (grown,))
    assert not reports[1].audited
    page = overview.switch_lines(reports)
    assert page[0].startswith("BAD  switch leaf0: Ethernet0: errors grow, RX_ERR")
    assert page[1].startswith("?    switch leaf1: not SONiC")


def test_a_linux_switch_is_asked_for_the_kernels_error_counters(tmp_path):
    """On Cumulus and other Linux, interfaces with errors are named from `ip -s -j link`; drops are not errors."""
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {n1: }, children: {switches: {hosts: {leaf0: }}}}")
    link = {
        "ifindex": 3,
        "ifname": "swp1",
        "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
        "mtu": 9216,
        "stats64": {
            "rx": {"bytes": 9182, "packets": 71, "errors": 12, "dropped": 4, "over_errors": 0, "multicast": 2},
            "tx": {"bytes": 8110, "packets": 66, "errors": 0, "dropped": 9, "carrier_errors": 0, "collisions": 0},
        },
    }
    before, after = copy.deepcopy(link), copy.deepcopy(link)
    before["stats64"]["rx"]["errors"] = 9
    linux = Switch({"ip": (0, [json.dumps([{"ifname": "lo"}, one]) for one in (before, after, after, after)])})
    (report,) = audit_all(load(path), lambda *_: linux, apart_s=0.0)
    assert report.problems == (
        "not SONiC: its QoS settings are not checked",
        "swp1: errors grow, rx_errors 9 to 12; check the cable, the optics, and the port at its other end",
    )
    (again,) = audit_all(load(path), lambda *_: linux, apart_s=0.0)
    assert again.problems == report.problems[:1]
    assert again.notes == ("swp1: rx_errors 12 in all, not growing: no reason to touch the cable",)
