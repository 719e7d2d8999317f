"""Decisions about diagnoses follow the policy, stay within its limits, and leave the job enough ranks."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.model import advice
from c4bench.model.diagnosis import Cause, Component, Diagnosis, Syndrome
from c4bench.model.fabric import Host, Nic
from c4bench.model.graph import FabricGraph, HostPort, Trunk
from c4bench.model.steering import Action, Policy
from c4bench.model.telemetry import Member
from c4bench.steer import Fleet, decide, move_ranks

RESTART = Policy(hang=Action.RESTART, slow=Action.RESTART)
NOW_S = 1e6


def host(name, nics=1):
    return Host(name, "", tuple(Nic(name, i, f"{name}r{i}", f"{name}n{i}", "", 1e10) for i in range(nics)))


def fleet(ranks=4, spares=1, **rest):
    members = tuple(Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(ranks))
    return Fleet(NOW_S, members, rest.pop("wanted", ranks), tuple(host(f"s{i}") for i in range(spares)), **rest)


def diagnosis_of(kind, name, syndrome=Syndrome.COMMUNICATION_HANG, confidence=0.9, cause=None):
    return Diagnosis("j", syndrome, Component(kind, name), 1.0, 2.0, 3.0, confidence, ("why",), "not", cause)


NIC, RANK = diagnosis_of("nic", "h1/0"), diagnosis_of("rank", "j:2", Syndrome.NON_COMMUNICATION_HANG)


def decide_about(diagnosis, policy=RESTART, **rest):
    decision = decide("j", [diagnosis], policy, fleet(**rest))
    (incident,) = decision.incidents
    return decision, incident


@pytest.mark.parametrize(
    ("diagnosis", "out"),
    [(NIC, "h1"), (RANK, "h2"), (diagnosis_of("host", "h3"), "h3"), (diagnosis_of("nic", "h0/0"), "h0")],
)
def test_a_spare_replaces_the_host_of_a_component(diagnosis, out):
    """A rank, a NIC and a host isolate their host, and the incident keeps the component."""
    decision, incident = decide_about(diagnosis)
    assert decision.restart
    assert {name: spare.name for name, spare in decision.moves.items()} == {out: "s0"}
    assert (incident.action, incident.out, incident.spare) == (Action.RESTART, out, "s0")
    assert incident.component == diagnosis.component


def test_a_bug_of_the_job_isolates_nothing():
    """A bug of the job is only observed, because no other host would fix it."""
    decision, incident = decide_about(diagnosis_of("job", "j", confidence=1.0))
    assert (incident.action, incident.out, decision.moves) == (Action.OBSERVE, "", {})


@pytest.mark.parametrize("kind", ["path", "link", "switch"])
@pytest.mark.parametrize("policy", [Policy(), RESTART])
def test_a_part_of_the_fabric_isolates_no_host(kind, policy):
    """A link or a path is left to path planning under any policy, and a job that hangs restarts on the same hosts."""
    decision, incident = decide_about(diagnosis_of(kind, "h0/0>h1/0"), policy)
    assert (incident.out, decision.moves) == ("", {})
    assert decision.restart == (policy is RESTART)


def test_a_slow_path_is_no_reason_to_restart():
    """A slow path is avoided while the job runs."""
    decision, _ = decide_about(diagnosis_of("path", "h0/0>h1/0", Syndrome.COMMUNICATION_SLOW))
    assert not decision.restart


@pytest.mark.parametrize("syndrome", list(Syndrome))
def test_a_policy_is_for_a_kind_of_syndrome(syndrome):
    """A policy for hangs only observes slowness, and a policy to isolate does not restart the job."""
    slow = syndrome in (Syndrome.COMMUNICATION_SLOW, Syndrome.NON_COMMUNICATION_SLOW)
    _, incident = decide_about(diagnosis_of("nic", "h1/0", syndrome), Policy(hang=Action.RESTART))
    assert incident.action is (Action.OBSERVE if slow else Action.RESTART)
    decision, incident = decide_about(diagnosis_of("nic", "h1/0", syndrome), Policy(Action.ISOLATE, Action.ISOLATE))
    assert (incident.action, incident.out, decision.moves, decision.restart) == (Action.ISOLATE, "h1", {}, False)


def test_an_uncertain_diagnosis_is_observed():
    """A diagnosis below the policy's confidence changes nothing."""
    _, incident = decide_about(diagnosis_of("nic", "h1/0", confidence=0.4))
    assert (incident.action, incident.reason) == (Action.OBSERVE, "confidence 40% is below the policy's minimum of 50%")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"confidence": advice.LEAST_CONFIDENCE - 0.01}, "confidence 89% is below 90%"),
        ({"alternatives": (Component("nic", "h2/0"),)}, "nic h2/0 may be to blame as well"),
        ({"alternatives": (Component("link", "10.0.0.1"),)}, "link 10.0.0.1 may be to blame as well"),
    ],
)
@pytest.mark.parametrize("policy", [RESTART, Policy(Action.ISOLATE, Action.ISOLATE)], ids=["restart", "isolate"])
def test_no_host_is_taken_out_for_a_finding_that_is_not_alone_or_not_likely(policy, change, why):
    """Whatever the policy allows, a NIC among several, or below the bar, takes no host out, and the reason says why."""
    decision, incident = decide_about(msgspec.structs.replace(NIC, **change), policy)
    assert (incident.action, incident.out, decision.moves) == (Action.OBSERVE, "", {})
    assert incident.reason == f"no host is taken out: {why}"


