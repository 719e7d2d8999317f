"""When a finding says what has been said."""

import msgspec

from c4bench.bus.jobs import is_repeat
from c4bench.model.diagnosis import Cause, Component, Diagnosis, Syndrome

RANK, OTHER = Component("rank", "j:1"), Component("rank", "j:2")
FOUND = Diagnosis(
    "j", Syndrome.NON_COMMUNICATION_HANG, RANK, 10.0, 10.9, 11.1, 0.9, (), "it moves", Cause.PROCESS_STOPPED
)


def changed(**fields):
    """The finding with other fields."""
    return msgspec.structs.replace(FOUND, **fields)


def test_the_next_detector_finds_the_same_fault_again():
    """The same component with the same cause, and an onset before it was named, is the same fault."""
    assert is_repeat(changed(onset_s=10.2, named_s=12.0, confidence=0.8), [FOUND])


def test_a_component_that_has_healed_may_fail_again():
    """An onset after the last naming is another fault, which is not kept back."""
    assert not is_repeat(changed(onset_s=11.2, named_s=12.0), [FOUND])
    assert not is_repeat(FOUND, [])


def test_fewer_suspects_or_another_cause_is_something_new():
    """A finding that is more exact, or is about something else, is published."""
    assert not is_repeat(changed(component=OTHER), [FOUND])
    assert not is_repeat(changed(cause=Cause.NOT_ENTERED), [FOUND])
    assert not is_repeat(FOUND, [changed(alternatives=(OTHER,))])
    assert is_repeat(changed(alternatives=(OTHER, RANK)), [changed(alternatives=(RANK, OTHER))])
