"""Trials around a ring of NICs tell what is broken, whoever complained."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.model.diagnosis import Cause, Component, Diagnosis, ProbeFlow, Syndrome
from c4bench.model.fabric import Nic
from c4bench.steer.suspects import broken, doubtful, narrowed, pairs, settled

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
        (msgspec.structs.replace(found(Component("host", "h1"), confidence=0.8), cause=Cause.HOST_SILENT), False),
        (found(PATH, SENDER, syndrome=Syndrome.COMMUNICATION_SLOW), False),
    ],
)
def test_only_hangs_that_could_be_something_else_are_looked_into(diagnosis, doubt):
    """A bug of the job is nothing that a transfer could tell, and slowness nothing that trials could."""
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
    """It is the fabric then; and without trials nothing changes either."""
    assert settled(found(PATH, SENDER), set(NICS[:4]), NICS) == (found(PATH, SENDER),)
    assert settled(found(PATH, SENDER), (), ()) == (found(PATH, SENDER),)


def probed(*suspects):
    """A slow path or NIC, with the two probes that decide."""
    slow = found(*suspects, confidence=0.5, syndrome=Syndrome.COMMUNICATION_SLOW)
    probes = (
        ProbeFlow("h1/0", "h3/0", 0, 1e6, 0.2, (SENDER,)),
        ProbeFlow("h4/0", "h2/0", 0, 1e6, 0.2, (Component("nic", "h2/0", "rx"),)),
    )
    return msgspec.structs.replace(slow, probes=probes, figures={"times_as_long": 4.0})


def test_probes_leave_who_agrees_with_them():
    """A slow probe accuses what it crosses; where none is slow the path is left, surely."""
    slow = probed(PATH, SENDER, Component("nic", "h2/0", "rx"))
    sender = narrowed(slow, [0.25, 1.0])
    assert (sender.component, sender.alternatives, sender.confidence) == (SENDER, (), 0.95)
    assert sender.evidence[-1] == "probes, beside the best of them: h1/0>h3/0 25%, h4/0>h2/0 100%"
    assert sender.refuted_by == f"a probe at full rate across {SENDER}"
    assert narrowed(slow, [0.97, 0.9]).component == PATH


@pytest.mark.parametrize("shares", [[0.2, 0.2], [0.25, 0.24], [0.0, 0.0]])
def test_probes_that_contradict_or_cannot_tell_change_nothing(shares):
    """A fabric as busy as the fault is slow says nothing."""
    slow = probed(PATH, SENDER, Component("nic", "h2/0", "rx"))
    assert narrowed(slow, shares) == slow


def ring(hosts, rails):
    return pairs([Nic(f"h{host}", rail, "d", "n", "", 1e10) for host in range(hosts) for rail in range(rails)])


@given(hosts=st.integers(3, 8), rails=st.integers(1, 4), data=st.data())
def test_a_dead_nic_is_told_from_its_neighbours_and_a_dead_path_from_a_nic(hosts, rails, data):
    """Every NIC is tried with two others of its rail; whichever one or two are dead, just these are broken."""
    tried = ring(hosts, rails)
    names = sorted({nic.name for pair in tried for nic in pair})
    assert len(tried) == len(names) == hosts * rails
    assert all(one.index == other.index and one.host != other.host for one, other in tried)
    dead = set(data.draw(st.lists(st.sampled_from(names), max_size=1 if hosts == 3 else 2, unique=True)))
    found = broken([pair for pair in tried if {nic.name for nic in pair} & dead])
    # The one between two dead ones has no neighbour left to show that it works.
    assert dead <= found
    assert all(neighbours(name, tried) <= dead for name in found - dead)
    assert broken([data.draw(st.sampled_from(tried))]) == set()


def neighbours(name, tried):
    """The other ends of a NIC's pairs."""
    return {nic.name for pair in tried for nic in pair if name in {one.name for one in pair}} - {name}


def test_two_nics_cannot_be_told_apart():
    """A ring of two is no ring."""
    assert ring(2, 1) == []
