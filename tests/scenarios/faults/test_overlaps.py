"""Random faults that overlap, on NICs and switches that this machine reaches itself, leave the fabric as it was."""

import tempfile
from pathlib import Path

import pytest
from conftest import differences
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from c4bench.errors import C4Error
from c4bench.inject import catalogue
from c4bench.inject.hold import Held, lease_of
from c4bench.inject.journal import Journal
from c4bench.model.fault import TargetKind
from c4bench.model.measurement import Clock

CATALOGUE = catalogue.load()
NIC_FAULTS = [
    ("nic.rate", {"direction": "tx"}),
    ("nic.rate", {"direction": "both"}),
    ("nic.loss", {"direction": "rx"}),
    ("nic.delay", {"direction": "tx"}),
    ("nic.blackhole", {"direction": "both"}),
    ("nic.down", {}),
    ("nic.gid", {}),
    ("nic.mtu", {}),
]
PORT_FAULTS = [
    ("link.down", {}),
    ("link.rate", {}),
    ("link.blackhole", {"direction": "rx"}),
    ("link.ecmp_member", {}),
    ("link.acks_lost", {}),
    ("switch.misrouted", {}),
]
STEPS = 3


@pytest.fixture
def reachable(hosts, inventory, place):
    """Places on NICs and uplinks whose network namespaces are on this machine."""
    nics = [
        place(f"{host.name}/0") for host in hosts[:2] if host.nics and Path(host.nics[0].netns or "/nosuch").exists()
    ]
    switches = [place(f"{switch}/up0") for switch in inventory.switches[:1]]
    if not nics or not all(Path(switch.netns or "/nosuch").exists() for switch in switches):
        pytest.skip("unsupported: the NICs and switches are not in this machine's reach")
    return [(nic, NIC_FAULTS) for nic in nics] + [(switch, PORT_FAULTS) for switch in switches]


@pytest.fixture
def sequences(reachable, pytestconfig):
    """Run so many random sequences; what they did comes back."""
    if not pytestconfig.option.c4_allow_disruptive:
        pytest.skip("disruptive-not-allowed: give --c4-allow-disruptive to let faults loose on these hosts")

    def run(count):
        tally = {"applied": 0, "refused": 0, "residue": 0}

        class Overlaps(RuleBasedStateMachine):
            """Faults come and go in any order; contradictions are refused."""

            @initialize()
            def begin(self):
                self.root = tempfile.TemporaryDirectory(prefix="c4bench-overlaps-")
                self.held = []

            @rule(where=st.integers(0, len(reachable) - 1), which=st.integers(0, 7))
            def apply(self, where, which):
                place, faults = reachable[where]
                name, parameters = faults[which % len(faults)]
                asked = place.request(name, dict(parameters), 600.0, 0.1, last_nic=True)
                spec, request = CATALOGUE.resolve(asked)
                held = Held(Journal(self.place(spec, request)), lease_of(request))
                try:
                    held.begin(spec)
                except C4Error:
                    tally["refused"] += 1
                    held.end()
                else:
                    tally["applied"] += 1
                    self.held.append(held)

            @precondition(lambda self: len(self.held) > 1)
            @rule(which=st.integers(0, 7))
            def revert(self, which):
                self.over(self.held.pop(which % len(self.held)))

            def teardown(self):
                while self.held:
                    self.over(self.held.pop())
                self.root.cleanup()

            def place(self, spec, request):
                return Path(self.root.name) / (request.host if spec.target is TargetKind.PORT else "host")

            def over(self, held):
                tally["residue"] += len(held.end().residue)

        rules = settings(
            max_examples=count,
            stateful_step_count=STEPS,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(Overlaps, settings=rules)
        return tally

    return run


def test_twenty_sequences(sequences, state, measure):
    """Twenty random sequences of overlapping faults leave nothing behind."""
    judge(sequences, 20, state, measure)


@pytest.mark.nightly
def test_two_hundred_sequences(sequences, state, measure):
    """Two hundred do neither."""
    judge(sequences, 200, state, measure)


def judge(sequences, count, state, measure):
    """The journal's own word, and the fabric's."""
    before = state()
    tally = sequences(count)
    left = differences(before, state())
    measure("faults.residue", tally["residue"] + len(left), at_most=0, clock=Clock.NONE, sequences=count)
    measure("faults.applied", tally["applied"], at_least=count // 2, clock=Clock.NONE)
    measure("faults.refused", tally["refused"], clock=Clock.NONE)
    assert not left
