"""What C4D blames is avoided by the controller, once nothing else may be to blame."""

import msgspec
from rehashing_world import World, flows, running, spines

from c4bench.model.diagnosis import Component, Diagnosis, ProbeFlow, Syndrome
from c4bench.steer import after_probes


def slow(kind, name, *alternatives):
    """A finding of C4D's."""
    what = Component(kind, name)
    return Diagnosis("j", Syndrome.COMMUNICATION_SLOW, what, 0.0, 0.5, 1.0, 0.9, (), "", alternatives=alternatives)


def test_what_an_end_may_be_to_blame_for_stays_where_it_is():
    """A slow path keeps its links as long as it may be the NIC that is slow; with that ruled out it does not."""
    world, live = World(), flows(count=4)
    controller = running(world, live)
    before = spines(controller, live)
    controller.avoid(slow("path", "h0/0>h8/0", Component("nic", "h0/0", "tx")), 1.0)
    assert (spines(controller, live), controller.health.closed) == (before, frozenset())
    controller.avoid(slow("path", "h0/0>h8/0", Component("link", before[0])), 1.0)
    assert before[0] not in spines(controller, live)


def test_a_path_that_probes_have_left_alone_is_avoided():
    """Once probes have cleared the NICs at its ends a path is no longer used."""
    world, live = World(), flows()
    controller = running(world, live)
    alternative = Component("nic", "h0/0", "tx")
    probes = (
        ProbeFlow("h0/0", "h9/0", 0, 1e8, 0.5, (alternative,)),
        ProbeFlow("h1/0", "h8/0", 0, 1e8, 0.5, ()),
    )
    doubted = msgspec.structs.replace(slow("path", "h0/0>h8/0", alternative), probes=probes)
    before = controller.path(live[0].id).hops[1]
    controller.avoid(doubted, 1.0)
    assert controller.path(live[0].id).hops[1] == before
    controller.avoid(after_probes(doubted, [1.0, 1.0]), 2.0)
    assert controller.path(live[0].id).hops[1] != before


def test_a_missing_link_that_c4d_names_is_used_as_soon_as_it_is_back():
    """What C4P has found missing itself is not closed for any longer by being blamed."""
    world, live = World(), flows()
    controller = running(world, live)
    lost = controller.path(live[0].id).hops[1]
    controller.health.mark_lost([lost], 1.0)
    controller.avoid(slow("link", lost), 1.5)
    controller.health.mark_answered([lost], 2.0)
    controller.tick(2.5)
    assert lost not in controller.health.closed


def test_what_c4d_blames_is_avoided_for_a_time():
    """A blamed path's links carry nothing for a time, whatever probes find."""
    world, live = World(), flows(count=4)
    controller = running(world, live)
    blamed = controller.path(live[0].id).hops[1]
    controller.avoid(slow("path", "h0/0>h8/0"), 1.0)
    assert blamed not in spines(controller, live)
    controller.learn(world.traces(controller.pairs()), 2.0)
    assert blamed in controller.health.closed
    controller.tick(62.0)
    assert blamed not in controller.health.closed


def test_the_only_link_of_a_nic_stays_in_use():
    """A blamed link that no path goes around is not closed: its flows would only lose their plan."""
    world, live = World(), flows(count=4)
    controller = running(world, live)
    before = spines(controller, live)
    controller.avoid(slow("link", controller.path(live[0].id).hops[-1]), 1.0)
    assert (spines(controller, live), controller.health.closed) == (before, frozenset())
