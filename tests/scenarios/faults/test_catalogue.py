"""Every fault of the catalogue: applied, witnessed, reverted, witnessed healed, and nothing left of it."""

import pytest
from fabric_states import differences

from c4bench.errors import UsageError
from c4bench.inject import catalogue
from c4bench.inject.feasibility import place_name
from c4bench.model.fault import BlastRadius, TargetKind
from c4bench.model.measurement import Clock
from c4bench.pytest_plugin.scope import no_fault

CATALOGUE = catalogue.load().specs
pytestmark = pytest.mark.needs("disruptive", "root")
HOSTS_GONE = [name for name, spec in CATALOGUE.items() if spec.witness == "absence"]
PARAMETERS = {
    "nic.flap": {"period_s": 0.2, "duty": 0.3, "count": 3},
    "link.flap": {"period_s": 0.2, "duty": 0.3, "count": 3},
    "nic.loss": {"probability": 0.02},
    "link.loss": {"probability": 0.02},
    "host.disk_full": {"left_bytes": 65536},
    "host.memory": {"bytes": 16 << 20},
}


# What a switch's own commands can do of a fault: they limit what a port sends.
BY_SWITCH = {"link.rate": {"direction": "tx"}}
# These need a link with flow control; test_flow_control.py has them.
PAUSING = ["nic.pause_storm"]


# How exactly the onset is known: by an injector on the host, and by commands that a switch runs one after another.
BY_INJECTOR_S, BY_COMMAND_S = 0.010, 0.5


def of(*kinds):
    """The faults for targets of these kinds that software can bring about anywhere, except those that end the host."""
    return sorted(
        name
        for name, spec in CATALOGUE.items()
        if spec.target in kinds and not spec.not_in_lab and name not in (*HOSTS_GONE, *PAUSING)
    )


@pytest.fixture
def prove(injector, inventory, possible_faults, measure, healed):
    """Bring a fault about, hold it to what every fault must do, and take it back; skips what a place cannot have."""

    def proved(name, place):
        if why := possible_faults.obstacle_at(name, place_name(place)):
            pytest.skip(no_fault({name: f"{place_name(place)}: {why}"}))
        lease_s = 20.0
        known = inventory.facts.get(place.host.name)
        by_command = bool(known and known.os)
        within_s = BY_COMMAND_S if by_command else BY_INJECTOR_S
        parameters = (BY_SWITCH if by_command else {}).get(name, PARAMETERS.get(name, {}))
        with injector.apply_at(name, place, parameters, lease_s=lease_s) as fault:
            seen, plane = float(fault.witness.seen), fault.witness.plane
            measure("faults.witnessed_fraction", seen, equals=1, clock=Clock.NONE, fault=name, plane=plane)
            measure("faults.onset_error_s", fault.onset_bound_s, unit="s", at_most=within_s, fault=name)
        well = healed()["recovered"] is True
        measure("faults.healed_fraction", float(well), equals=1, clock=Clock.NONE, fault=name)

    return proved


@pytest.mark.parametrize("name", of(TargetKind.NIC))
def test_nic_fault(name, nic_hosts, place, prove):
    """A NIC fault is seen by its witness, and the NIC is itself again when it ends."""
    prove(name, place(f"{nic_hosts[0].name}/0"))


@pytest.mark.parametrize("name", of(TargetKind.PORT))
def test_link_fault(name, up_and_across, place, prove, on):
    """A fault of a switch's port is seen from the switch, and the port is itself again when it ends."""
    across, towards = up_and_across
    if name in {"switch.misrouted", "link.ecmp_out"} and "nexthop" not in on(across.partition("/")[0], "ip route"):
        pytest.skip("unsupported: this fabric has one way only")
    prove(name, place(towards if CATALOGUE[name].reach is BlastRadius.NIC else across))


@pytest.fixture
def unresolved(nic_hosts, up_and_across, on, as_root):
    """Make a switch resolve the first host's NIC again; yields the switch, its port and the NIC's address."""
    switch, port = up_and_across[1].split("/")
    address = nic_hosts[0].nics[0].address
    fixed = on(switch, f"ip neighbour show {address} dev {port} nud permanent").split()
    if not fixed:
        pytest.skip(f"unsupported: {switch} knows {address} by no fixed neighbour that could be taken away")
    as_root(switch, f"ip neighbour del {address} dev {port}")
    yield switch, port, address
    lladdr = fixed[fixed.index("lladdr") + 1]
    as_root(switch, f"ip neighbour replace {address} lladdr {lladdr} dev {port} nud permanent")


