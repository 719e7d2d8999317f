"""Wrong settings of the catalogue are found by doctor while in force, where they are, and not before or after."""

import random
from functools import partial

import msgspec
import pytest

from c4bench.doctor.facts import Mark
from c4bench.doctor.hosts import look_at
from c4bench.doctor.overview import document
from c4bench.doctor.switches import ask_all
from c4bench.errors import UnhealthyError
from c4bench.inject import catalogue
from c4bench.model.fault import TargetKind
from c4bench.model.measurement import Clock

pytestmark = [pytest.mark.needs("disruptive", "root"), pytest.mark.nightly]
DRAWS = 10
WRONG = {spec.name: spec for spec in catalogue.load().specs.values() if spec.doctor}
# Values to draw from; other parameters have their default.
VALUES = {
    "switch.ecn_thresholds": {"factor": (0.1, 0.5, 3.0, 10.0)},
    "switch.dscp_map": {"class": (0.0, 1.0, 2.0, 4.0, 6.0)},
    "switch.mtu": {"mtu_bytes": (1500.0, 2048.0, 4096.0)},
    "nic.mtu": {"mtu_bytes": (1500.0, 2048.0, 4096.0)},
}


class Doctor:
    """What `c4bench doctor --hosts` finds; a host or a switch is looked at again alone, since each look takes long."""

    def __init__(self, inventory):
        self.inventory = inventory
        self.reports = {report.host: report for report in look_at(inventory)}
        self.switches = {}

    def found(self, *names):
        """The wrong settings, as (device, port or NIC, rule), after a new look at these, or at all switches."""
        hosts = tuple(known for known in self.inventory.hosts if known.name in names)
        switches = tuple(known for known in self.inventory.switches if known in names or not names)
        named = msgspec.structs.replace(self.inventory, hosts=hosts, switches=switches)
        self.reports |= {report.host: report for report in look_at(named)}
        self.switches |= {report.switch: report for report in ask_all(named, apart_s=0.0)}
        said = document(self.inventory, [*self.reports.values()], [*self.switches.values()])
        assert not said.disagreements
        return [
            (one.device, one.remark.where, one.remark.kind)
            for one in said.misconfigurations
            if one.remark.mark is Mark.BAD
        ]

    def ports(self):
        """The ports of switches that are up and pause a priority."""
        return [
            (name, port.name)
            for name, switch in self.switches.items()
            for port in switch.settings
            if port.up and port.pfc
        ]


@pytest.fixture(scope="module")
def doctor(inventory):
    """The doctor of a fabric that is healthy before the first fault."""
    if not any(inventory.facts[name].os for name in inventory.switches):
        pytest.skip("no-systems: no switch of the inventory states its operating system (c4.os)")
    asked = Doctor(inventory)
    assert asked.found() == []
    return asked


def drawn(name, draw):
    return {parameter: draw.choice(values) for parameter, values in VALUES.get(name, {}).items()}


def proved(injector, place, name, word, parameters, look):
    """Whether doctor finds the fault at its place alone, while it is in force; then nothing is left of it."""
    try:
        with injector.apply_at(name, place(word), parameters, lease_s=120.0):
            return look()
    except UnhealthyError as error:
        if "has no driver for" in str(error) or "cannot have" in str(error):
            pytest.skip(f"unsupported: {error}")
        raise


@pytest.mark.parametrize("name", sorted(name for name, spec in WRONG.items() if spec.target is TargetKind.PORT))
def test_wrong_settings_of_switches_are_found(name, doctor, injector, place, measure):
    """In 10 of 10 draws of the port and the value, doctor names that port, by the rule that the catalogue states."""
    draw, right, ports = random.Random(name), 0, doctor.ports()
    for _ in range(DRAWS):
        switch, port = draw.choice(ports)
        found = proved(injector, place, name, f"{switch}/{port}", drawn(name, draw), partial(doctor.found, switch))
        right += found == [(switch, port, WRONG[name].doctor)]
        assert doctor.found(switch) == []
    measure("misconfiguration.found_fraction", right / DRAWS, equals=1, clock=Clock.NONE, fault=name)


@pytest.mark.parametrize("name", sorted(name for name, spec in WRONG.items() if spec.target is TargetKind.NIC))
def test_wrong_settings_of_hosts_are_found(name, doctor, hosts, injector, place, measure):
    """In 10 of 10 draws of the NIC and the value, doctor names that NIC, by the rule that the catalogue states."""
    draw, right = random.Random(name), 0
    nics = [nic for host in hosts if host.disruptive for nic in host.nics]
    for _ in range(DRAWS):
        nic = draw.choice(nics)
        found = proved(injector, place, name, nic.name, drawn(name, draw), partial(doctor.found, nic.host))
        where = {nic.netdev, f"{nic.device} port 1"}  # a device without a GID has no interface that it names
        right += [(host, port in where, rule) for host, port, rule in found] == [(nic.host, True, WRONG[name].doctor)]
        assert doctor.found(nic.host) == []
    measure("misconfiguration.found_fraction", right / DRAWS, equals=1, clock=Clock.NONE, fault=name)
