"""Numbered packets: which component loses or reorders them, and when that is not known yet."""

import random

import pytest
from c4d_fabric import LeafSpine
from test_c4d_doubts import ACROSS, PATH, link

from c4bench.c4d.act.answers import DeliveryProbes
from c4bench.c4d.act.doubts import Doubts
from c4bench.c4d.diagnosis import Finding
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.recording import DeliveriesCounted, Delivery, ExpiringProbe, HopsProbed, ProbingEnded

# A third leaf tells links in series apart.
FABRIC = LeafSpine(3)
PATHS, LEAF = FABRIC.paths, FABRIC.leaf
NIC = Component("nic", "h0/0")
SENT = 100


def crossed(path):
    """The directions of links that a path crosses, its NICs' own among them."""
    return {f"tx {path[0]}", f"rx {path[1]}", *PATHS[path]}


def counted(path, faulty, manner, draw, probability):
    """What arrives of numbered packets if parts of the path lose or reorder them."""
    chance = probability if crossed(path) & faulty else 0.0

    def hit():
        return sum(draw.random() < chance for _ in range(SENT))

    data, acks, late = hit() * (manner == "lost"), hit() * (manner != "late"), hit() * (manner == "late")
    return Delivery(*path, SENT, SENT - data, SENT - acks, late)


@pytest.fixture
def probed():
    """Count packets for a finding on what loses them; return the suspects left, and how many turns that took."""

    def run(suspects, faulty, manner="lost", probability=0.03, cause=Cause.PACKETS_LOST, seed=1):
        first, *others = suspects
        finding = Finding(Syndrome.COMMUNICATION_SLOW, cause, first, 1.0, 0.5, ("seen",), "", {}, tuple(others))
        doubts, turns, draw = Doubts(PATHS), 0, random.Random(seed)
        doubts.hold(finding, 2.0, 2.0, LEAF) or doubts.add(finding, 2.0, LEAF)
        while flows := doubts.next_flows():
            turns += 1
            found = tuple(counted(path, faulty, manner, draw, probability) for path in flows)
            doubts.ingest(DeliveriesCounted(0.0, "job", found))
        doubts.ingest(ProbingEnded(0.0, "job"))
        return [one.suspects for one, _ in doubts.ended(0.0).name], turns

    return run


@pytest.mark.parametrize("manner", ["lost", "acks", "late"])
@pytest.mark.parametrize("side", ["tx", "rx"])
def test_a_nic_is_named_with_its_side(probed, manner, side):
    """A NIC that loses packets, acknowledgements or the order in one direction is named with it, and nothing else."""
    (left,), _ = probed([PATH, NIC, *ACROSS[1:-1]], {f"{side} h0/0"}, manner)
    assert left == (Component("nic", "h0/0", side),)


def test_a_nic_without_alternatives_gets_its_side(probed):
    """A NIC that is named as a whole is probed too: the side belongs to the answer."""
    assert probed([NIC], {"rx h0/0"})[0] == [(Component("nic", "h0/0", "rx"),)]


def test_a_nic_that_loses_both_ways_stays_whole(probed):
    """Where both directions lose packets the NIC as a whole is left, with its cable."""
    (left,), _ = probed([PATH, NIC, *ACROSS], {"tx h0/0", "rx h0/0"}, probability=0.1)
    assert left == (NIC, ACROSS[0])


@pytest.mark.parametrize("manner", ["lost", "acks"])
@pytest.mark.parametrize("probability", [0.02, 0.05])
def test_a_link_is_told_from_the_next(probed, manner, probability):
    """Packets from a third leaf cross only one of two links in series: the other is told from it."""
    (left,), turns = probed([PATH, NIC, *ACROSS], {"spine0>leaf1"}, manner, probability)
    assert left == (link("spine0>leaf1"),)
    assert turns <= 4


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("manner", ["lost", "acks", "late"])
def test_few_losses_leave_what_they_cannot_tell_apart(probed, manner, seed):
    """Where one packet in 200 is lost or overtaken, the link is among what is left: chance names nothing healthy."""
    refined, _ = probed([PATH, NIC, *ACROSS], {"spine0>leaf1"}, manner, 0.005, seed=seed)
    assert all(link("spine0>leaf1") in left for left in refined)


