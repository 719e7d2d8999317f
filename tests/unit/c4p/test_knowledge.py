"""What is stored of probes, and how new traces are compared with it."""

import pytest

from c4bench.c4p.knowledge.path_knowledge import PathKnowledge, PathSample, Traced
from c4bench.errors import UsageError

PAIR = ("h0/0", "h1/0")
UP, OVER = ("leaf", "s0", "h1"), ("leaf", "s1", "h1")


def learnt(*ways, now_s=0.0):
    known = PathKnowledge()
    known.learn({(*PAIR, port): hops for port, hops in enumerate(ways, start=1)}, now_s)
    return known


def test_the_first_trace_is_news_and_the_same_again_is_not():
    """A confirmed entry is younger and surer; nothing has changed."""
    known = learnt(UP)
    assert known.age_s(PAIR, 5.0) == 5.0
    found = known.learn({(*PAIR, 1): UP}, 4.0)
    assert not found.changed
    assert known.age_s(PAIR, 5.0) == 1.0
    assert known.entries(PAIR)[1].confidence == 1.0


def test_a_link_that_no_port_leads_over_any_more_is_gone():
    """A link is gone once enough paths were learnt again without it, or once all were; what was known is replaced."""
    known = learnt(UP, OVER, UP, OVER)
    known.begin([PAIR], again=[PAIR])
    found = known.learn({(*PAIR, 1): OVER, (*PAIR, 2): OVER}, 1.0)
    assert (found.changed, found.gone) == ({PAIR}, set())
    assert set(known.entries(PAIR)) == {1, 2}
    # Half of the paths led over s0, so seven in a row without it are a chance of 1 in 128.
    more = known.learn({(*PAIR, port): OVER for port in range(3, 8)}, 1.0)
    assert more.gone == {"s0"}
    assert more.crossed == {"s0": {PAIR}}
    few = learnt(UP, OVER)
    few.begin([PAIR], again=[PAIR])
    few.learn({(*PAIR, 1): OVER}, 1.0)
    assert few.end().gone == {"s0"}


@pytest.mark.parametrize(("left", "enough"), [(1, 7), (2, 12), (3, 17)])
def test_the_fewer_links_are_left_the_sooner_the_others_are_gone(left, enough):
    """A link that still had its share would carry a half of what takes one other, and a quarter of what takes three."""
    ways = [("leaf", f"s{spine}", "h1") for spine in range(4)]
    known = learnt(*ways * 4)
    known.begin([PAIR], again=[PAIR])
    for port in range(1, enough):
        assert not known.learn({(*PAIR, port): ways[port % left]}, 1.0).gone
    lost = {f"s{spine}" for spine in range(left, 4)}
    assert known.learn({(*PAIR, enough): ways[enough % left]}, 1.0).gone == lost


def test_of_paths_that_were_never_known_each_may_carry_as_much():
    """Where only one path was known, others that are found do not show at once that it is gone."""
    known = learnt(UP)
    known.begin([PAIR], again=[PAIR])
    ways = [("leaf", f"s{spine}", "h1") for spine in (1, 2, 3)]
    for port in range(1, 17):
        assert not known.learn({(*PAIR, port): ways[port % 3]}, 1.0).gone
    assert known.learn({(*PAIR, 17): ways[0]}, 1.0).gone == {"s0"}


def test_a_link_is_not_gone_before_one_of_its_ports_takes_another_path():
    """Other ports may all miss a link by chance: here one in a hundred samples does, and it still carries port 1."""
    known = learnt(UP, OVER)
    known.begin([PAIR], again=[PAIR])
    assert not known.learn({(*PAIR, port): OVER for port in range(2, 9)}, 1.0).gone
    assert not known.end().gone
    again = learnt(UP, OVER)
    again.begin([PAIR], again=[PAIR])
    again.learn({(*PAIR, 1): OVER}, 1.0)
    assert again.end().gone == {"s0"}


@pytest.mark.parametrize("can_answer", [True, False])
def test_paths_that_were_easy_to_find_do_not_show_that_a_link_is_gone(can_answer):
    """Where its switch has no answers left, just the random sample counts; where it has, silence means something."""
    known = learnt(UP, OVER, UP, OVER)
    known.begin([PAIR], again=[PAIR])
    easy = {(*PAIR, port): OVER for port in range(1, 17)}
    few, enough = (PathSample({PAIR: Traced(16, count)}, (), lambda *_: can_answer) for count in (6, 7))
    assert known.learn(easy, 1.0, sample=few).gone == ({"s0"} if can_answer else set())
    assert known.learn(easy, 1.1, sample=enough).gone == {"s0"}


def test_a_hop_that_was_seen_is_not_gone():
    """It answers, though no path over it is known to its end yet."""
    known = learnt(UP, OVER)
    known.begin([PAIR], again=[PAIR])
    found = {(*PAIR, port): OVER for port in range(1, 17)}
    assert known.learn(found, 1.0, sample=PathSample({PAIR: 16}, {"s0"}, lambda *_: True)).gone == set()


