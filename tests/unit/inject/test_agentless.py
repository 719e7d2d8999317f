"""A switch without c4bench as a target: what is planned, who may ask, and what the journal keeps when it is silent.

The switch prints what `Leaf` says; the scripts themselves are tried in test_switch_shell.py.
"""

import json
import os
import time

import msgspec
import pytest

from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import __main__ as injector
from c4bench.inject import agentless, feasibility, journal, places, privilege, reading, switch_shell
from c4bench.inject.catalogue import load
from c4bench.inject.fault_session import FaultSession, lease_of, planned
from c4bench.inject.first_plan import first_plan
from c4bench.inject.journal import Journal
from c4bench.inject.switch_shell import Answer, Span, UnreachableError
from c4bench.inventory import load as load_inventory
from c4bench.model.fault import AgentlessSwitch, FaultRequest

CATALOGUE = load()
REACHED = AgentlessSwitch("linux", ("ssh", "--", "10.0.0.1"))
ADDRESSES = [
    {"ifname": "lo", "ifindex": 1, "mtu": 65536, "link_type": "loopback", "flags": ["UP", "LOWER_UP"], "addr_info": []},
    *(
        {
            "ifname": name,
            "ifindex": index,
            "mtu": 9000,
            "link_type": "ether",
            "flags": ["UP", "LOWER_UP"],
            "addr_info": [{"family": "inet", "local": address, "prefixlen": 24, "scope": "global", "label": name}],
        }
        for index, name, address in ((2, "eth0", "10.0.0.1"), (3, "up0", "10.8.0.1"), (4, "up1", "10.8.1.1"))
    ),
]
BRIEF = Span(1.0, 1.1)  # when something was done there
ROUTES = (
    "default via 10.0.0.254 dev eth0 \n"
    "10.9.0.0/24 \n\tnexthop via 10.8.0.2 dev up0 weight 1 \n\tnexthop via 10.8.1.2 dev up1 weight 1 \n"
    "10.8.0.0/24 dev up0 proto kernel scope link src 10.8.0.1 \n"
)


class Leaf:
    """What the switch prints, whether it answers, and what it was asked to do."""

    def __init__(self):
        self.answers, self.asked, self.boot = True, [], "b0"
        self.printed = {
            "addresses": json.dumps(ADDRESSES),
            "qdiscs": json.dumps(
                [{"kind": "noqueue", "handle": "0:", "dev": name, "root": True} for name in ("up0", "up1")]
            ),
            "filters": "",
            "neighbours": "",
            "routes": ROUTES,
            "systems": "",
            "links": json.dumps([{"ifname": "up0", "stats64": {"tx": {"carrier_changes": 4}}}]),
            "speeds": "up0 Speed: 100000\n",
        }

    def answer(self):
        if not self.answers:
            raise UnreachableError("no connection: timed out")

    def read(self, *_):
        self.answer()
        self.asked.append("read")
        said = {"session": "10.0.0.9 5 10.0.0.1 22", "boot": self.boot, "uptime_ms": "5000"}
        return Answer(dict(self.printed), {}, said, BRIEF)

    def apply(self, fault, deadline_ms):
        self.answer()
        self.asked.append(("apply", fault.apply, deadline_ms))
        self.printed["routes"] = "10.9.0.0/24 via 10.8.0.2 dev up0 \n"
        return BRIEF

    def revert(self, fault):
        self.answer()
        self.asked.append(("revert", fault.revert))
        self.printed["routes"] = ROUTES
        return ""


@pytest.fixture
def leaf(monkeypatch, tmp_path):
    made = Leaf()
    for name in ("read", "apply", "revert"):
        monkeypatch.setattr(switch_shell, name, getattr(made, name))
    monkeypatch.setattr(journal, "STATE", tmp_path)
    monkeypatch.setattr(injector, "own_state", lambda: tmp_path)
    return made


def request(fault="link.ecmp_out", port="up1", **parameters):
    asked = FaultRequest(fault, "leaf0", port=port, switch=REACHED, parameters=parameters, lease_s=20.0)
    return CATALOGUE.resolve(asked)


def session(tmp_path, **changed):
    spec, asked = request(**changed)
    records = Journal.of(spec.target, "leaf0", tmp_path)
    return spec, FaultSession(records, lease_of(asked)), records


@pytest.mark.usefixtures("leaf")
def test_the_drivers_of_interfaces_plan_for_a_switch():
    """The lines are those that a host would run, with the switch's own routes, rates and indices."""
    made = planned(*request())
    assert made.apply == ("on leaf0, with a timer: ip -4 route replace 10.9.0.0/24 via 10.8.0.2 dev up0",)
    assert made.revert[0].startswith("on leaf0: ip -4 route replace 10.9.0.0/24 nexthop via 10.8.0.2 dev up0")
    assert made.hardware == "linux"
    assert "rate 25000000000bit" in planned(*request("link.rate", "up0", direction="tx")).apply[0]
    assert planned(*request("link.flap")).rhythm is None
    down = planned(*request("switch.down", None)).apply[0]
    assert "dev up0 down" in down
    assert "eth0" not in down