@pytest.mark.parametrize("arrived", [0, 90])
def test_what_is_dead_is_not_what_a_packet_came_by(arrived):
    """Of two links that numbered packets cannot tell apart, one is cleared by an answer only if nothing arrives."""
    pair = {path: hops for path, hops in PATHS.items() if path[:2] in {("h0/0", "h3/0"), ("h1/0", "h4/0")}}
    suspects = ACROSS[1:-1]
    finding = Finding(
        Syndrome.COMMUNICATION_HANG, Cause.CONNECTION_STALLED, suspects[0], 1.0, 0.5, (), "", {}, tuple(suspects[1:])
    )
    doubts = Doubts(pair)
    doubts.hold(finding, 2.0, 2.0, LEAF) or doubts.add(finding, 2.0, LEAF)
    asked = ExpiringProbe("h0/0", "h3/0", 1, 2)
    lost = {path for path in pair if path[2] == 1}
    counted = (Delivery(*path, SENT, *([arrived if path in lost else SENT] * 2), 0) for path in pair)
    doubts.ingest(DeliveriesCounted(0.0, "job", tuple(counted)))
    doubts.ingest(HopsProbed(0.0, "job", (asked,), (PATHS[asked[:3]][1],)))
    doubts.ingest(ProbingEnded(0.0, "job"))
    assert [str(one.component) for one, _ in doubts.ended(0.0).name] == ([] if arrived else ["link spine0>leaf1"])


def test_nothing_is_named_of_healthy_paths(probed):
    """Where no packet is lost, more are sent up to a limit, and the finding stays as it is."""
    assert probed([PATH, NIC, *ACROSS], set()) == ([], 4)


def test_two_packets_lost_by_chance_accuse_nobody():
    """Congestion may drop a packet or two of one flow, which is not a thousand times likelier if a link is to blame."""
    probes = DeliveryProbes([PATH, NIC, *ACROSS], PATHS)
    lost = {("h0/0", "h3/0", 1): 2}
    assert lost.keys() < set(probes.flows())
    counted = [Delivery(*flow, SENT, SENT - lost.get(flow, 0), SENT, 0) for flow in probes.flows()]
    assert probes.left(counted) == (frozenset(), True)


def test_what_is_no_suspect_is_not_hidden_behind_one(probed):
    """Where another component explains the losses far better than any suspect, no suspect is named."""
    refined, _ = probed([Component("nic", "h3/0"), link("leaf0>h0/0")], {"tx h1/0"}, probability=0.2)
    assert refined == []


def test_packets_that_were_sent_for_another_doubt_count():
    """All of a NIC's own probes cross one link beyond its doubt: those for another doubt show that it is the link."""
    link, nic, draw = "spine0>leaf1", Component("nic", "h3/0"), random.Random(1)
    over_it = [path for path, hops in PATHS.items() if link in hops]
    own, apart = [path for path in over_it if path[1] == "h3/0"], list(set(PATHS) - set(over_it))
    suspects = Component("path", "h0/0>h3/0"), (nic,)
    finding = Finding(
        Syndrome.COMMUNICATION_HANG, Cause.CONNECTION_STALLED, suspects[0], 1.0, 0.5, ("seen",), "", {}, suspects[1]
    )
    named = []
    for flows in (own, over_it):
        doubts = Doubts(PATHS)
        doubts.hold(finding, 2.0, 2.0, LEAF) or doubts.add(finding, 2.0, LEAF)
        clear = [path for path in sorted(apart) if path[1] != "h3/0"][:4]
        sent = tuple(counted(path, {link}, "acks", draw, 1.0) for path in [*flows, *clear])
        doubts.ingest(DeliveriesCounted(0.0, "job", sent))
        doubts.ingest(ProbingEnded(0.0, "job"))
        named.append([one.component.name for one, _ in doubts.ended(0.0).name])
    assert named == [["h3/0"], []]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_another_finding_explains_as_well_names_nothing_more(elsewhere):
    """A NIC's packets were lost across two links in series that another finding names: they say nothing of the NIC."""
    links, nic = ACROSS[1:-1], Component("nic", "h0/0")
    doubts = Doubts(PATHS)
    for first, *others in ([links] if elsewhere else []) + [(Component("path", "h3/0>h0/0"), nic)]:
        doubts.add(
            Finding(
                Syndrome.COMMUNICATION_HANG, Cause.CONNECTION_STALLED, first, 1.0, 0.5, ("seen",), "", {}, tuple(others)
            ),
            2.0,
            LEAF,
        )
    lost = ("h0/0", "h3/0", 1), ("h0/0", "h4/0", 1)
    # One flow of the NIC and one over the links lose nothing, so that neither explains the lost packets better.
    sound = ("h0/0", "h1/0", 1), ("h1/0", "h0/0", 1), ("h1/0", "h3/0", 1), ("h2/0", "h3/0", 2), ("h2/0", "h4/0", 2)
    counts = tuple(Delivery(*path, SENT, SENT, 0 if path in lost else SENT, 0) for path in lost + sound)
    doubts.ingest(DeliveriesCounted(0.0, "job", counts))
    doubts.ingest(ProbingEnded(0.0, "job"))
    named = [one.component for one, _ in doubts.ended(0.0).name]
    assert named == ([] if elsewhere else [Component("nic", "h0/0", "tx")])
