"""For want of a link others carry more, and are well: the link is the finding."""

import msgspec
import pytest
from c4d_telemetry import MIX, ticks

from c4bench.attribution.weigh import Blame, Posterior, Row
from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.shared_fabric import SharedFabric
from c4bench.c4d.signs.missing_links import MissingLinkDetector, failed_together, missing_links_behind
from c4bench.model.diagnosis import Cause, Component
from c4bench.model.fabric import MissingLink
from c4bench.model.recording import LinksMissing
from c4bench.model.step import StepOp
from tools.sim.model import SimFault, SimFaultKind, SimJob

LOST_S, MISSED_S, UNTIL_S = 2.5, 2.8, 5.5
ONSET_S = 2.6
FLAP_S = 1.0
RING = (StepOp("all_reduce", 4 << 20, 0.05),)
PAIR, EIGHT = SimJob(2, RING, seed=1), SimJob(8, MIX, seed=1)
# What leaves a leaf goes by up:LEAF>SPINE and comes to the other by down:SPINE>LEAF; up:0>1 and its way back are lost.
THERE = MissingLink("up:0>1", LOST_S, MISSED_S, ("up:0>0", "down:0>1"))
BACK = MissingLink("down:1>0", LOST_S, MISSED_S, ("up:1>0", "down:0>0"))


def ways(job):
    """Half of the ranks are below each of two leaves, and all are sent over spine 0."""
    leaf = {f"h{rank}/0": 2 * rank // job.ranks for rank in range(job.ranks)}
    return {
        (source, destination, port): (
            f"at:{source}",
            *((f"up:{here}>0", f"down:0>{there}") if here != there else ()),
            f"to:{destination}",
        )
        for source, here in leaf.items()
        for destination, there in leaf.items()
        for port in range(0xC000, 0xC000 + job.ranks)
        if source != destination
    }


def over_what_is_lost(job):
    """The same, but from rank 0 to its peer beyond by the link that is lost."""
    return {
        way: (hops[0], "up:0>1", "down:1>1", hops[-1]) if way[:2] == ("h0/0", "h1/0") else hops
        for way, hops in ways(job).items()
    }


def slower(rank, peer, factor=0.6, at_s=ONSET_S):
    return SimFault(SimFaultKind.PATH_RATE, rank, at_s, factor=factor, peer=peer)


def said(job, *faults, missing=(THERE, BACK), until_s=UNTIL_S, known=None, back_s=float("inf")):
    """What is found while C4P misses these links, which it does until `back_s`."""
    detector, found = Detector(SharedFabric(ways(job) if known is None else known)), []
    for tick in ticks(job, faults, until_s):
        for window in tick.windows:
            detector.ingest_window(window)
        if tick.time_s >= MISSED_S:
            detector.ingest(LinksMissing(tick.time_s, missing if tick.time_s < back_s else ()))
        found += detector.evaluate(tick.time_s)
    return found


def names(found):
    return [str(one.component) for one in found]


def test_the_link_is_found_and_not_the_path_of_two_ranks():
    """A two-rank job is slower one way for want of an uplink: the link is the finding, since when it was slower."""
    assert names(said(PAIR, slower(0, 1), missing=())) == ["nic h0/0 (tx)"]
    (found,) = said(PAIR, slower(0, 1))
    assert (found.cause, found.component) == (Cause.LINK_MISSING, Component("link", THERE.name))
    assert found.onset_s == pytest.approx(ONSET_S, abs=0.3)


def test_a_link_that_should_have_answered_is_named_before_those_that_no_way_leads_over():
    """Beyond a dead link nothing is heard any more, the other leaf's link to that spine included; once is enough."""
    beyond = MissingLink("down:1>1", LOST_S, MISSED_S, THERE.instead)
    (found,) = said(PAIR, slower(0, 1), missing=(beyond, THERE))
    assert {found.component.name, *(one.name for one in found.alternatives)} == {beyond.name, THERE.name}
    (found,) = said(PAIR, slower(0, 1), missing=(beyond, msgspec.structs.replace(THERE, silent=True)))
    assert (found.component, found.alternatives) == (Component("link", THERE.name), ())
    (found,) = said(PAIR, slower(0, 1), missing=(beyond, msgspec.structs.replace(BACK, silent=True)))
    assert (found.component, found.alternatives) == (Component("link", BACK.name), ())


def test_a_link_that_all_goes_over_now_is_among_what_may_be_to_blame():
    """A switch that sends everything out of one port makes the links of its others missing, which are well."""
    elsewhere = msgspec.structs.replace(THERE, through=THERE.instead)
    (found,) = said(PAIR, slower(0, 1), missing=(elsewhere,))
    assert found.component == Component("link", THERE.name)
    assert found.alternatives == tuple(Component("link", name) for name in THERE.instead)
    (found,) = said(PAIR, slower(0, 1), missing=(msgspec.structs.replace(elsewhere, silent=True),))
    assert found.alternatives == ()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, ["up:0>0", "down:0>1"]),
        # One of them may be dead, or what is beyond.
        ({"silent": True}, None),
        ({"through": ("up:0>3",)}, None),
        ({"onward": ("up:0>1",)}, None),
    ],
)
def test_a_switch_that_sends_everything_over_one_link_is_found_at_that_link(change, named):
    """Links that go missing at once have not failed if one other carries the traffic of all of them."""
    first, second = (
        MissingLink(f"up:0>{spine}", LOST_S, MISSED_S, THERE.instead, through=("down:0>1", "up:0>0"), onward=("down",))
        for spine in (1, 2)
    )
    (found,) = said(PAIR, slower(0, 1), missing=(first, msgspec.structs.replace(second, **change)))
    suspects = [one.name for one in found.suspects]
    assert suspects == named if named else "up:0>1" in suspects
    assert found.cause is Cause.LINK_MISSING