@pytest.mark.usefixtures("leaf")
@pytest.mark.parametrize(
    ("changed", "error", "why"),
    [
        ({"port": "eth0", "fault": "link.down"}, UsageError, "carries the session to leaf0"),
        ({"port": "up7"}, UnhealthyError, "leaf0 has no port up7; it has: eth0, up0, up1"),
        ({"fault": "link.speed", "port": "up0"}, UnhealthyError, "link.speed has no driver for linux"),
    ],
)
def test_what_must_not_or_cannot_be_done_is_refused(changed, error, why):
    """The port of our own session, one that is not there, and what the system has no driver for."""
    with pytest.raises(error, match=why):
        planned(*request(**changed))


def test_a_chip_that_follows_the_kernel_is_reached_by_its_links_only(leaf):
    """`tc` of the kernel does not reach what a chip forwards; setting its links does."""
    leaf.printed["links"] = json.dumps([{"ifname": "up1", "phys_switch_id": "0011"}])
    assert planned(*request("link.down")).apply
    with pytest.raises(UnhealthyError, match="the chip of leaf0/up1 forwards"):
        planned(*request("link.loss"))


@pytest.mark.usefixtures("leaf")
def test_an_unknown_system_is_refused_with_those_there_are():
    """A misspelt name gets the one that is meant."""
    asked = msgspec.structs.replace(request()[1], switch=AgentlessSwitch("sonick"))
    with pytest.raises(UsageError, match=r"leaf0: there is no system 'sonick' of a switch.*sonic"):
        agentless.examine(asked)


def test_the_lease_ends_at_the_same_moment_on_the_switch(leaf, tmp_path):
    """The switch's uptime at its reading gives the end on its own clock, however long planning takes.

    When the fault began is what the switch's shell gives, and not when it was called.
    """
    spec, made, _ = session(tmp_path)
    assert made.begin(spec) == (BRIEF.ended_s, pytest.approx(BRIEF.ended_s - BRIEF.began_s))
    (deadline_ms,) = [asked[2] for asked in leaf.asked if asked[0] == "apply"]
    left_ms = 1000 * (made.deadline_s - time.monotonic())
    assert 5000 + left_ms <= deadline_ms <= 5000 + 20_000
    made.end()
    assert leaf.asked[-2][0] == "revert"


def test_a_silent_switch_keeps_its_entry_until_it_is_known_to_be_well(leaf, tmp_path, capsys):
    """The fault may be in force: the entry stays, `heal` says so, and undoes it once the switch answers."""
    spec, made, records = session(tmp_path)
    made.begin(spec)
    leaf.answers = False
    with pytest.raises(UnreachableError):
        made.end()
    assert [entry.lease.id for entry in records.entries()] == [made.lease.id]
    with pytest.raises(
        UnhealthyError, match="is not known to be over, because its switch was not asked: no connection"
    ):
        injector._heal_own()
    leaf.answers = True
    injector._heal_own()
    assert json.loads(capsys.readouterr().out)["residue"] == []
    assert not records.entries()
    made.end()


def test_a_restart_of_the_controller_does_not_end_a_fault_of_a_switch(leaf, tmp_path, monkeypatch):
    """Its journal is on disk: the entry counts as in force, and as over once its lease has ended by the wall clock."""
    spec, made, records = session(tmp_path)
    made.begin(spec)
    monkeypatch.setattr(journal, "boot", lambda: "another")
    (entry,) = records.entries()
    assert entry.in_force
    assert not entry.over
    late = msgspec.structs.replace(entry, lease=msgspec.structs.replace(entry.lease, expires_s=time.time() - 1))
    assert late.over
    injector._heal_own()
    assert leaf.asked[-2] == ("revert", entry.plan.revert[0].fault.revert)
    made.end()


@pytest.mark.usefixtures("leaf")
def test_what_reads_back_otherwise_is_a_residue(tmp_path, monkeypatch):
    """A revert that the switch did not carry out quarantines it."""
    spec, made, records = session(tmp_path)
    made.begin(spec)
    monkeypatch.setattr(switch_shell, "revert", lambda _: "")
    monkeypatch.setattr(journal, "_RESIDUE_TIMEOUT_S", 0.1)
    assert made.end().residue
    with pytest.raises(UnhealthyError, match="leaf0 is quarantined since"):
        records.refuse_quarantined()


