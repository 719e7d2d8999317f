"""When all paths between two leaves are known: what counts as a random sample, and what does not."""

import pytest

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.nic_links import NicLinks
from c4bench.c4p.knowledge.path_knowledge import Traced, sample_size
from c4bench.c4p.knowledge.path_search import (
    LeafPaths,
    OnwardLinks,
    PairSearch,
    best_positions,
    enough_traces,
    fitting,
    found_paths,
    is_new,
)
from c4bench.model.fabric import Nic

PAIR, OTHER = ("a", "b"), ("c", "d")


def search(*spines, source="a", incomplete=()):
    """One pair's search, of which port n takes the nth spine; `incomplete` ports have no answer but the first."""
    answers = {
        port: {0: f"leaf0<{source}", 1: f"{spine}<leaf0", 2: f"leaf1<{spine}"} for port, spine in enumerate(spines)
    }
    answers |= {port: {0: f"leaf0<{source}"} for port in incomplete}
    return PairSearch(3, [], answers=answers)


@pytest.mark.parametrize(("paths", "traces"), [(1, 8), (2, 16), (4, 28), (16, 123)])
def test_so_many_traces_show_all_paths(paths, traces):
    """The number of traces after which a further path would have been found, as computed by hand from the formula."""
    assert enough_traces(paths, traces)
    assert not enough_traces(paths, traces - 2)


@pytest.mark.parametrize(
    ("pairs", "size"),
    [
        ([(8, 8)], 8),
        ([(8, 3)], 3),
        ([(8, 3), (8, 8)], 6),
        ([(8, 8), (8, 3)], 7),
        ([(8, 0), (8, 8)], 0),
        ([(2, 2), (8, 5), (8, 6)], 12),
        ([], 0),
    ],
)
def test_a_sample_ends_at_the_first_port_of_any_pair_that_is_not_complete(pairs, size):
    """Ports count in the order in which they are asked: the first of each pair, then the second, counted by hand."""
    assert sample_size([Traced(*pair) for pair in pairs]) == size


def test_a_silent_switch_is_not_outvoted_by_many_pairs():
    """Each of sixteen pairs is traced until its first port over a silent switch; all these ports show nothing."""
    searches = {(f"a{n}", f"b{n}"): search(*["s0"] * 3, source=f"a{n}", incomplete=range(3, 8)) for n in range(16)}
    leaf = DisjointSets()
    leaf.join(f"a{n}" for n in range(16))
    leaf.join(f"b{n}" for n in range(16))
    searches["a2", "b2"] = search(source="a2", incomplete=range(8))
    assert not found_paths(searches, leaf)["a1", "b1"].all_found
    complete = {pair: search(*["s0"] * 3, source=pair[0]) for pair in searches}
    assert found_paths(complete, leaf)["a1", "b1"].all_found


def test_pairs_that_are_known_to_be_together_by_a_path_show_that_path_once():
    """Of pairs at unknown leaves only those over one spine are found together, so one trace of each says nothing."""
    searches = {(f"a{n}", f"b{n}"): search(("s0", "s1")[n % 2], source=f"a{n}") for n in range(32)}
    assert not found_paths(searches, DisjointSets())["a0", "b0"].all_found
    leaf = DisjointSets()
    leaf.join(f"a{n}" for n in range(32))
    leaf.join(f"b{n}" for n in range(32))
    found = found_paths(searches, leaf)["a0", "b0"]
    assert found.all_found
    assert found.inner == {("s0<leaf0", "leaf1<s0"), ("s1<leaf0", "leaf1<s1")}


def test_what_was_shown_stays_when_another_pair_is_searched():
    """A new pair that has no trace yet shows nothing about the paths that were all."""
    leaf = DisjointSets()
    leaf.join(["b", "d"])
    leaf.join(["a", "c"])
    searches = {PAIR: search(*["s0"] * 8)}
    found = found_paths(searches, leaf)[PAIR]
    assert found.all_found
    searches[OTHER] = search(source="c", incomplete=range(8))
    assert not found_paths(searches, leaf)[OTHER].all_found
    assert found_paths(searches, leaf, {found.inner})[OTHER] == found


