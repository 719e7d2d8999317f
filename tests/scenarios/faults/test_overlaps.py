"""Random faults that overlap, on NICs and switches, leave the fabric as it was."""

import json
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
from fabric_states import differences
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from c4bench import remote
from c4bench.lab.spec import CONTROL_SOCKET
from c4bench.model.measurement import Clock
from c4bench.pytest_plugin.fixtures import obstacle
from c4bench.pytest_plugin.scope import no_fault
from c4bench.remote.local import LocalConnection

pytestmark = pytest.mark.needs("disruptive", "root")
HOLDER = Path(__file__).with_name("holder.py")
ANSWER_WITHIN_S = 30.0
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
# What a fault is told that contradicts one in force.
REFUSAL = "end that fault first"


class Holder:
    """The far side of `holder.py` on a host or switch, and the faults that it may hold there."""

    def __init__(self, place, faults, session):
        self._place, self._faults, self._session = place, faults, session

    def begin(self, which):
        """The id of the fault and "", or "" and why it is refused."""
        name, parameters = self._faults[which % len(self._faults)]
        request = self._place.request(name, dict(parameters), 600.0, 0.1, last_nic=True)
        return self._ask(f"begin {msgspec.json.encode(request).decode()}")

    def end(self, fault_id):
        """What it leaves behind."""
        return self._ask(f"end {fault_id}")

    def _ask(self, line):
        self._session.write_line(line)
        return json.loads(self._session.read_line(ANSWER_WITHIN_S))


@pytest.fixture
def possible(injector, possible_faults):
    """Those of the faults that a place can have, with these parameters; skips where it can have none."""

    def choose(place, faults):
        reasons = [obstacle(injector, possible_faults, name, place, parameters) for name, parameters in faults]
        if not (found := [fault for fault, why in zip(faults, reasons, strict=True) if not why]):
            pytest.skip(no_fault({name: why for (name, _), why in zip(faults, reasons, strict=True)}))
        return found

    return choose


@pytest.fixture
def holders(nic_hosts, up_and_across, inventory, place, possible):
    """On two NICs and on an uplink: no journal but their own stands between their faults."""
    if not Path(CONTROL_SOCKET).exists():
        pytest.skip("unsupported: these hosts are not a lab's, where every SSH login is root")
    places = [(place(f"{host.name}/0"), NIC_FAULTS) for host in nic_hosts[:2]]
    places.append((place(up_and_across[0]), PORT_FAULTS))
    with ExitStack() as stack:
        yield [Holder(where, possible(where, faults), holding(where, inventory, stack)) for where, faults in places]


def holding(place, inventory, stack):
    """A session with `holder.py` on the host or switch, or here for a switch on which c4bench is not installed."""
    name = place.host.name
    access = inventory.access[name]
    connection = LocalConnection(name) if place.switch else remote.connect(name, access)
    python = sys.executable if place.switch else access.python
    stack.enter_context(connection)
    return stack.enter_context(closing(connection.start([python, "-c", HOLDER.read_text()])))


@pytest.fixture
def sequences(holders):
    """Run so many random sequences; what they did comes back."""

    def run(count):
        tally = {"applied": 0, "refused": 0, "broken": [], "residue": 0}

        class Overlaps(RuleBasedStateMachine):
            """Faults come and go in any order; contradictions are refused."""

            @initialize()
            def begin(self):
                self.held = []

            @rule(where=st.integers(0, len(holders) - 1), which=st.integers(0, 7))
            def apply(self, where, which):
                fault_id, reason = holders[where].begin(which)
                if fault_id:
                    tally["applied"] += 1
                    self.held.append((holders[where], fault_id))
                elif REFUSAL in reason:
                    tally["refused"] += 1
                else:
                    tally["broken"].append(reason)

            @precondition(lambda self: len(self.held) > 1)
            @rule(which=st.integers(0, 7))
            def revert(self, which):
                self.over(self.held.pop(which % len(self.held)))

            def teardown(self):
                while self.held:
                    self.over(self.held.pop())

            def over(self, held):
                holder, fault_id = held
                tally["residue"] += len(holder.end(fault_id))

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


def test_four_sequences(sequences, state, measure):
    """Four random sequences of overlapping faults leave nothing behind."""
    check_state(sequences, 4, state, measure)


@pytest.mark.nightly
def test_two_hundred_sequences(sequences, state, measure):
    """Two hundred do neither."""
    check_state(sequences, 200, state, measure)


def check_state(sequences, count, state, measure):
    """The journal's own word, and the fabric's."""
    before = state()
    tally = sequences(count)
    left = differences(before, state())
    measure("faults.residue", tally["residue"] + len(left), at_most=0, clock=Clock.NONE, sequences=count)
    measure("faults.applied", tally["applied"], at_least=count // 2, clock=Clock.NONE)
    measure("faults.refused", tally["refused"], clock=Clock.NONE)
    assert tally["broken"] == [], "a fault failed for another reason than a contradiction"
    assert not left
