"""Switches are asked for their settings, neighbours and counters, and judged together with the hosts' NICs."""

import copy
import json
from pathlib import Path

import msgspec
import pytest
from saved_fabric import config_db, drawn
from test_capabilities import CLOCK, FOUND, HOST, netdev

from c4bench.doctor import overview
from c4bench.doctor.capabilities import evaluate
from c4bench.doctor.facts import Mark
from c4bench.doctor.live import examine
from c4bench.doctor.misconfigurations import judge
from c4bench.doctor.settings import Device, of_switch, stated_links
from c4bench.doctor.switches import ask_all
from c4bench.errors import UsageError
from c4bench.inventory import load
from c4bench.model.graph import FabricGraph, HostPort, Trunk
from c4bench.remote import Completed
from c4bench.switches import eos, nvue
from c4bench.switches.sonic import configured

PRINTED = Path(__file__).parents[1] / "switches/printed"
ONE = "all: {{hosts: {{n1: }}, children: {{switches: {{hosts: {{leaf0: {}}}}}}}}}"
PORTS = drawn(1, "sonic").switches["leaf0"][:2]
STATUS = """  Interface  Lanes  Speed   MTU  Oper  Admin
-----------  -----  -----  ----  ----  -----
  Ethernet0    0,1   100G  9216    up     up
  Ethernet4    2,3   100G  9216    up     up
"""
COUNTERS = {"Ethernet0": {"STATE": "U", "RX_ERR": "1,204", "RX_DRP": "0", "TX_ERR": "N/A", "TX_DRP": "0"}}
LATER = {"Ethernet0": COUNTERS["Ethernet0"] | {"RX_ERR": "1,300"}}
GROWN = "Ethernet0: errors grow, RX_ERR 1204 to 1300; check the cable, the optics, and the port at its other end"


class Switch:
    """A connection to a switch that answers from a table, by the command or the first word of a shell's line."""

    def __init__(self, answers):
        self.answers = answers

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass

    def run(self, argv, *, input=b"", **_):  # noqa: A002
        line = input.decode().strip() or (argv[2] if argv[:2] == ["sh", "-c"] else argv[0])
        code, said = self.answers.get(line, (127, ""))
        if isinstance(said, list):
            said = said.pop(0)
        return Completed(code, said.encode(), b"")


def inventory(tmp_path, text="all: {hosts: {n1: }, children: {switches: {hosts: {leaf0: , leaf1: }}}}"):
    path = tmp_path / "hosts.yml"
    path.write_text(text)
    return load(path)


def sonic(config, **answers):
    return Switch(
        {
            "command -v sonic-cfggen": (0, "/usr/local/bin/sonic-cfggen\n"),
            "sonic-cfggen -d --print-data": (0, json.dumps(config)),
            "show interfaces status": (0, STATUS),
            "ip neighbour show nud permanent": (0, ""),
            "command -v sonic-db-cli redis-cli || true": (0, "/usr/bin/sonic-db-cli\n"),
            **answers,
        }
    )


def test_a_switch_is_asked_and_one_of_another_make_says_so(tmp_path):
    """SONiC's own words are read past what it says before them; what is not known is not judged."""
    said = ["Last cached time was 2026-01-01\n" + json.dumps(one) for one in (COUNTERS, LATER)]
    asked = sonic(config_db(PORTS), portstat=(0, said))
    reports = ask_all(inventory(tmp_path), lambda name, _: asked if name == "leaf0" else Switch({}), apart_s=0.0)
    assert (reports[0].audited, reports[0].ports, reports[0].problems, reports[0].system) == (
        True,
        2,
        (GROWN,),
        "sonic",
    )
    assert [port.name for port in reports[0].settings] == ["Ethernet0", "Ethernet4"]
    assert not reports[1].audited
    page = overview.switch_lines(reports)
    assert page[0].startswith("BAD  switch leaf0: Ethernet0: errors grow, RX_ERR")
    assert page[1].startswith("?    switch leaf1: its system is not known")


def test_the_system_that_the_inventory_states_is_asked_for(tmp_path):
    """A stated system is not looked for, and what it does not answer is named; one that does not exist is refused."""
    of = {name: ONE.format(f"{{c4: {{os: {name}}}}}") for name in ("sonic", "sonick")}
    (report,) = ask_all(inventory(tmp_path, of["sonic"]), lambda *_: Switch({}), apart_s=0.0)
    assert report.problems == ("leaf0: `sonic-cfggen -d --print-data` failed: code 127",)
    with pytest.raises(UsageError, match="leaf0: 'sonick' is no system of switches"):
        ask_all(inventory(tmp_path, of["sonick"]), lambda *_: Switch({}), apart_s=0.0)


