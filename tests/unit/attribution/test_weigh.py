"""Which components bad cells accuse, by what they cross."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.attribution.weigh import Observation, Rates, attribute_cells, likeliest
from c4bench.model.diagnosis import Component


def _all_to_all(nics, slow):
    cells = [(a, b) for a in nics for b in nics if a != b]
    return {cell: 2.0 if slow(*cell) else 0.0 for cell in cells}


_NICS = st.integers(3, 12).map(lambda count: [f"h{index}/0" for index in range(count)])


@given(_NICS, st.data())
def test_column_names_the_receiver_and_row_the_sender(nics, data):
    """A full column is the receiver of a NIC, a full row its transmitter, whatever the size of the job."""
    nic = data.draw(st.sampled_from(nics))
    (column,) = attribute_cells(_all_to_all(nics, lambda _, b: b == nic), above=1.0)
    (row,) = attribute_cells(_all_to_all(nics, lambda a, _: a == nic), above=1.0)
    assert (column.component, row.component) == (Component("nic", nic, "rx"), Component("nic", nic, "tx"))
    assert column.alternatives == row.alternatives == ()


@given(st.integers(4, 12).map(lambda count: [f"h{index}/0" for index in range(count)]), st.data())
def test_point_names_the_path(nics, data):
    """One bad cell among good ones in its row and column is the path between two NICs."""
    source, destination = data.draw(st.permutations(nics))[:2]
    (blame,) = attribute_cells(_all_to_all(nics, lambda a, b: (a, b) == (source, destination)), above=1.0)
    assert blame.suspects == (Component("path", f"{source}>{destination}"),)


def test_row_and_column_of_one_nic_name_the_whole_nic():
    """When a NIC is bad in both directions neither side alone is blamed."""
    nics = ["a", "b", "c", "d"]
    (blame,) = attribute_cells(_all_to_all(nics, lambda a, b: "b" in (a, b)), above=1.0)
    assert blame.component == Component("nic", "b")


def test_ring_cannot_tell_and_says_so():
    """A pure ring fills one cell a row and column: both NIC sides may be to blame alike."""
    ring = {("a", "b"): 0.0, ("b", "c"): 3.0, ("c", "a"): 0.0}
    (blame,) = attribute_cells(ring, above=1.0)
    assert set(blame.suspects) == {Component("nic", "b", "tx"), Component("nic", "c", "rx")}
    assert blame.posterior.share == pytest.approx(0.5)


def test_two_hosts_both_ways_lists_the_other_nic():
    """With two hosts and both directions bad, either NIC explains everything."""
    (blame,) = attribute_cells({("a", "b"): 2.0, ("b", "a"): 2.0}, above=1.0)
    assert set(blame.suspects) == {Component("nic", "a"), Component("nic", "b")}


def test_a_nic_of_a_ring_may_be_a_cable_of_its_paths():
    """A link of its path in and one of its path out may be the two directions of one cable."""
    ring = {("a", "b"): 2.0, ("b", "c"): 1.5, ("c", "a"): 0.0}
    links = {("a", "b"): ("up", "shared"), ("b", "c"): ("down",), ("c", "a"): ("shared",)}
    (blame,) = attribute_cells(ring, links, above=1.0)
    assert blame.component == Component("nic", "b")
    assert set(blame.alternatives) == {Component("link", "up"), Component("link", "down")}
    assert blame.posterior.share > 0.95


def test_two_independent_faults_are_both_named():
    """A bad receiver and a bad transmitter of comparable weight are two findings."""
    nics = ["a", "b", "c", "d", "e", "f"]
    blames = attribute_cells(_all_to_all(nics, lambda a, b: b == "b" or a == "e"), above=1.0)
    assert {blame.component for blame in blames} == {Component("nic", "b", "rx"), Component("nic", "e", "tx")}


def test_what_a_fault_drags_along_is_not_blamed():
    """Cells slowed a little beside a column slowed a lot are its shadow."""
    cells = _all_to_all(["a", "b", "c", "d", "e"], lambda _, b: b == "b")
    cells |= {("c", "d"): 0.9, ("c", "e"): 1.1, ("c", "a"): 1.1}
    assert [blame.component for blame in attribute_cells(cells, above=1.0)] == [Component("nic", "b", "rx")]


def test_half_a_column_is_undecided():
    """Two of four bad cells in a column fit neither the NIC nor a path: nobody is named."""
    cells = _all_to_all(["a", "b", "c", "d", "e"], lambda a, b: b == "b" and a in "ac")
    assert attribute_cells(cells, above=1.0) == []


def test_healthy_matrix_blames_nobody():
    """No cell above the bar, no blame."""
    assert attribute_cells(_all_to_all(["a", "b", "c"], lambda *_: False), above=1.0) == []


def _fabric(nics):
    """Every pair's links: up from its source's leaf, down to its destination's; even and odd NICs have a leaf each."""
    half = {nic: index % 2 for index, nic in enumerate(nics)}
    return {(a, b): (f"up{half[a]}", f"down{half[b]}", f"port-{b}") for a in nics for b in nics if half[a] != half[b]}


def test_cells_that_share_a_link_name_the_link():
    """All data from one leaf to the other is slow, for any sender and receiver: one of the links on the only path."""
    links = _fabric("abcdef")
    (blame,) = attribute_cells({cell: 2.0 if "up0" in hops else 0.0 for cell, hops in links.items()}, links, above=1.0)
    assert {blame.component, *blame.alternatives} == {Component("link", "up0"), Component("link", "down1")}


def test_last_link_cannot_be_told_from_the_nic_behind_it():
    """A column is its NIC's receiver, or the port and cable before it; the traffic says no more."""
    links = _fabric("abcdef")
    (blame,) = attribute_cells({cell: 2.0 if cell[1] == "b" else 0.0 for cell in links}, links, above=1.0)
    assert blame.component == Component("nic", "b", "rx")
    assert blame.alternatives == (Component("link", "port-b"),)