def test_a_pair_that_was_given_up_shows_nothing():
    """Its other paths may be as they were."""
    known = learnt(UP, OVER)
    known.begin([PAIR], again=[PAIR])
    known.learn({(*PAIR, 1): OVER}, 1.0)
    assert known.end(given_up=[PAIR]).gone == set()


def test_paths_over_a_lost_link_stay_while_the_others_are_replaced():
    """They show when the link is back."""
    known = learnt(UP, OVER)
    known.begin([PAIR], again=[PAIR], lost={"s0"})
    known.learn({(*PAIR, 3): OVER}, 1.0)
    assert {port: entry.hops for port, entry in known.entries(PAIR).items()} == {1: UP, 3: OVER}


def test_paths_known_before_count_until_all_are_learnt_again():
    """A connection that begins meanwhile has QPs for all of them: a few paths found first show no thin link."""
    known = learnt(UP, OVER)
    known.begin([PAIR], again=[PAIR])
    known.learn({(*PAIR, 1): OVER}, 1.0)
    assert (known.paths(PAIR), known.paths(("h0/0", "h9/0"))) == ({UP, OVER}, set())
    known.end()
    assert known.paths(PAIR) == {OVER}


def test_what_was_known_before_outlasts_an_interruption():
    """Another change while a pair is learnt again leaves it with all paths known before."""
    known = learnt(UP, OVER)
    for _ in range(2):
        known.begin([PAIR], again=[PAIR])
        assert known.outdated(PAIR)
        known.learn({(*PAIR, 1): OVER}, 1.0)
        assert (known.paths(PAIR), known.outdated(PAIR)) == ({UP, OVER}, False)
    known.end()
    assert known.paths(PAIR) == {OVER}


def test_a_pair_lacks_paths_until_as_many_are_known_as_before():
    """Paths over a lost link are not waited for, and at the end of learning nothing is."""
    known = learnt(UP, OVER, ("leaf", "s2", "h1"))
    assert not known.lacks_paths(PAIR)
    known.begin([PAIR], again=[PAIR], lost={"s2"})
    assert known.lacks_paths(PAIR)
    known.learn({(*PAIR, 1): OVER}, 1.0)
    assert known.lacks_paths(PAIR)
    known.learn({(*PAIR, 2): UP}, 1.0)
    assert not known.lacks_paths(PAIR)
    known.begin([PAIR], again=[PAIR])
    known.end()
    assert not known.lacks_paths(PAIR)


def test_hops_before_the_same_hop_belong_to_one_switch():
    """The switches of two paths that meet are told apart by what follows."""
    known = learnt(("a", "s0", "b0", "h1"), ("a", "s1", "b1", "h1"), ("a", "s2", "b1", "h1"))
    switches = known.switches()
    assert switches.root("b0") == switches.root("b1") != switches.root("s1")
    assert switches.root("s1") == switches.root("s2") != switches.root("s0")


def test_silence_leaves_the_entry_and_names_the_hop():
    """A hop that should have answered is silent, unless another trace has heard it; what was known stays."""
    known = learnt(UP, OVER)
    found = known.learn({(*PAIR, 1): ("leaf", None, "h1")}, 1.0)
    assert (found.silent, found.changed, found.gone) == ({"s0"}, set(), set())
    assert known.path(PAIR, 1).hops == UP
    both = known.learn({(*PAIR, 1): ("leaf", None, "h1"), (*PAIR, 2): ("leaf", "s0", "h1")}, 1.0)
    assert not both.silent


def test_an_unknown_pair_is_infinitely_old():
    """An unknown pair has to be learnt."""
    assert learnt(UP).age_s(("h1/0", "h0/0"), 0.0) == float("inf")


def test_saved_and_read_again():
    """The document holds everything; another is refused in a line."""
    known = learnt(UP, OVER)
    again = PathKnowledge.from_json(known.to_json())
    assert again.to_json() == known.to_json()
    assert again.atlas().to_json() == known.atlas().to_json()
    with pytest.raises(UsageError, match="learn them again"):
        PathKnowledge.from_json(b"{}")


def test_what_was_known_earlier_keeps_its_age():
    """Recalled pairs are as old as when they were saved; what has been learnt since stays."""
    known = PathKnowledge()
    known.learn({("h1/0", "h0/0", 1): UP}, 90.0)
    saved = learnt(UP)
    saved.learn({("h1/0", "h0/0", 1): OVER}, 1.0)
    known.recall(saved)
    assert known.age_s(PAIR, 100.0) == 100.0
    assert known.path(("h1/0", "h0/0"), 1).hops == UP


def test_pairs_between_nics():
    """Only paths between the given NICs are returned."""
    known = learnt(UP)
    known.learn({("h0/0", "h2/0", 1): UP}, 0.0)
    assert known.between(["h0/0", "h1/0"]).pairs == (PAIR,)
