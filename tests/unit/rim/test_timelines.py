"""The report shows what became of each fault that a scenario has injected, whether the scenario saves it or not."""

from c4bench.inject.protocol import Applied
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.fault import WitnessReport
from c4bench.pytest_plugin.fixtures import _timelines

SLOW = Syndrome.COMMUNICATION_SLOW


def fault(name, target, onset_s):
    """A fault that the witness saw a tenth of a second after its onset."""
    seen = WitnessReport(True, onset_s + 0.1, {}, {})
    return Applied(name, name, target and Component("nic", target), target and SLOW, onset_s, 0.05, 99.0, seen)


def found(nic, alarmed_s):
    """A diagnosis that is named a second after its alarm."""
    return Diagnosis("j", SLOW, Component("nic", nic), alarmed_s, alarmed_s, alarmed_s + 1, 0.9, (), "")


def test_each_fault_has_the_diagnosis_that_followed_it():
    """The right diagnosis of each, not what was alarmed before it or after the next one; a missed fault has none."""
    faults = [fault("a", "h0/0", 10.0), fault("b", "h1/0", 20.0), fault("idle", None, 25.0), fault("c", "h2/0", 30.0)]
    drawn = _timelines(faults, [found("h9/0", 11.0), found("h0/0", 12.0), found("h9/0", 21.0)], {}).faults
    assert [(one.name, one.alarmed_s, one.named_s, one.correct) for one in drawn] == [
        ("a", 12.0, 13.0, True),
        ("b", 21.0, 22.0, False),
        ("c", None, None, False),
    ]
    assert drawn[0].diagnosis == "communication_slow: nic h0/0"
    assert drawn[2].diagnosis == ""
    assert drawn[2].observed_s == 30.1