def test_a_port_matched_to_a_known_path_is_no_evidence():
    """What was inferred from the known paths cannot show that there are no others."""
    mine = search(*["s0"] * 8)
    mine.match(5, ("leaf0<a", "s0<leaf0", "leaf1<s0"))
    assert mine.traced == Traced(8, 5)


def test_whole_paths_need_all_paths_and_the_first_switch():
    """A pair's paths are used to match others when none is missing, their length is right and the NIC's leaf known."""
    links = NicLinks(Nic(name, 0, "", "", name, 1e10) for name in "abcd")
    between = LeafPaths(links)
    pair = ("a/0", "b/0")
    between.update({pair: search(*["s0"] * 8, source="a/0")})
    assert between.whole_paths(pair, 3) == []
    between.note_answers("a/0", {0: "leaf0<a/0"})
    assert between.whole_paths(pair, 3) == [("leaf0<a/0", "s0<leaf0", "leaf1<s0")]
    assert between.whole_paths(pair, 5) == []
    few = LeafPaths(links)
    few.note_answers("a/0", {0: "leaf0<a/0"})
    few.update({pair: search(*["s0"] * 7, source="a/0")})
    assert few.whole_paths(pair, 3) == []


def test_the_leaf_of_a_bond_is_known_by_the_link_behind_it():
    """A bond sends to two leaves; the second switch's address tells which, once the NIC was seen to use both."""
    between = LeafPaths(NicLinks([Nic("a", 0, "", "", "a", 1e10, bond=("p0", "p1"))]))
    pair = ("a/0", "b/0")
    mine = search(*["s0", "s1"] * 8)
    for port in range(1, 16, 2):
        mine.answers[port] = {0: "leaf2<a", 1: "s0<leaf2", 2: "leaf1<s0"}
    between.update({pair: mine})
    between.note_answers("a/0", mine.answers[0])
    assert between.whole_paths(pair, 3) == []
    between.note_answers("a/0", mine.answers[1])
    assert between.whole_paths(pair, 3) == [
        ("leaf0<a", "s0<leaf0", "leaf1<s0"),
        ("leaf2<a", "s0<leaf2", "leaf1<s0"),
    ]


def test_only_a_link_that_all_of_enough_traces_took_is_inferred():
    """Eight traces are enough for one address of a switch; two addresses are one switch by that link, so nine."""
    asked = {("a", "b", port): ("leaf0<a", "s0<leaf0", "leaf1<s0") for port in range(8)}
    links = OnwardLinks(asked, {}, DisjointSets(), ())
    assert links.after("s0<leaf0", "b") == "leaf1<s0"
    assert links.after("s0<leaf0", "d") == ""
    assert OnwardLinks(asked, {}, DisjointSets(), {"leaf1<s0"}).after("s0<leaf0", "b") == ""
    asked["a", "b", 7] = "leaf0<a", "s0<leaf2", "leaf1<s0"
    assert OnwardLinks(asked, {}, DisjointSets(), ()).after("s0<leaf0", "b") == ""
    asked["a", "b", 8] = "leaf0<a", "s0<leaf2", "leaf1<s0"
    assert OnwardLinks(asked, {}, DisjointSets(), ()).after("s0<leaf2", "b") == "leaf1<s0"
    asked["a", "b", 9] = "leaf0<a", "s0<leaf2", "leaf1.1<s0"
    assert OnwardLinks(asked, {}, DisjointSets(), ()).after("s0<leaf2", "b") == ""


def test_the_switch_that_leaves_the_fewest_paths_is_asked_first():
    """In three tiers a core tells all paths apart, a spine two halves; the first switch tells nothing."""
    paths = [("leaf", f"s{core // 2}", f"c{core}", f"t{core // 2}") for core in range(4)]
    assert best_positions(paths, {0: "leaf"}) == [2, 1, 3]
    assert best_positions(fitting(paths, {1: "s1"}), {1: "s1"}) == [2]
    assert fitting(paths, {3: "t0", 2: "c1"}) == [paths[1]]
    assert fitting(paths, {2: "c9"}) == []
    assert is_new(paths, paths[:3])
    assert not is_new(paths[:3], paths)
