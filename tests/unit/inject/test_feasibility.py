"""What an inventory's hosts can have is planned on each of them before anything is asked for."""

import socket
import sys

import pytest
from fakes import NOQUEUE, nic_request, rank_request, target

from c4bench import inventory, remote
from c4bench.errors import UnhealthyError
from c4bench.inject import catalogue, connectx, feasibility, interfaces, targets
from c4bench.inject.feasibility import Feasibility
from c4bench.inject.first_plan import first_plan
from c4bench.inject.places import Place
from c4bench.model.fabric import Host
from c4bench.model.fault import FaultRequest, TargetKind

SPECS = catalogue.load().specs
NETDEV = next((name for _, name in socket.if_nameindex() if name != "lo"), "")
SPEEDS = """Supported link modes:   10000baseCR/Full
                        25000baseCR/Full
Supported pause frame use: Symmetric
Advertised link modes:  10000baseCR/Full
                        25000baseCR/Full
Advertised pause frame use: Symmetric
Auto-negotiation: on
Speed: 25000Mb/s
"""


@pytest.fixture
def host(monkeypatch):
    """Make the target a NIC of that kind of hardware."""

    def of(kind, **sections):
        monkeypatch.setattr(interfaces, "hardware", lambda _: kind)
        monkeypatch.setattr(targets, "examine", lambda *_: target(NOQUEUE, **sections))
        monkeypatch.setattr(connectx, "require_own_port", lambda _: None)

    return of


@pytest.mark.parametrize("fault", ["nic.loss", "nic.corrupt", "nic.delay", "nic.reorder", "nic.blackhole"])
def test_what_tc_does_is_not_offered_to_hardware_that_sends_past_it(host, fault):
    """On a ConnectX the answer is the catalogue's reason, and on rxe it is a plan."""
    host("mlx5_core")
    with pytest.raises(UnhealthyError, match=f"h5/0 cannot have {fault}: no tool of the NIC"):
        first_plan(SPECS[fault], nic_request(fault))
    host("rxe")
    assert first_plan(SPECS[fault], nic_request(fault)).apply


def test_every_fault_of_a_nic_is_answered_for_a_connectx():
    """It has a driver that touches RDMA there, or the catalogue says why not."""
    silent = {
        name
        for name, spec in SPECS.items()
        if (spec.target is TargetKind.NIC or name == "host.data_cut")
        and not {"mlx5_core"} & {*spec.drivers, *spec.no_driver}
    }
    assert silent == set()
    assert all(spec.drivers.keys().isdisjoint(spec.no_driver) for spec in SPECS.values())


def test_other_parameters_are_tried_where_the_defaults_do_not_fit(host, monkeypatch):
    """A NIC of 25 Gbit/s cannot be slowed down to the default of nic.speed, but to 10 Gbit/s."""
    host("mlx5_core")
    monkeypatch.setattr(connectx, "ask", lambda *_: SPEEDS)
    assert SPECS["nic.speed"].parameters["speed"].default not in {"10G", None}
    assert first_plan(SPECS["nic.speed"], nic_request("nic.speed")).apply == (
        "ethtool -s h5n0 speed 10000 autoneg off",
    )
    monkeypatch.setattr(connectx, "ask", lambda *_: SPEEDS.replace("Speed: 25000", "Speed: 10000"))
    with pytest.raises(UnhealthyError, match="h5/0 runs at 10000 Mb/s, no more than"):
        first_plan(SPECS["nic.speed"], nic_request("nic.speed"))


def test_a_fault_of_a_process_needs_no_running_rank():
    """Before a run there is no job; that there is a driver is all that can be known."""
    assert first_plan(SPECS["process.stop"], rank_request("process.stop")).apply == ()


def test_a_switch_without_a_port_that_is_up_can_have_no_port_fault(monkeypatch):
    """Without a port there is nothing to plan, and that is said."""
    monkeypatch.setattr(targets, "switch_ports", lambda _: [])
    with pytest.raises(UnhealthyError, match="leaf0 has no port that is up"):
        first_plan(SPECS["link.down"], FaultRequest("link.down", "leaf0"))


@pytest.mark.skipif(not NETDEV, reason="no-interface: this machine has only its loopback")
def test_hosts_are_asked_and_answer_for_themselves(tmp_path):
    """The injector of each host plans: nothing is applied, and a host that cannot be asked can have nothing."""
    path = tmp_path / "hosts.yml"
    path.write_text(f"""
all:
  vars: {{ansible_connection: local}}
  hosts:
    h0: {{c4: {{disruptive: true, python: {sys.executable}, nics: [{{netdev: {NETDEV}, rate: 10gbit}}]}}}}
    h1: {{c4: {{disruptive: true, python: /no/such/python, nics: [{{netdev: {NETDEV}, rate: 10gbit}}]}}}}
    h2: {{c4: {{python: {sys.executable}, nics: [{{netdev: {NETDEV}}}]}}}}
""")
    loaded = inventory.load(path)
    asked = {name: SPECS[name] for name in ("nic.mtu", "nic.qos", "process.kill", "compound.two_nics", "nic.down")}
    asked["nic.rate"] = SPECS["nic.rate"]
    answers = feasibility.ask_hosts(
        loaded,
        asked | {"link.down": SPECS["link.down"]},
        lambda host: remote.connect(host, loaded.access[host]),
        lambda host: loaded.access[host].python,
    )
    assert answers.obstacle_at("nic.mtu", "h0/0") == answers.obstacle("nic.mtu") == ""
    assert answers.obstacle_at("nic.qos", "h0/0").startswith("nic.qos has no driver for ethernet such as h0/0")
    assert answers.obstacle("nic.qos").startswith("h0/0: nic.qos has no driver for ethernet")
    assert "/no/such/python" in answers.obstacle_at("process.kill", "h1")
    assert set(answers.answers["nic.down"]) == {"h0/0", "h1/0"}
    assert answers.obstacle("compound.two_nics") == ""
    assert answers.obstacle("link.down") == "no host or switch that permits faults has what it happens to"


def test_a_compound_lacks_what_its_parts_lack():
    """Without a driver for one of its parts the compound cannot be had."""
    known = Feasibility({"nic.loss": {"h5/0": "no driver for mlx5_core"}, "nic.down": {"h5/0": ""}})
    assert feasibility._of_parts(SPECS["compound.cascade"], known) == {"any": "nic.loss: h5/0: no driver for mlx5_core"}


def test_the_lab_is_what_the_catalogue_says_of_it():
    """Only faults that are not for the lab are left out there; nothing is asked."""
    known = feasibility.of_lab(SPECS)
    assert set(known.left_out(SPECS)) == {name for name, spec in SPECS.items() if spec.not_in_lab} > set()
    assert known.obstacle("nic.qos") == f"the lab: {SPECS['nic.qos'].not_in_lab}"


def test_a_place_has_the_name_that_answers_have():
    """A process is asked of its host, and a port of its switch."""
    place = Place(Host("h5", "10.0.0.5", (target().interface,)))
    assert feasibility.place_name(place) == "h5"
    assert feasibility.place_name(Place(place.host, nic=target().interface)) == "h5/0"
