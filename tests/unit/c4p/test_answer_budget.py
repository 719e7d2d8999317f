"""The answers to probes that a switch has left."""

import pytest

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.path_checks import AnswerBudget, AnswerLimits


def sets(*together):
    """Disjoint sets, one of which has these items."""
    joined = DisjointSets()
    joined.join(together)
    return joined


def test_a_switch_answers_six_at_once_then_one_a_second():
    """Two hops of one switch share its bucket; another switch, and another NIC, have their own."""
    budget = AnswerBudget()
    budget.regroup(sets("a1", "a2"), 0.0)
    for hop in ("a1", "a2", "a1", "a2", "a1", "a2", "a1"):
        budget.spend("h0/0", hop, 10.0)
    assert budget.left("h0/0", "a2", 10.0) == 0
    assert budget.left("h0/0", "b1", 10.0) == budget.left("h1/0", "a1", 10.0) == 6
    assert budget.left("h0/0", "a1", 12.5) == pytest.approx(2.5)
    assert budget.left("h0/0", "a1", 100.0) == 6


def test_a_switch_that_answers_less_is_asked_less():
    """Two at once, then one in four seconds."""
    budget = AnswerBudget()
    budget.limits = AnswerLimits(2, 0.25)
    for _ in range(3):
        budget.spend("h0/0", "a", 10.0)
    assert [budget.left("h0/0", "a", at_s) for at_s in (10.0, 14.0, 100.0)] == [0, 1, 2]


def test_a_clock_that_is_set_back_refills_nothing():
    """The bucket stays as it was, and fills from then on."""
    budget = AnswerBudget()
    budget.spend("h0/0", "a", 10.0)
    assert budget.left("h0/0", "a", 5.0) == 5
    assert budget.left("h0/0", "a", 6.0) == 6


def test_answers_count_that_were_given_before_the_switch_was_known():
    """Three answers by each of two hops empty the bucket of the switch to which both belong."""
    budget = AnswerBudget()
    for _ in range(3):
        budget.spend("h0/0", "a1", 10.0)
        budget.spend("h0/0", "a2", 10.0)
    assert budget.left("h0/0", "a1", 10.0) == budget.left("h0/0", "a2", 10.0) == 3
    budget.regroup(sets("a2", "a1"), 10.0)
    assert budget.left("h0/0", "a1", 10.0) == budget.left("h0/0", "a2", 10.0) == 0
    budget.regroup(sets("a1", "a2", "a3"), 11.0)
    assert budget.left("h0/0", "a3", 11.0) == 1


def test_silence_in_doubt_leaves_nothing_that_is_sure():
    """After a silence that may have been a switch's, what it has left for sure begins at nothing and refills."""
    budget = AnswerBudget()
    budget.spend("h0/0", "a", 10.0)
    budget.doubt("h0/0", "a", 10.0)
    assert (budget.left("h0/0", "a", 10.0), budget.surely_left("h0/0", "a", 10.0)) == (5, 0)
    assert budget.surely_left("h0/0", "a", 12.5) == pytest.approx(2.5)
    budget.spend("h0/0", "a", 12.5)
    assert (budget.left("h0/0", "a", 12.5), budget.surely_left("h0/0", "a", 12.5)) == (5, pytest.approx(1.5))
    assert budget.surely_left("h1/0", "a", 10.0) == 6
