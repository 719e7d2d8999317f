"""Trials around a ring of NICs show which is broken, whichever rank failed first."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.model.diagnosis import Cause, Component, Diagnosis, ProbeFlow, Syndrome
from c4bench.model.fabric import Nic
from c4bench.steer import after_probes, after_trials, broken_nics, needs_trials, ring_pairs

PATH, SENDER, RANK = Component("path", "h1/0>h2/0"), Component("nic", "h1/0", "tx"), Component("rank", "j:3")
NICS = tuple(f"h{i}/0" for i in range(6))


def diagnosis_of(component, *alternatives, confidence=0.6, syndrome=Syndrome.COMMUNICATION_HANG):
    return Diagnosis("j", syndrome, component, 1, 2, 3, confidence, ("why",), "not", alternatives=alternatives)


@pytest.mark.parametrize(
    ("diagnosis", "doubt"),
    [
        (diagnosis_of(PATH, SENDER), True),
        (diagnosis_of(RANK, confidence=0.8), True),
        (diagnosis_of(RANK, confidence=0.95), False),
        (diagnosis_of(SENDER, confidence=0.9), False),
        (diagnosis_of(Component("job", "j"), confidence=0.5), False),
        (
            msgspec.structs.replace(diagnosis_of(Component("host", "h1"), confidence=0.8), cause=Cause.HOST_SILENT),
            False,
        ),
        (diagnosis_of(PATH, SENDER, syndrome=Syndrome.COMMUNICATION_SLOW), False),
    ],
)
def test_only_uncertain_hangs_need_trials(diagnosis, doubt):
    """A hang needs trials if another component may be to blame; a bug of the job and slowness need none."""
    assert needs_trials(diagnosis) is doubt


def test_each_broken_nic_is_a_diagnosis():
    """Each broken NIC gets its own diagnosis, with high confidence and the trials as evidence."""
    after = after_trials(diagnosis_of(RANK, confidence=0.8), {"h4/0", "h1/0"}, NICS)
    assert [diagnosis.component for diagnosis in after] == [Component("nic", "h1/0"), Component("nic", "h4/0")]
    assert {diagnosis.confidence for diagnosis in after} == {0.95}
    assert after[0].evidence[-1] == "trials of 6 NICs: all succeeded but those of h1/0, h4/0"


def test_successful_trials_clear_all_nics():
    """Successful trials leave a path without the NICs at its ends; a rank or a lone NIC stays as named."""
    (path,) = after_trials(diagnosis_of(SENDER, PATH), (), NICS)
    assert (path.component, path.alternatives) == (PATH, ())
    (rank,) = after_trials(diagnosis_of(RANK), (), NICS)
    assert rank.component == RANK
    (nic,) = after_trials(diagnosis_of(SENDER), (), NICS)
    assert nic.component == SENDER


def test_if_most_trials_fail_the_diagnosis_stays():
    """If most trials fail the fabric is to blame and the diagnosis stays, as it does without trials."""
    assert after_trials(diagnosis_of(PATH, SENDER), set(NICS[:4]), NICS) == (diagnosis_of(PATH, SENDER),)
    assert after_trials(diagnosis_of(PATH, SENDER), (), ()) == (diagnosis_of(PATH, SENDER),)


def probed(*suspects):
    """A slow path or NIC, with the two probes that decide."""
    slow = diagnosis_of(*suspects, confidence=0.5, syndrome=Syndrome.COMMUNICATION_SLOW)
    probes = (
        ProbeFlow("h1/0", "h3/0", 0, 1e6, 0.2, (SENDER,)),
        ProbeFlow("h4/0", "h2/0", 0, 1e6, 0.2, (Component("nic", "h2/0", "rx"),)),
    )
    return msgspec.structs.replace(slow, probes=probes, figures={"times_as_long": 4.0})


def test_probes_leave_the_suspects_that_fit():
    """A slow probe blames what it crosses; if none is slow, the path remains with high confidence."""
    slow = probed(PATH, SENDER, Component("nic", "h2/0", "rx"))
    sender = after_probes(slow, [0.25, 1.0])
    assert (sender.component, sender.alternatives, sender.confidence) == (SENDER, (), 0.95)
    assert sender.evidence[-1] == "probes, relative to the best of them: h1/0>h3/0 25%, h4/0>h2/0 100%"
    assert sender.refuted_by == f"a probe at full rate across {SENDER}"
    assert after_probes(slow, [0.97, 0.9]).component == PATH


@pytest.mark.parametrize("shares", [[0.2, 0.2], [0.25, 0.24], [0.0, 0.0]])
def test_probes_that_do_not_decide_change_nothing(shares):
    """Probes that are all equally slow leave the diagnosis unchanged."""
    slow = probed(PATH, SENDER, Component("nic", "h2/0", "rx"))
    assert after_probes(slow, shares) == slow


def ring(hosts, rails):
    return ring_pairs([Nic(f"h{host}", rail, "d", "n", "", 1e10) for host in range(hosts) for rail in range(rails)])


@given(hosts=st.integers(3, 8), rails=st.integers(1, 4), data=st.data())
def test_trials_identify_a_broken_nic(hosts, rails, data):
    """Every NIC is tried with two others of its rail, and only the one or two broken NICs fail both trials."""
    tried = ring(hosts, rails)
    names = sorted({nic.name for pair in tried for nic in pair})
    assert len(tried) == len(names) == hosts * rails
    assert all(one.index == other.index and one.host != other.host for one, other in tried)
    dead = set(data.draw(st.lists(st.sampled_from(names), max_size=1 if hosts == 3 else 2, unique=True)))
    failing = broken_nics([pair for pair in tried if {nic.name for nic in pair} & dead])
    # The one between two dead ones has no neighbour left to show that it works.
    assert dead <= failing
    assert all(neighbours(name, tried) <= dead for name in failing - dead)
    assert broken_nics([data.draw(st.sampled_from(tried))]) == set()


def neighbours(name, tried):
    """The other ends of a NIC's pairs."""
    return {nic.name for pair in tried for nic in pair if name in {one.name for one in pair}} - {name}