@pytest.mark.parametrize(
    ("silent", "switches"),
    [
        # What is silent beyond a switch would have answered before it, had the switch died.
        ((), ["up:1>1", "up:0>1"]),
        (("up:0>1", "up:1>1"), ["up:1>1", "up:0>1"]),
        (("up:0>1", "down:1>0"), []),
    ],
)
def test_a_switch_all_of_whose_links_are_missing_may_have_died(silent, switches):
    """Where a spine joins two leaves nothing leads over it without either of its links: it is among what it may be."""
    links = {"up:0>1": "down:1>1", "up:1>1": "down:1>0"}
    missing = [
        MissingLink(name, LOST_S, MISSED_S, THERE.instead, name in silent, onward=(beyond,))
        for name, beyond in links.items()
    ]
    missing += [
        MissingLink(name, LOST_S, MISSED_S, THERE.instead, name in silent, onward=(nic,))
        for name, nic in zip(links.values(), ("to:h1/0", "to:h0/0"), strict=True)
    ]
    (found,) = said(PAIR, slower(0, 1), missing=missing)
    assert [one.name for one in found.alternatives if one.kind == "switch"] == switches


def test_what_lies_beyond_a_link_that_nothing_takes_may_be_dead_instead():
    """Nothing is sent to a spine that cannot reach the other leaf: its link there may be dead, or the spine itself."""
    known = over_what_is_lost(PAIR)
    ahead = msgspec.structs.replace(THERE, onward=("down:1>1",))
    (found,) = said(PAIR, slower(0, 1), missing=(ahead,), known=known)
    assert found.component == Component("link", THERE.name)
    assert found.alternatives == (Component("link", "down:1>1"), Component("switch", THERE.name))
    reached = msgspec.structs.replace(THERE, onward=("to:h1/0",))
    (found,) = said(PAIR, slower(0, 1), missing=(reached,), known=known)
    assert found.alternatives == ()


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_link_that_slows_nothing_is_named_once_its_silence_is_confirmed(confirmed):
    """A switch without an answer left looks like a lost link, so its silence alone names nothing."""
    link = msgspec.structs.replace(THERE, silent=True, confirmed=confirmed)
    assert names(said(PAIR, missing=(link,), known=over_what_is_lost(PAIR))) == (["link up:0>1"] if confirmed else [])