def test_a_fault_that_does_nothing_is_not_seen(leaf):
    """The witness compares what reads back: nothing has changed, so nothing is seen; a changed route is."""
    for witness, seen in (("port_unused", True), ("link_state", False), ("link_flaps", False)):
        asked = msgspec.structs.replace(request("link.flap")[1], witness_s=0.01, parameters={"period_s": 0.01})
        looks = agentless.SwitchWitness(asked, witness)
        leaf.printed["routes"] = ROUTES
        before = looks.before()
        assert before == {"changed": 0.0, "up": 1.0, "flaps": 0.0}
        assert looks.during(0.0).observed_s is None
        leaf.printed["routes"] = "10.9.0.0/24 via 10.8.0.2 dev up0 \n"
        assert (looks.during(0.0).observed_s is not None) is seen


def test_a_port_that_went_down_and_up_is_seen_to_flap(leaf):
    """The kernel counts each change of carrier, also between two readings."""
    asked = msgspec.structs.replace(request("link.flap", "up0")[1], witness_s=0.01, parameters={"period_s": 0.01})
    looks = agentless.SwitchWitness(asked, "link_flaps")
    looks.before()
    leaf.printed["links"] = leaf.printed["links"].replace("4", "6").replace("stats66", "stats64")
    assert looks.during(0.0).values["flaps"] == 2.0


def test_a_switch_is_read_once_for_all_faults_that_are_tried(leaf):
    """Reading one takes seconds, and a try changes nothing."""
    with reading.once():
        for fault in ("link.down", "link.ecmp_out", "link.flap"):
            spec, asked = request(fault)
            assert first_plan(spec, msgspec.structs.replace(asked, port=None)).hardware == "linux"
    assert leaf.asked == ["read"]


def asked_own(capsys, *words):
    code = injector.main(["--own", *words])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("leaf")
def test_the_programs_that_reach_a_switch_are_never_roots(monkeypatch, capsys):
    """Who has become root by sudo, and a request for root's injector, may not say which program is run."""
    text = msgspec.json.encode(request()[1]).decode()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(privilege, "caller", lambda: 1000)
    code, answer = asked_own(capsys, "plan", text)
    assert code == 2
    assert "call it without sudo" in answer["error"]
    monkeypatch.setattr(privilege, "caller", lambda: 0)
    assert injector.main(["plan", text]) == 2
    assert "add --own" in json.loads(capsys.readouterr().out)["error"]
    plain = msgspec.json.encode(msgspec.structs.replace(request()[1], switch=None)).decode()
    code, answer = asked_own(capsys, "hold", plain)
    assert code == 2
    assert "is no switch that is changed over SSH" in answer["error"]
    assert asked_own(capsys, "plan", text)[0] == 0


def test_a_user_keeps_their_own_journal(monkeypatch, tmp_path):
    """No root is needed where the controller runs: what a user does to a switch is in their own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert journal.own_state() == tmp_path / "c4bench"


INVENTORY = """\
all:
  hosts: {h5: {c4: {disruptive: true}}}
  children:
    switches:
      hosts:
        leaf0: {ansible_host: 10.0.0.1, ansible_user: admin, c4: {disruptive: true, os: linux}}
        leaf1: {ansible_connection: local, c4: {os: linux}}
"""


def test_the_inventory_says_how_a_switch_is_reached(tmp_path):
    """The words of ssh are those of its host, user and options; a local one needs none."""
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    inventory = load_inventory(path)
    reached = places.parse("leaf0/up1", inventory).request("link.down", {}, 5.0, 0.3, last_nic=True).switch
    assert reached.system == "linux"
    assert reached.ssh[0] == "ssh"
    assert reached.ssh[-4:] == ("-l", "admin", "--", "10.0.0.1")
    assert places.parse("leaf1", inventory).switch == AgentlessSwitch("linux", ())
    assert places.parse("h5", inventory).switch is None


def test_switches_are_asked_for_what_they_can_have_from_here(leaf, tmp_path, monkeypatch):
    """No connection to the switch's own Python is opened: our injector reads it over SSH."""
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    started = []

    class Local:
        def __init__(self, host):
            self.host = host

        def start(self, argv):
            started.append((self.host, argv[-2:]))
            return Tried()

    class Tried:
        def write_line(self, line):
            self.line = line

        def read_line(self, _):
            asked = msgspec.json.decode(self.line, type=FaultRequest)
            made = first_plan(CATALOGUE.specs[asked.fault], asked)
            return msgspec.json.encode(made).decode()

        def close(self):
            pass

    monkeypatch.setattr(feasibility, "LocalConnection", Local)
    specs = {"link.down": CATALOGUE.specs["link.down"]}
    known = feasibility.ask_hosts(load_inventory(path), specs, lambda _: pytest.fail("asked there"), lambda _: "python")
    assert known.obstacle_at("link.down", "leaf0") == ""
    assert started == [("leaf0", ["--own", "try"])]
    assert leaf.asked
