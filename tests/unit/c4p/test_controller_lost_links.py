"""Links that no longer answer: the controller plans without them, and uses them again when they have been back."""

import pytest
from rehashing_world import PORTS, World, flows, running, spines

from c4bench.c4p.knowledge.atlas import Question
from c4bench.c4p.knowledge.link_state import LinkHealth
from c4bench.c4p.policy import HoldDown


def test_a_rehashed_fabric_is_learnt_anew_and_levelled():
    """When a leaf routes around a lost link, a retrace finds other paths, and the new plan is level on the rest."""
    world, live = World(), flows(qps=4)
    controller = running(world, live)
    world.spines.remove(3)
    assert world.check(controller, 1.0)
    world.learn(controller, 1.0)
    assert "up:0>3" in controller.health.missing
    load = dict.fromkeys(range(8), 0.0)
    for flow in live:
        load[int(controller.path(flow.id).hops[1][-1])] += controller.weight(flow.id)
    assert load.pop(3) == 0
    assert max(load.values()) == pytest.approx(8 / 7, rel=0.01)


def test_a_black_hole_is_left_and_used_again_when_it_has_been_back_for_a_while():
    """A link that drops everything is closed; it is used again once its hold-down is over."""
    world, live = World(), flows()
    controller = running(world, live)
    world.silent = {"up:0>3"}
    assert world.check(controller, 1.0)
    world.learn(controller, 1.0)
    assert controller.health.closed == {"up:0>3"}
    assert "up:0>3" not in spines(controller, live)
    # Known to be lost, its silence is no news; but one NIC after the other looks for it.
    assert not world.check(controller, 1.2)
    world.silent = set()
    assert world.check(controller, 1.4)
    world.learn(controller, 1.4)
    controller.tick(1.5)
    assert "up:0>3" not in spines(controller, live)
    controller.tick(1.7)
    assert "up:0>3" in spines(controller, live)


def test_a_port_that_was_led_around_a_missing_link_says_nothing_of_it():
    """Switches route around a black hole after a while: what then answers a question about it is no change."""
    world, live = World(), flows()
    controller = running(world, live)
    world.silent = {"up:0>3"}
    assert world.check(controller, 1.0)
    controller.begin_learning(controller.pairs(), 1.0, changed=True)
    controller.learn({probe: hops for probe, hops in world.traces(controller.pairs()).items() if None not in hops}, 1.0)
    controller.end_learning(1.0)
    world.silent = set()
    lost = [(*pair, port) for pair in controller.pairs() for port in PORTS if world.trace(*pair, port)[1] == "up:0>3"]
    world.elsewhere = set(lost)
    assert not any(world.check(controller, 1.2 + 0.1 * step) for step in range(5))
    assert controller.health.missing == {"up:0>3"}


def test_checks_leave_an_answer_for_the_search_that_must_see_a_link_return():
    """While a link is missing paths are checked often, and a last switch can still answer each NIC once."""
    world, live = World(), flows()
    controller = running(world, live)
    world.silent = {"up:0>3"}
    world.check(controller, 1.0)
    world.learn(controller, 1.0)
    for step in range(40):
        world.check(controller, 1.2 + 0.1 * step)
        last = {(flow.source, controller.path(flow.id).hops[-2]) for flow in live}
        sample = controller._checks.can_answer
        assert all(sample(1.2 + 0.1 * step, nic, hop) for nic, hop in last)


def test_silence_is_confirmed_by_a_question_that_the_switch_can_answer():
    """A switch that has spent its answers on others is silent once; after a second of rest, silence is a lost link."""
    world, live = World(), flows()
    controller = running(world, live)
    world.silent = {"up:0>3"}
    for now_s in (1.0, 1.2, 1.9):
        world.check(controller, now_s)
        assert [(one.name, one.confirmed) for one in controller.missing] == [("up:0>3", False)]
    world.check(controller, 2.05)
    assert [(one.name, one.confirmed) for one in controller.missing] == [("up:0>3", True)]


def test_a_switch_that_answers_after_a_rest_has_lost_no_link():
    """Its link is not missing any more, and was never confirmed."""
    world, live = World(), flows()
    controller = running(world, live)
    world.silent = {"up:0>3"}
    world.check(controller, 1.0)
    world.silent = set()
    assert world.check(controller, 2.05)
    assert controller.missing == ()


def test_a_switch_that_was_silent_to_a_search_is_asked_when_it_can_answer_again():
    """A search used up all answers of the last switches, or lost them: their next silence closes no healthy link."""
    world, live = World(), flows()
    controller = running(world, live)
    pairs = controller.pairs()
    spent = {(pair, controller.path(flow.id).hops[-2]) for flow in live for pair in [(flow.source, flow.destination)]}
    for (source, _), hop in spent:
        controller.note_answers(source, [hop] * 2, 1.0, [Question(pair, 0, 2) for pair in pairs if pair[0] == source])
    down = {hop for pair in pairs for entry in controller.knowledge.entries(pair).values() for hop in entry.hops[2:3]}
    world.silent = set(down)
    for step in range(9):
        assert not world.check(controller, 1.05 + 0.1 * step)
    assert controller.missing == ()
    # Later they could answer, so that silence is a loss.
    assert any(world.check(controller, 5.0 + step) for step in range(5))