def test_two_nics_make_no_ring():
    """Two NICs have no trials, because a failure would not show which of them is broken."""
    assert ring(2, 1) == []


def test_the_syndrome_after_trials_is_that_of_what_is_named():
    """A NIC or path that fails is a hang of communication, whatever it looked like; a rank's stays what it was."""
    stuck = diagnosis_of(RANK, PATH, syndrome=Syndrome.NON_COMMUNICATION_HANG)
    (broken,) = after_trials(stuck, {"h1/0"}, NICS)
    assert broken.syndrome is Syndrome.COMMUNICATION_HANG
    (cleared,) = after_trials(stuck, (), NICS)
    assert (cleared.component, cleared.syndrome) == (RANK, Syndrome.NON_COMMUNICATION_HANG)
    (path,) = after_trials(diagnosis_of(SENDER, PATH, syndrome=Syndrome.NON_COMMUNICATION_HANG), (), NICS)
    assert (path.component, path.syndrome) == (PATH, Syndrome.COMMUNICATION_HANG)


def test_half_of_the_nics_may_be_broken():
    """More than half of them broken is the fabric's fault; half of them are each their own."""
    assert len(after_trials(diagnosis_of(RANK), set(NICS[:3]), NICS)) == 3
    assert after_trials(diagnosis_of(RANK), set(NICS[:4]), NICS) == (diagnosis_of(RANK),)
    assert {found.confidence for found in after_trials(diagnosis_of(RANK, confidence=0.99), {NICS[0]}, NICS)} == {0.99}


def test_rings_are_made_of_the_nics_of_one_rail():
    """NICs of one index, in order; a rail with two NICs makes none."""
    nics = [Nic(host, index, "", "", "", 1e9) for host in ("a", "b", "c") for index in (0, 1)][:-1]
    assert [(one.name, other.name) for one, other in ring_pairs(nics)] == [
        ("a/0", "b/0"),
        ("b/0", "c/0"),
        ("c/0", "a/0"),
    ]
    assert broken_nics([(nics[0], nics[2]), (nics[2], nics[4])]) == {"b/0"}