def test_a_nic_that_probes_have_left_with_its_cable_is_alone():
    """No packet tells a NIC from its cable: the host of both is taken out, once probes have left no other suspect."""
    cable = msgspec.structs.replace(NIC, alternatives=(Component("link", "10.0.0.1"),), probed=True)
    _, incident = decide_about(cable)
    assert incident.out == "h1"
    other = msgspec.structs.replace(cable, alternatives=(*cable.alternatives, Component("nic", "h2/0")))
    assert decide_about(other)[1].out == ""


def test_a_rank_that_is_not_likely_enough_restarts_where_it_is():
    """A hung rank below the bar costs no host: the job restarts on the same hosts."""
    decision, incident = decide_about(msgspec.structs.replace(RANK, confidence=0.8))
    assert (decision.restart, incident.out, decision.moves) == (True, "", {})


@pytest.mark.parametrize("kind", ["link", "path", "switch"])
def test_a_job_that_hangs_in_the_fabric_restarts_however_uncertain_the_part(kind):
    """Whichever part it is, the job restarts on other paths and nothing is isolated."""
    decision, incident = decide_about(diagnosis_of(kind, "h1/0>h2/0", confidence=0.04))
    assert (incident.action, incident.out, decision.moves) == (Action.RESTART, "", {})


def test_without_a_spare_a_rank_restarts_on_its_host():
    """Without a spare the job restarts for a rank that ended, but not for a NIC, which would fail again."""
    decision, incident = decide_about(RANK, spares=0)
    assert (incident.action, incident.out, decision.moves) == (Action.RESTART, "", {})
    _, incident = decide_about(NIC, spares=0)
    assert (incident.action, incident.out) == (Action.OBSERVE, "")
    assert "fewer than the job's minimum of 4" in incident.reason


def test_a_job_shrinks_to_its_minimum_and_no_further():
    """With a minimum of three of four ranks, the job continues after the first loss but not after the second."""
    policy = Policy(hang=Action.RESTART, min_ranks=3)
    decision, incident = decide_about(NIC, policy, spares=0)
    assert (decision.moves, incident.out) == ({"h1": None}, "h1")
    two = decide("j", [NIC, diagnosis_of("host", "h3")], policy, fleet(spares=0))
    assert [incident.action for incident in two.incidents] == [Action.RESTART, Action.OBSERVE]
    assert len(two.moves) == 1


def test_a_second_fault_gets_the_second_spare_and_a_third_ndecide_about():
    """Diagnoses of the same time share the spares, the most confident first."""
    faults = [diagnosis_of("host", f"h{i}", confidence=0.9 + i / 30) for i in range(3)]
    decision = decide("j", faults, Policy(hang=Action.RESTART, hosts_per_hour=9), fleet(spares=2))
    assert [(incident.out, incident.spare) for incident in decision.incidents] == [("h2", "s0"), ("h1", "s1"), ("", "")]