def test_silence_of_an_earlier_loss_confirms_no_later_one():
    """A link was lost and came back; when its switch is silent again, that silence counts as the first."""
    world, live = World(), flows()
    controller = running(world, live)
    world.silent = {"up:0>3"}
    for now_s in (1.0, 1.2, 2.3):
        world.check(controller, now_s)
    world.silent = set()
    world.learn(controller, 3.5)
    assert controller.missing == ()
    controller.tick(60.0)
    world.silent = {"up:0>3"}
    for now_s in (61.0, 61.2):
        world.check(controller, now_s)
    assert [(one.name, one.confirmed) for one in controller.missing] == [("up:0>3", False)]


def test_paths_from_before_the_loss_do_not_say_what_carries_the_traffic_now():
    """A switch misroutes while paths are being learnt: those found before it did so are not among those used now."""
    world, live = World(), flows()
    controller = running(world, live)
    world.check(controller, 1.0)
    pairs = controller.pairs()
    controller.begin_learning(pairs, 1.0, changed=True)
    early = {probe: hops for probe, hops in world.traces(pairs, PORTS[:2]).items() if hops[1] != "up:0>3"}
    controller.learn(early, 1.0)
    world.spines[:] = [5]
    controller.learn(world.traces(pairs, PORTS[2:]), 2.0)
    controller.end_learning(2.0)
    lost = {one.name: one for one in controller.missing}
    assert lost["up:0>3"].through == ("down:5>1", "up:0>5")


@pytest.mark.parametrize("rehashed", [True, False])
def test_of_a_missing_link_it_is_known_since_when_and_what_carries_instead(rehashed):
    """A missing link's record has the time of its last answer and the links used instead, until the link is back."""
    world, live = World(), flows()
    controller = running(world, live)
    world.check(controller, 1.0)
    if rehashed:
        world.spines.remove(3)
    else:
        world.silent = {"up:0>3"}
    for now_s in (2.0, 2.1):
        world.check(controller, now_s)
        world.learn(controller, now_s)
    lost = {one.name: one for one in controller.missing}["up:0>3"]
    assert (lost.heard_s, lost.missed_s, lost.silent) == (1.0, 2.0, not rehashed)
    carrying = {hop for spine in range(8) if spine != 3 for hop in (f"up:0>{spine}", f"down:{spine}>1")}
    assert carrying <= set(lost.instead) <= carrying | {"down:3>1"}
    assert (lost.through, lost.onward) == ((), ("down:3>1",))
    world.silent, world.spines = set(), list(range(8))
    world.learn(controller, 3.0)
    assert controller.missing == ()


def test_of_missing_links_it_is_known_that_one_carries_all_that_they_did():
    """A switch that sends everything out of one port leaves all others without traffic."""
    world, live = World(), flows()
    controller = running(world, live)
    world.check(controller, 1.0)
    world.spines[:] = [5]
    for now_s in (2.0, 2.1):
        world.check(controller, now_s)
        world.learn(controller, now_s)
    lost = {one.name: one for one in controller.missing}
    assert {f"up:0>{spine}" for spine in range(8) if spine != 5} <= lost.keys()
    assert lost["up:0>3"].through == ("down:5>1", "up:0>5")


def test_hysteresis_grows_with_each_loss():
    """A link that fails repeatedly waits twice as long after each loss; old losses are forgotten."""
    health = LinkHealth(HoldDown(first_s=1.0, forget_s=60.0))
    health.mark_lost(["x"], 0.0)
    health.mark_answered(["x"], 1.0)
    assert health.reopen_due(1.9) == set()
    assert health.reopen_due(2.0) == {"x"}
    health.mark_lost(["x"], 3.0)
    health.mark_answered(["x"], 4.0)
    assert health.reopen_due(5.9) == set()
    assert health.reopen_due(6.0) == {"x"}
    health.mark_lost(["x"], 100.0)
    health.mark_answered(["x"], 101.0)
    assert health.reopen_due(102.0) == {"x"}


def test_pairs_that_are_learnt_again_are_not_checked_by_what_was_known():
    """A check of a path that is being replaced would find it changed again, and restart the search each time."""
    world, live = World(), flows()
    controller = running(world, live)
    world.spines.remove(3)
    assert world.check(controller, 1.0)
    controller.begin_learning(controller.pairs(), 1.0, changed=True)
    assert controller.checks(60.0) == ()
    again = controller.pairs()[0]
    controller.learn(world.traces([again]), 60.0)
    assert {check.pair for check in controller.checks(120.0) if check.position} == {again}


def test_routine_checks_cross_every_link_of_live_pairs():
    """With one check a second each, eight NICs cross all eight links from their leaf, and all eight to the other."""
    world, live = World(), flows()
    controller = running(world, live)
    links = {f"up:0>{spine}" for spine in range(8)} | {f"down:{spine}>1" for spine in range(8)}
    crossed = set()
    for check in controller.checks(1.0):
        crossed.update(world.trace(*check.pair, check.source_port)[: check.position + 1])
    assert links <= crossed


def test_a_lost_link_that_no_flow_uses_is_missed():
    """One flow takes one spine; that the link to another one is lost shows within a check of each known path."""
    world, live = World(), flows(count=1)
    controller = running(world, live)
    (used,) = spines(controller, live)
    lost = next(hop for hop in (f"up:0>{spine}" for spine in range(8)) if hop != used)
    world.silent = {lost}
    assert any(world.check(controller, 1.0 + second) for second in range(8))
    assert controller.health.missing == {lost}
    assert spines(controller, live) == [used]
