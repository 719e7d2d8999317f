"""Trials with a third NIC tell what is broken, whoever complained."""

import pytest

from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.steer.suspects import doubtful, settled

PATH, SENDER, RANK = Component("path", "h1/0>h2/0"), Component("nic", "h1/0", "tx"), Component("rank", "j:3")
NICS = tuple(f"h{i}/0" for i in range(6))


def found(component, *alternatives, confidence=0.6, syndrome=Syndrome.COMMUNICATION_HANG):
    return Diagnosis("j", syndrome, component, 1, 2, 3, confidence, ("why",), "not", alternatives=alternatives)


@pytest.mark.parametrize(
    ("diagnosis", "doubt"),
    [
        (found(PATH, SENDER), True),
        (found(RANK, confidence=0.8), True),
        (found(RANK, confidence=0.95), False),
        (found(SENDER, confidence=0.9), False),
        (found(Component("job", "j"), confidence=0.5), False),
        (found(PATH, SENDER, syndrome=Syndrome.COMMUNICATION_SLOW), False),
    ],
)
def test_only_hangs_that_could_be_something_else_are_looked_into(diagnosis, doubt):
    """A bug of the job and slowness are nothing that a short transfer could tell."""
    assert doubtful(diagnosis) is doubt


def test_what_fails_is_to_blame_whoever_complained():
    """Each NIC that does not carry is a diagnosis of its own, sure, with the trials in its evidence."""
    after = settled(found(RANK, confidence=0.8), {"h4/0", "h1/0"}, NICS)
    assert [diagnosis.component for diagnosis in after] == [Component("nic", "h1/0"), Component("nic", "h4/0")]
    assert {diagnosis.confidence for diagnosis in after} == {0.95}
    assert after[0].evidence[-1] == "trials of 6 NICs: all went through but those of h1/0, h4/0"


def test_when_all_carry_no_nic_is_left():
    """A path stays, without the NICs at its ends; a rank stays; a lone NIC stands as it was named."""
    (path,) = settled(found(SENDER, PATH), (), NICS)
    assert (path.component, path.alternatives) == (PATH, ())
    (rank,) = settled(found(RANK), (), NICS)
    assert rank.component == RANK
    (nic,) = settled(found(SENDER), (), NICS)
    assert nic.component == SENDER


def test_when_most_fail_nothing_is_learnt():
    """It is the third NIC then; and without trials nothing changes either."""
    assert settled(found(PATH, SENDER), set(NICS[:4]), NICS) == (found(PATH, SENDER),)
    assert settled(found(PATH, SENDER), (), ()) == (found(PATH, SENDER),)
