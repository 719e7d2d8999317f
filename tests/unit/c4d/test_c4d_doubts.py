"""Doubts about dead components: packets that expire on the way end them, or show that no packet can."""

import random

import pytest
from c4d_fabric import LeafSpine

from c4bench.c4d.act.doubts import Doubts
from c4bench.c4d.diagnosis import Finding
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.recording import DeliveriesCounted, Delivery, HopsProbed, ProbingEnded

FABRIC = LeafSpine(2)
PATHS, LEAF = FABRIC.paths, FABRIC.leaf


def answers(probes, dead, draw, silent_to=(), spent=()):
    """The addresses that answer where these links are dead, and some NICs get no answer from anybody."""
    found = (FABRIC.answer(probe, dead, draw) if probe.source not in silent_to else "" for probe in probes)
    return tuple(
        address or (None if probe.source in spent else "") for probe, address in zip(probes, found, strict=True)
    )


def counted(flow, dead):
    """What arrives of numbered packets."""
    came = 0 if {*PATHS[flow]} & dead else 100
    return Delivery(*flow, 100, came, came, 0)


@pytest.fixture
def probed():
    """Probe for a finding where some links are dead; return the suspects left, and how many packets expired."""

    def run(suspects, dead, *, silent_to=(), spent=()):
        first, *others = suspects
        finding = Finding(
            Syndrome.COMMUNICATION_HANG, Cause.CONNECTION_STALLED, first, 1.0, 0.5, (), "", {}, tuple(others)
        )
        doubts, sent, draw = Doubts(PATHS), 0, random.Random(1)
        doubts.hold(finding, 2.0, 2.0, LEAF) or doubts.add(finding, 2.0, LEAF)
        assert doubts.next_probes(lambda *_: True) == {}
        while True:
            if probes := doubts.next_probes(lambda nic, _hop: nic not in spent):
                assert len({probe[:3] for probe in probes}) == len(probes)
                doubts.ingest(HopsProbed(0.0, "job", tuple(probes), answers(probes, dead, draw, silent_to, spent)))
                sent += len(probes)
            elif flows := doubts.next_flows():
                doubts.ingest(DeliveriesCounted(0.0, "job", tuple(counted(flow, dead) for flow in flows)))
            else:
                break
            assert doubts.ended(0.0).name == []
        doubts.ingest(ProbingEnded(0.0, "job"))
        refined = doubts.ended(0.0).name
        assert doubts.ended(0.0).name == []
        return [{one.component, *one.alternatives} for one, _ in refined], sent

    return run


def link(name):
    return Component("link", name)


ACROSS = [link(name) for name in FABRIC.links("h0/0", "h3/0", "spine0")]
NICS = [Component("nic", "h0/0", "tx"), Component("nic", "h3/0", "rx")]
PATH = Component("path", "h0/0>h3/0")
SERIES = ACROSS[1:-1]


@pytest.mark.parametrize("dead", ["leaf0>spine0", "spine0>leaf1"])
@pytest.mark.parametrize("both", [False, True])
def test_dead_links_in_series_are_told_apart(probed, dead, both):
    """Of a path's NICs and links, the one link that drops everything is left, dead in one direction or in both."""
    back = ">".join(reversed(dead.split(">")))
    (left,), sent = probed([PATH, *NICS, *ACROSS], {dead, back} if both else {dead})
    assert left == {link(dead)}
    assert sent <= 12


@pytest.mark.parametrize("nic", ["h0/0", "h3/0"])
@pytest.mark.parametrize("side", ["tx", "rx", ""])
def test_a_dead_nic_and_its_cable_stay_together(probed, nic, side):
    """No packet can tell a NIC that drops everything from its cable: both are left, and nothing else."""
    cable = {"tx": {f"{nic}>{LEAF[nic]}"}, "rx": {f"{LEAF[nic]}>{nic}"}}
    (left,), _ = probed([PATH, *NICS, *ACROSS], cable.get(side) or cable["tx"] | cable["rx"])
    links = {part for part in ACROSS if nic in part.name and (not side or part.name in cable[side])}
    assert left == {Component("nic", nic, side), *links}


def test_what_nothing_accuses_is_not_named(probed):
    """Where everything arrives, the finding stays as it is, and no switch is asked: nobody is left over."""
    assert probed([PATH, *NICS, *ACROSS, link("elsewhere")], set()) == ([], 0)


def test_links_by_which_answers_return_are_accused_as_well(probed):
    """Both directions of a dead cable are left if both are suspects, as no packet needs only one of them."""
    suspects = [link(name) for name in ("leaf0>spine0", "spine0>leaf0", "spine0>leaf1", "leaf1>spine0")]
    (left,), _ = probed(suspects, {"leaf0>spine0", "spine0>leaf0"})
    assert left == {link("leaf0>spine0"), link("spine0>leaf0")}


@pytest.mark.parametrize("nic", LEAF)
def test_silence_for_want_of_an_answer_accuses_nobody(probed, nic):
    """A switch that has no answer left for one NIC answers another: the dead link is found all the same."""
    (left,), _ = probed([PATH, *SERIES], {"spine0>leaf1"}, silent_to={nic})
    assert left == {link("spine0>leaf1")}


def test_where_answers_may_be_spent_silence_means_nothing(probed):
    """A switch that may have no answer left accuses nobody by its silence, and is not asked for ever."""
    (left,), sent = probed([PATH, *SERIES], {"leaf0>spine0"}, spent=LEAF)
    assert left == {*SERIES}
    assert sent < 24


def test_a_single_silence_means_nothing(probed):
    """If only one NIC can be answered, nothing tells which of two links in series is dead."""
    (left,), _ = probed([PATH, *SERIES], {"leaf0>spine0"}, spent={"h1/0", "h2/0"})
    assert left == {*SERIES}


def test_a_path_of_unknown_links_is_not_probed():
    """A flow without a planned source port says nothing of links: no packet is sent for it."""
    unplanned = ("h1/0", "h3/0", 0)
    doubts = Doubts({unplanned: (), **PATHS})
    finding = Finding(Syndrome.COMMUNICATION_SLOW, Cause.PACKETS_LOST, PATH, 1.0, 0.5, (), "", {}, (*NICS, *ACROSS))
    doubts.hold(finding, 2.0, 2.0, LEAF) or doubts.add(finding, 2.0, LEAF)
    assert doubts.next_flows()
    assert unplanned not in doubts.next_flows()


def test_the_paths_in_use_are_probed_first():
    """Where several paths tell as much, packets are numbered on those by which the job sends."""
    used = {path for path in PATHS if path[0] in {"h1/0", "h2/0"}}
    first, *others = SERIES
    finding = Finding(
        Syndrome.COMMUNICATION_HANG, Cause.CONNECTION_STALLED, first, 1.0, 0.5, ("seen",), "", {}, tuple(others)
    )
    doubts = Doubts(PATHS)
    doubts.add(finding, 2.0, LEAF, used)
    crossing = [flow for flow in doubts.next_flows() if first.name in PATHS[flow]]
    assert crossing
    assert set(crossing) <= used