def test_a_nic_is_healed_when_packets_reach_it(injector, place, nic_hosts, on, unresolved):
    """A NIC is healed when somebody answers, not when its link is up and its switch is still asking for it."""
    switch, port, address = unresolved
    with injector.apply_at("nic.down", place(f"{nic_hosts[0].name}/0"), lease_s=20.0):
        # Nobody answers; from now on the switch asks again only once a second.
        on(switch, f"bash -c 'echo > /dev/udp/{address}/9'")
    assert "lladdr" in on(switch, f"ip neighbour show {address} dev {port}")


def test_a_target_from_the_command_line(inject, up_and_across, hosts, measure):
    """A scenario names any place as the command line does; no place and two places are refused."""
    with inject("link.rate", at=up_and_across[0], fraction=0.5) as fault:
        measure("faults.witnessed_fraction", float(fault.witness.seen), equals=1, clock=Clock.NONE, fault="link.rate")
    for places in ({}, {"at": up_and_across[0], "host": hosts[0].name}):
        with pytest.raises(UsageError, match="one place"):
            inject("nic.down", **places)


def test_switch_fault(switch_names, place, prove):
    """A switch that is down has no port that is up, and has them all again."""
    prove("switch.down", place(switch_names[-1]))


@pytest.mark.parametrize("name", of(TargetKind.HOST))
def test_host_fault(name, fault_hosts, place, prove):
    """A fault of a whole host is seen on it, and the host is itself again when it ends."""
    prove(name, place(fault_hosts[0].name))


@pytest.mark.parametrize("name", HOSTS_GONE)
def test_host_that_goes_away(name, injector, nic_hosts, place, measure, healed, state, inventory):
    """A host that does not answer comes back by itself when its lease ends, and nothing is left of the fault.

    Neither on the host nor at the switches' ends of its cables.
    """
    lease_s, before = 4.0, state()
    with injector.apply_at(name, place(nic_hosts[-1].name), lease_s=lease_s) as fault:
        measure("faults.witnessed_fraction", float(fault.witness.seen), equals=1, clock=Clock.NONE, fault=name)
        measure("faults.onset_error_s", fault.onset_bound_s, unit="s", at_most=0.010, fault=name)
    end = healed()
    measure("lease.overrun_s", max(0.0, end["time_s"] - fault.expires_s), unit="s", at_most=1.0, fault=name)
    measure("faults.healed_fraction", float(end["recovered"] is True), equals=1, clock=Clock.NONE, fault=name)
    after = state()
    left = differences(*({switch: found[switch] for switch in inventory.switches} for found in (before, after)))
    measure("faults.residue", len(left), at_most=0, clock=Clock.NONE, fault=name)
    assert not left


def test_the_fabric_is_as_it_was(state, nic_hosts, place, injector, measure):
    """Faults on all tiers at once leave every queue, route, link, address, neighbour and process as it was."""
    before = state()
    nic, host = place(f"{nic_hosts[0].name}/0"), place(f"{nic_hosts[-1].name}/0")
    # Some NICs limit only what they send.
    direction = "tx" if injector.obstacle("nic.rate", nic, {"direction": "both"}) else "both"
    with (
        injector.apply_at("nic.rate", nic, {"direction": direction}),
        injector.apply_at("nic.down", host),
    ):
        assert differences(before, state())
    left = differences(before, state())
    measure("faults.residue", len(left), at_most=0, clock=Clock.NONE)
    assert not left


@pytest.mark.parametrize("name", sorted(name for name, spec in CATALOGUE.items() if spec.parts))
def test_compound(name, injector, nic_hosts, place, measure, run_directory):
    """All parts of a compound are in force together, each begun when its time had come, and all end."""
    spec = CATALOGUE[name]
    expected = 1 + max(part.target for part in spec.parts)
    if len(nic_hosts) < expected:
        pytest.skip(f"too-few-hosts: {len(nic_hosts)} of {expected} have a NIC and permit faults")
    with injector.apply_compound(name, [place(f"{host.name}/0") for host in nic_hosts[:expected]]) as found:
        seen = sum(fault.witness.seen for fault in found) / len(spec.parts)
        measure("faults.witnessed_fraction", seen, equals=1, clock=Clock.NONE, fault=name)
        spread_s = found[-1].onset_s - found[0].onset_s
        assert spread_s >= max(part.after_s for part in spec.parts) - min(fault.onset_bound_s for fault in found)
    ends = [event for event in run_directory.events() if event["kind"] == "fault_healed"][-len(found) :]
    well = sum(event["recovered"] is True for event in ends) / len(found)
    measure("faults.healed_fraction", well, equals=1, clock=Clock.NONE, fault=name)