@pytest.mark.parametrize("confirmed", [True, False])
def test_what_left_a_link_proves_nothing_of_it_before_its_silence_is_confirmed(confirmed):
    """Flows leave a link that C4P misses, and are slower for that: the slower path is no second witness."""
    link = msgspec.structs.replace(THERE, silent=True, confirmed=confirmed)
    assert names(said(PAIR, slower(0, 1), missing=(link,))) == (["link up:0>1"] if confirmed else [])


def test_a_nic_that_fails_while_a_link_is_missing_is_named():
    """A link that has been missing for a second explains nothing that begins then."""
    nic = SimFault(SimFaultKind.NIC_RATE, 1, MISSED_S + 2.0, factor=0.6, side="rx")
    assert "h1/0" in {one.name for found in said(PAIR, nic, until_s=7.5) for one in found.suspects}


def test_a_nic_elsewhere_is_named_though_it_fails_with_the_link():
    """A receiver is slow for its own leaf as well, which no link between switches explains."""
    nic = SimFault(SimFaultKind.NIC_RATE, 5, ONSET_S, factor=0.6, side="rx")
    assert names(said(EIGHT, nic)) == ["nic h5/0 (rx)"]


def test_a_path_below_one_leaf_is_named_though_it_fails_with_the_link():
    """It crosses nothing that carries what the link did."""
    assert names(said(EIGHT, slower(2, 3))) == ["path h2/0>h3/0"]


def test_what_is_slower_than_sharing_makes_it_is_named():
    """A path at a tenth of its rate has more to it than to make room."""
    assert names(said(EIGHT, slower(2, 6, factor=0.1)))[:1] == ["path h2/0>h6/0"]


def test_where_ways_are_not_known_nothing_is_explained():
    """A path that may cross anything is to blame for itself."""
    assert names(said(EIGHT, slower(2, 6), known={})) == ["path h2/0>h6/0"]


def test_an_explained_path_can_fail_as_any_other():
    """What it costs beside what was moved is its measure from then on; the link is said once."""
    found = said(EIGHT, slower(2, 6, factor=0.7), slower(2, 6, factor=0.4, at_s=8.0), until_s=11.0)
    assert [one.component.kind for one in found] == ["link", "path"]


def test_a_link_that_stays_missing_is_found_though_nothing_is_slower():
    """C4P has gone round it, and nothing costs more: people hear once of what died, a second later."""
    (found,) = said(PAIR, known=over_what_is_lost(PAIR))
    assert (found.cause, found.component) == (Cause.LINK_MISSING, Component("link", THERE.name))
    assert FLAP_S < found.named_s - MISSED_S < FLAP_S + 0.5
    assert found.onset_s == LOST_S
    assert "nothing is known to be slower" in found.evidence[0]


def test_a_link_that_flaps_or_that_no_way_led_over_is_no_finding():
    """A flap is benign, and what a job does not use is not for its findings."""
    assert said(PAIR, known=over_what_is_lost(PAIR), back_s=MISSED_S + FLAP_S) == []
    assert said(PAIR) == []


def test_a_link_that_was_found_for_what_it_slows_is_not_found_again():
    """The same link is missing, and its finding stands until it is back."""
    found = said(PAIR, slower(0, 1), known=over_what_is_lost(PAIR))
    assert [one.cause for one in found] == [Cause.LINK_MISSING]
    assert "is slower" in found[0].evidence[0]


def test_what_a_hang_was_said_of_is_not_said_to_be_missing():
    """Until C4P had moved it the job stood still for want of that link, which is a finding already."""
    links = MissingLinkDetector()
    links.update((THERE,), {("a", "b", "1"): ("at", THERE.name, "to")})
    links.note_named([Component("link", THERE.name)], MISSED_S)
    assert links.lasting(MISSED_S + 2 * FLAP_S, FLAP_S) == []
    lost_again = msgspec.structs.replace(THERE, heard_s=MISSED_S + 5.0, missed_s=MISSED_S + 5.3)
    links.update((lost_again,), {("a", "b", "1"): ("at", THERE.name, "to")})
    assert len(links.lasting(MISSED_S + 5.3 + 2 * FLAP_S, FLAP_S)) == 1