def test_hosts_per_hour_and_restarts_per_hour_are_kept():
    """Only hosts taken out and restarts within the last hour count, including hosts that were put back."""
    policy = Policy(hang=Action.RESTART, hosts_per_hour=2)
    _, incident = decide_about(NIC, policy, taken_s=(NOW_S - 10, NOW_S - 3000))
    assert (incident.action, incident.out) == (Action.OBSERVE, "")
    assert "2 hosts were taken out" in incident.reason
    assert decide_about(NIC, policy, taken_s=(NOW_S - 10, NOW_S - 3700))[1].out == "h1"
    often = Policy(hang=Action.RESTART, restarts_per_hour=1)
    assert decide_about(NIC, often, restarts_s=(NOW_S - 5,))[1].action is Action.OBSERVE
    assert decide_about(NIC, often, restarts_s=(NOW_S - 3700,))[1].action is Action.RESTART


@pytest.mark.parametrize(
    ("policy", "spares"),
    [
        (Policy(hang=Action.ISOLATE, hosts_per_hour=1), 2),
        (Policy(hang=Action.RESTART, hosts_per_hour=1), 2),
        (Policy(hang=Action.RESTART, hosts_per_hour=1, min_ranks=1), 0),
    ],
    ids=["isolated", "replaced", "given up"],
)
def test_hosts_taken_out_at_once_count_towards_the_limit_of_the_hour(policy, spares):
    """Of two broken hosts named at the same time only one is taken out where one an hour is allowed."""
    sure = diagnosis_of("nic", "h1/0", confidence=0.95)
    decision = decide("j", [sure, diagnosis_of("host", "h3")], policy, fleet(spares=spares))
    assert [incident.out for incident in decision.incidents] == ["h1", ""]
    assert "1 hosts were taken out of service within the last hour" in decision.incidents[1].reason


def test_a_spare_must_have_as_many_nics():
    """A rank that uses two NICs is not moved to a host with one."""
    members = (Member(0, "h0", ("h0/0", "h0/1")), Member(1, "h1", ("h1/0", "h1/1")))
    small = Fleet(NOW_S, members, 2, (host("s0"), host("s1", 2)))
    assert decide("j", [NIC], RESTART, small).moves["h1"].name == "s1"


# Two leaves at a spine, and two at another one that a core joins to it.
TRUNKS = (("leaf0", "spine0"), ("leaf1", "spine0"), ("leaf2", "spine1"), ("leaf3", "spine1"), ("spine0", "core"))
TRUNKS += (("spine1", "core"),)


def cabled(**leaves):
    """The graph of hosts whose NICs are at these leaves in order, each at 10 Gbit/s or as after a slash."""
    ports = []
    for name, at in leaves.items():
        for number, place in enumerate(at.split()):
            leaf, _, rate = place.partition("/")
            ports.append(HostPort(name, leaf, float(rate or 10) * 1e9, nic=number))
    trunks = tuple(Trunk(a, b, 10e9) for a, b in TRUNKS)
    switches = tuple(dict.fromkeys(end for ends in TRUNKS for end in ends))
    return FabricGraph(switches, tuple(leaves), tuple(ports), trunks)


@pytest.mark.parametrize(
    ("leaves", "chosen", "cost"),
    [
        ({"s0": "leaf2", "s1": "leaf1", "s2": "leaf0"}, "s2", ""),
        ({"s0": "leaf2", "s1": "leaf1"}, "s1", "; no spare is better: its 3 paths to the others are 2 links longer"),
        ({"s0": "leaf2", "s1": "leaf3"}, "s0", "; no spare is better: its 3 paths to the others are 4 links longer"),
        ({"s0": "leaf0/5", "s1": "leaf2"}, "s1", "; no spare is better: its 3 paths to the others are 4 links longer"),
        ({"s0": "leaf0/5"}, "s0", "; no spare is better: its slowest NIC is 50% slower"),
        ({"s1": "leaf2"}, "s1", "; no spare is better: its 3 paths to the others are 4 links longer"),
        ({}, "s0", ", whose place in the fabric is not stated"),
    ],
)
def test_the_spare_that_is_most_like_the_host_replaces_it(leaves, chosen, cost):
    """The idle spare with as fast NICs, as near to the job's hosts, is chosen; else the reason says what it costs."""
    job = {f"h{number}": "leaf0" for number in range(4)}
    decision, incident = decide_about(NIC, spares=3, graph=cabled(**job, **leaves))
    assert decision.moves["h1"].name == chosen
    assert incident.reason == f"{chosen} takes its place{cost}"