def test_link_that_others_cross_well_is_not_blamed_for_a_point():
    """Of the links of one slow path only those remain that nothing else has proved."""
    links = {("a", "b"): ("x", "y"), ("a", "c"): ("x", "z"), ("c", "b"): ("w", "v")}
    (blame,) = attribute_cells({("a", "b"): 2.0, ("a", "c"): 0.0, ("c", "b"): 0.0}, links, above=1.0)
    assert blame.suspects == (Component("link", "y"),)


def test_a_bad_way_that_is_not_known_may_cross_a_link_that_is_to_blame():
    """Beside a bad link two bad ways to a NIC accuse it only where they cannot cross that link."""
    links = {("a", "b"): ["x", "b"], ("c", "d"): ["x", "d"], ("a", "d"): ["y", "d"], ("c", "b"): ["y", "b"]}
    excess = {("a", "b"): 2.0, ("c", "d"): 2.0, ("a", "d"): 0.0, ("c", "b"): 0.0, ("a", "e"): 2.0, ("c", "e"): 2.0}
    for possible, named in ((["x", "y", "e"], {"x"}), (["y", "e"], {"x", "e"})):
        ways = links | dict.fromkeys([("a", "e"), ("c", "e")], possible)
        found = {one.name for blame in attribute_cells(excess, ways, above=1.0) for one in blame.suspects}
        assert found == named


def test_a_nic_whose_bad_ways_are_not_known_may_be_a_link_that_they_may_cross():
    """No good way crosses that link, so nothing tells it from the NIC; a link that one crosses is well."""
    good = {("a", "d"): ["y", "d"], ("d", "b"): ["y", "b"], ("e", "a"): ["z"]}
    links = good | {("a", "e"): ["x", "y"], ("c", "e"): ["x", "y"]}
    bad = {("a", "e"): 2.0, ("c", "e"): 2.0}
    (blame,) = attribute_cells(bad | dict.fromkeys(good, 0.0), links, above=1.0)
    assert blame.suspects == (Component("nic", "e", "rx"), Component("link", "x"))


def test_one_bad_way_of_two_is_a_links_and_no_nics():
    """The other way between the same NICs is good: only what it does not share with the bad one can be to blame."""
    excess = {("a", "b", "1"): 2.0, ("a", "b", "2"): 0.0}
    (blame,) = attribute_cells(excess, {("a", "b", "1"): ("x", "y"), ("a", "b", "2"): ("x", "z")})
    assert blame.suspects == (Component("link", "y"),)


def test_the_only_ways_to_a_nic_accuse_it():
    """Where nothing else is measured of the receiver, and the sender sends well to others, the receiver is to blame."""
    good = {("a", "c", "1"): 0.0, ("a", "d", "1"): 0.0, ("c", "d", "1"): 0.0}
    (blame,) = attribute_cells({("a", "b", "1"): 2.0, ("a", "b", "2"): 2.0} | good, above=1.0)
    assert blame.suspects == (Component("nic", "b"),)


def test_bad_ways_of_one_pair_are_one_path():
    """All ways between two NICs are bad, and nothing else of either."""
    cells = {(*cell, "1"): value for cell, value in _all_to_all(["a", "b", "c", "d"], lambda *_: False).items()}
    (blame,) = attribute_cells(cells | {("a", "b", "1"): 2.0, ("a", "b", "2"): 2.1})
    assert (blame.component, len(blame.cells)) == (Component("path", "a>b"), 2)


def test_cases_of_several_sources_are_weighed_together():
    """What counts packets and what times transfers add up, each with its own shares."""
    link, nic = Component("link", "x"), Component("nic", "a", "tx")
    counted = Observation("counted", frozenset({link, nic}), 20, 100, Rates(1e-4))
    timed = Observation("timed", frozenset({nic}), 0, 10, Rates(0.05, 0.95))
    posterior = likeliest([counted, timed])
    assert posterior.suspects == (link,)
    assert [row.component for row in posterior.dropped] == [nic]


def test_a_second_fault_does_not_hide_the_first():
    """Bad cases that the likeliest component does not explain clear nothing that explains the same as it does."""
    flows = {"p": "xy", "q": "xy", "r": "y", "s": "z"}
    bad = {"p": 1.0, "q": 1.0, "r": 1.0, "s": 0.0}
    seen = [
        Observation(flow, frozenset(Component("link", hop) for hop in hops), bad[flow]) for flow, hops in flows.items()
    ]
    assert [one.name for one in likeliest(seen).suspects] == ["y"]


def test_chance_accuses_nobody():
    """As many bad cases as are usual in health are no evidence."""
    every = [Observation(n, frozenset({Component("link", str(n % 3))}), 1, 20, Rates(0.05, 0.95)) for n in range(30)]
    assert likeliest(every) is None


_CROSSED = st.lists(st.sampled_from("uvwxyz"), max_size=3, unique=True)
_EXCESS = st.dictionaries(
    st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd"), st.sampled_from("12")),
    st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0]),
    max_size=16,
)


@given(_EXCESS, st.data())
def test_whatever_fares_badly_the_posterior_is_sound(excess, data):
    """Each blame has a suspect that explains its bad cells, no cell is blamed twice, and shares are shares."""
    links = {cell: data.draw(_CROSSED) for cell in excess}
    blames = attribute_cells(excess, links)
    cells = [cell for blame in blames for cell in blame.cells]
    assert len(cells) == len(set(cells))
    assert all(excess[cell] > 0 for cell in cells)
    assert all(blame.suspects and 0 < blame.posterior.share <= 1 + 1e-9 for blame in blames)