def test_what_went_with_a_nics_own_link_is_not_gone_round():
    """Of a leaf that has died, or a host, the NICs tell: links beyond are missed with theirs."""
    for end in ("at:h0/0", "to:h1/0"):
        with_it = msgspec.structs.replace(THERE, name=end, silent=True)
        assert said(PAIR, missing=(THERE, BACK, with_it), known=over_what_is_lost(PAIR)) == []


def test_the_way_that_is_not_known_may_cross_what_carries_instead():
    """Of a connection that is left to the fabric the links may be any of those between its ends."""
    known = {way: hops for way, hops in ways(PAIR).items() if way[2] != 0xC000}
    (found,) = said(PAIR, slower(0, 1), known=known)
    assert found.component == Component("link", THERE.name)


CELL = ("a", "b", "1")
BLAME = Blame(
    Posterior((Row(Component("path", "a>b"), 9.2, 1, 1, frozenset({CELL})),), frozenset({CELL})), (CELL,), 0.5
)


@pytest.mark.parametrize(
    ("onset_s", "excess", "hops", "lacks"),
    [
        (ONSET_S, 0.5, ("x", "up:0>0", "y"), True),
        (ONSET_S, 0.5, ("x", "up:0>1", "y"), True),
        (LOST_S - 0.3, 0.5, ("up:0>0",), False),
        (MISSED_S + 0.3, 0.5, ("up:0>0",), True),
        (MISSED_S + 0.6, 0.5, ("up:0>0",), False),
        (ONSET_S, 1.5, ("up:0>0",), False),
        (ONSET_S, 0.5, ("up:9>0",), False),
        (ONSET_S, 0.5, (), False),
    ],
)
def test_what_lacks_a_link_crosses_what_carries_for_it_since_it_is_lost(onset_s, excess, hops, lacks):
    """In place, in time, and by no more than sharing costs."""
    blame = Blame(BLAME.posterior, BLAME.cells, excess)
    assert missing_links_behind(blame, {CELL: hops}, {CELL: ()}, onset_s, 0.2, [THERE]) == ([THERE] if lacks else [])


@pytest.mark.parametrize(
    ("through", "back", "lacks"),
    [
        (("up:0>0",), [("b", "up:0>1", "a"), ("b", "up:0>0", "a")], True),
        (("up:0>0",), [("b", "up:0>0", "a"), ("b", "up:0>2", "a")], False),
        (("up:0>0",), [], False),
        ((), [("b", "up:0>1", "a"), ("b", "up:0>0", "a")], False),
    ],
)
def test_acknowledgements_wait_where_one_link_carries_all_that_others_did(through, back, lacks):
    """Whatever path they take crosses that link: what they answer is slower for it, and its own links are well."""
    lost = msgspec.structs.replace(THERE, through=through)
    found = missing_links_behind(BLAME, {CELL: ("x", "up:9>0")}, {CELL: back}, ONSET_S, 0.2, [lost])
    assert found == ([lost] if lacks else [])


def test_links_that_went_together_are_one_finding():
    """The directions of a cable are missed in the same looks; what is missed a second later is another loss."""
    later = MissingLink("down:1>0", MISSED_S + 0.7, MISSED_S + 1.0, ())
    assert failed_together(BACK, [THERE])
    assert not failed_together(later, [THERE])


def test_a_silence_that_nobody_confirms_holds_a_finding_up_for_one_more_flap():
    """Of links that went together one is known to be gone: it is named then, and the silent one is a suspect."""
    silent = msgspec.structs.replace(BACK, silent=True, confirmed=False)
    known = msgspec.structs.replace(THERE, confirmed=True)
    links = MissingLinkDetector()
    links.update((known, silent), {CELL: ("at", THERE.name, BACK.name, "to")})
    assert links.lasting(MISSED_S + 1.9 * FLAP_S, FLAP_S) == []
    (found,) = links.lasting(MISSED_S + 2.1 * FLAP_S, FLAP_S)
    assert [one.name for one in found.suspects] == [THERE.name, BACK.name]