def test_a_spare_on_the_same_rails_is_better_than_one_whose_rails_are_crossed():
    """The n-th NIC takes the n-th one's place: one whose NICs are at the rails in another order is farther."""
    members = tuple(Member(number, f"h{number}", (f"h{number}/0", f"h{number}/1")) for number in range(3))
    graph = cabled(**dict.fromkeys(["h0", "h1", "h2", "s1"], "leaf0 leaf1"), s0="leaf1 leaf0")
    spares = (host("s0", 2), host("s1", 2))
    assert decide("j", [NIC], RESTART, Fleet(NOW_S, members, 3, spares, graph=graph)).moves["h1"].name == "s1"


COMPONENTS = st.one_of(
    st.builds(lambda n: Component("rank", f"j:{n}"), st.integers(0, 9)),
    st.builds(lambda n: Component("nic", f"h{n}/0"), st.integers(0, 9)),
    st.builds(lambda n: Component("host", f"h{n}"), st.integers(0, 9)),
    st.sampled_from([Component("job", "j"), Component("path", "h0/0>h1/0"), Component("link", "10.0.0.1")]),
)
FINDINGS = st.lists(
    st.builds(
        lambda part, syndrome, confidence, cause: Diagnosis(
            "j", syndrome, part, 1.0, 2.0, 3.0, confidence, ("why",), "not", cause
        ),
        COMPONENTS,
        st.sampled_from(list(Syndrome)),
        st.floats(0, 1),
        st.sampled_from([None, *Cause]),
    ),
    max_size=6,
)
POLICIES = st.builds(
    Policy,
    hang=st.sampled_from(list(Action)),
    slow=st.sampled_from(list(Action)),
    min_ranks=st.integers(0, 6),
    hosts_per_hour=st.integers(0, 4),
    restarts_per_hour=st.integers(0, 3),
    min_confidence=st.floats(0, 1),
)


@given(FINDINGS, POLICIES, st.integers(0, 3), st.lists(st.floats(NOW_S - 7200, NOW_S), max_size=4))
def test_no_limit_is_broken_and_no_healthy_host_is_replaced(diagnoses, policy, spares, taken_s):
    """Isolated hosts stay within the hourly limit and belong to a named component, and the job keeps its minimum."""
    seen = fleet(6, spares, taken_s=tuple(taken_s))
    decision = decide("j", diagnoses, policy, seen)
    outs = {incident.out for incident in decision.incidents if incident.out}
    recent = sum(NOW_S - time_s < 3600 for time_s in taken_s)
    assert not outs or len(outs) + recent <= policy.hosts_per_hour
    assert set(decision.moves) <= outs
    named = {diagnosis.component.name.partition("/")[0].replace("j:", "h") for diagnosis in diagnoses}
    assert outs <= named
    given_up = sum(spare is None for spare in decision.moves.values())
    assert not given_up or 6 - given_up >= (policy.min_ranks or 6)
    used = [spare.name for spare in decision.moves.values() if spare]
    assert len(used) == len(set(used)) <= spares
    assert len(decision.incidents) == len(diagnoses)
    members, nics = move_ranks(seen.members, [host(f"h{i}").nics[0] for i in range(6)], decision.moves)
    assert [member.rank for member in members] == list(range(6 - given_up))
    assert {nic for member in members for nic in member.nics} == {nic.name for nic in nics}
    assert not {member.host for member in members} & set(decision.moves)


def test_ranks_keep_their_order_on_other_hosts():
    """Moved ranks keep their order and use the spare's NICs in the order of the old host's."""
    members = tuple(Member(rank, f"h{rank // 2}", (f"h{rank // 2}/{rank % 2}",)) for rank in range(6))
    nics = [nic for name in ("h0", "h1", "h2") for nic in host(name, 2).nics]
    moved, kept = move_ranks(members, nics, {"h1": host("s0", 2)})
    assert [(m.rank, m.host, m.nics) for m in moved[2:4]] == [(2, "s0", ("s0/0",)), (3, "s0", ("s0/1",))]
    assert [moved[i] for i in (0, 1, 4, 5)] == [members[i] for i in (0, 1, 4, 5)]
    assert [nic.name for nic in kept] == ["h0/0", "h0/1", "h2/0", "h2/1", "s0/0", "s0/1"]
    fewer, _ = move_ranks(members, nics, {"h1": None})
    assert [(m.rank, m.host) for m in fewer] == [(0, "h0"), (1, "h0"), (2, "h2"), (3, "h2")]