def test_live_switches_are_judged_with_the_hosts(tmp_path):
    """The inventory's DSCP, the hosts' priorities and the switch's classes must agree; each odd one is named."""
    known = inventory(
        tmp_path,
        "all: {hosts: {n1: {c4: {dscp: 26, nics: [{netdev: eth2}]}}}, children: {switches: {hosts: {leaf0: }}}}",
    )
    healthy = drawn(1, "sonic")
    ports = [copy.deepcopy(port) for port in healthy.switches["leaf0"][:2]]
    for port in ports:
        port.pfc, port.marks = {3}, {3: (150_000, 1_500_000, 5)}
    (switch,) = ask_all(known, lambda *_: sonic(config_db(ports)))

    def found(facts, switch=switch):
        _, settings = examine(facts, lambda commands: [""] * len(commands))
        report = msgspec.structs.replace(evaluate(HOST, facts, CLOCK), settings=settings)
        return overview.document(known, [report], [switch])

    right = found(FOUND)
    assert (right.misconfigurations, right.disagreements) == ((), ())
    assert overview.setting_lines(right) == ["ok   settings of switches and NICs: as RDMA needs them"]
    (line,) = found(netdev(priorities=(4,) * 64, pfc=(4,))).disagreements
    assert (
        "the priority of DSCP 26 differs, and nothing says which is right: priority 4 on n1; priority 3 on leaf0"
        in line
    )
    (one,) = found(netdev(pfc=())).misconfigurations
    assert (one.device, one.remark.where, one.remark.mark) == ("n1", "eth2", Mark.BAD)
    assert one.remark.advice == "mlnx_qos -i eth2 --pfc 0,0,0,1,0,0,0,0"


def test_alike_ports_are_one_line():
    """A setting that is wrong on every port of a switch is one line, whose command has PORT for each."""
    remarks = [overview.DeviceRemark("leaf0", one) for one in _watchdog_remarks()]
    (line,) = overview.setting_lines(overview.Document((), (), tuple(remarks)))
    assert line.startswith("BAD  leaf0 Ethernet0, leaf0 Ethernet4, ")
    assert line.endswith("-> sudo config pfcwd start --action drop PORT 400 --restoration-time 400")


def _watchdog_remarks():
    ports = [copy.deepcopy(port) for port in drawn(1, "sonic").switches["leaf0"]]
    for port in ports:
        port.watchdog = False
    return judge([Device("leaf0", (), of_switch(configured(json.dumps(config_db(ports)))), "sonic")]).remarks["leaf0"]


def test_a_linux_switch_is_asked_for_the_kernels_error_counters(tmp_path):
    """On other Linux, interfaces with errors are named from `ip -s -j link`; drops are not errors."""
    known = inventory(tmp_path, "all: {hosts: {n1: }, children: {switches: {hosts: {leaf0: }}}}")
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
    (report,) = ask_all(known, lambda *_: linux, apart_s=0.0)
    assert report.problems[1:] == (
        "swp1: errors grow, rx_errors 9 to 12; check the cable, the optics, and the port at its other end",
    )
    (again,) = ask_all(known, lambda *_: linux, apart_s=0.0)
    assert again.problems == report.problems[:1]
    assert again.notes == ("swp1: rx_errors 12 in all, not growing: no reason to touch the cable",)


@pytest.mark.parametrize(
    ("system", "port", "advice"),
    [
        (nvue.SYSTEM, "swp52", "nv set interface swp52 qos pfc-watchdog state enable; nv config apply"),
        (eos.SYSTEM, "Ethernet2/1", "interface Ethernet2/1; priority-flow-control pause watchdog"),
    ],
    ids=["nvue", "eos"],
)
@pytest.mark.parametrize("stated", [True, False])
def test_switches_of_other_systems_are_asked(tmp_path, system, port, advice, stated):
    """Cumulus and EOS are found by their commands or stated; the port without a watchdog is named in their words."""
    known = inventory(tmp_path, ONE.format(f"{{c4: {{os: {system.name}}}}}" if stated else ""))
    needed = {name: read.command for name, read in system.reads.items() if read.needed}
    answers = {line: (0, (PRINTED / f"{system.name}_{name}.json").read_text()) for name, line in needed.items()}
    first = next(iter(needed.values())).split()[0]
    reports = ask_all(known, lambda *_: Switch({**answers, f"command -v {first}": (0, first)}), apart_s=0.0)
    assert (reports[0].system, reports[0].problems) == (system.name, ())
    (one,) = overview.document(known, [], reports).misconfigurations
    assert (one.device, one.remark.where, one.remark.kind, one.remark.advice) == ("leaf0", port, "watchdog_off", advice)


def test_a_prompt_that_refuses_without_an_error_is_not_a_system(tmp_path):
    """A switch of another make that answers every line with words and code 0 is of no system that is known."""

    class Prompt(Switch):
        def run(self, *_, **__):
            return Completed(0, b"% Invalid input\n", b"")

    (report,) = ask_all(inventory(tmp_path, ONE.format("")), lambda *_: Prompt({}), apart_s=0.0)
    assert not report.audited
    assert report.problems[0].startswith("its system is not known")


def test_stated_cables_say_what_ports_lead_to():
    """Without LLDP, the ends that the inventory states are the ends of a cable; those without ports are unknown."""
    cables = (HostPort("n1", "leaf0", 1e11, nic=0, port="Ethernet0"), HostPort("n1", "leaf0", 1e11, nic=1))
    graph = FabricGraph(("leaf0", "spine0"), ("n1",), cables, (Trunk("leaf0", "spine0", 1e11, a_port="a", b_port="b"),))
    assert stated_links(graph, [HOST]) == {
        "n1": {"eth2": ("leaf0", "Ethernet0")},
        "leaf0": {"Ethernet0": ("n1", "eth2"), "a": ("spine0", "b")},
        "spine0": {"b": ("leaf0", "a")},
    }
