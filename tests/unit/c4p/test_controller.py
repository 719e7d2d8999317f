"""The controller against a made-up fabric that hashes, fails and re-hashes."""

import msgspec
import pytest

from c4bench.bench.fabrics import clos
from c4bench.c4p.controller import PathController
from c4bench.c4p.knowledge.link_state import LinkHealth
from c4bench.c4p.policy import HoldDown, PathPolicy
from c4bench.model.diagnosis import Component, Diagnosis, ProbeFlow, Syndrome
from c4bench.model.fabric import Flow
from c4bench.model.qp_address import QpAddress
from c4bench.model.telemetry import ConnRecord
from c4bench.steer.suspects import after_probes

RATE = 10e9
PORTS = range(49153, 49153 + 24)


class World:
    """Eight hosts under each of two leaves; a port's spine changes for all when the set of usable spines does."""

    def __init__(self, spines=8):
        self.fabric = clos(16, 8, spines)
        self.spines = list(range(spines))
        self.silent = set()

    def trace(self, source, destination, port):
        """What probing finds: hops up to a silent one."""
        spine = self.spines[hash_of(source, destination, port) % len(self.spines)]
        hops = self.fabric.hops(source, destination, spine)
        for place, hop in enumerate(hops):
            if hop in self.silent:
                return (*hops[:place], None, hops[-1])
        return hops

    def traces(self, pairs, ports=PORTS):
        return {(*pair, port): self.trace(*pair, port) for pair in pairs for port in ports}

    def looked(self, wanted):
        return {(*pair, port): self.trace(*pair, port) for pair, ports in wanted.items() for port in ports}


def hash_of(source, destination, port):
    """Any fixed mixture: neighbours take different spines."""
    return (int(source[1:-2]) * 7 + int(destination[1:-2]) * 13 + port * 2654435761) >> 3


def flows(count=8, qps=1, job="j"):
    return [
        Flow(f"{job}/{job}:data/{n}>{n + 8}/0.{qp}", job, f"h{n}/0", f"h{n + 8}/0", RATE / qps)
        for n in range(count)
        for qp in range(qps)
    ]


def running(world, live, now_s=0.0, **policy):
    controller = PathController(PathPolicy(**policy))
    controller.join(live)
    controller.learn(world.traces(controller.pairs()), now_s)
    return controller


def spines(controller, live):
    return [controller.path(flow.id).hops[1] for flow in live]


def test_flows_of_before_the_atlas_are_adopted():
    """Flows that began without C4P run on ECMP, and are planned once there is an atlas."""
    live, world = flows(), World()
    controller = PathController()
    controller.join(live)
    assert {controller.port(flow.id) for flow in live} == {0}
    controller.learn(world.traces(controller.pairs()), 0.0)
    assert len(set(spines(controller, live))) == 8


def test_nothing_is_asked_of_flows_that_nothing_happened_to():
    """Retraces that find the known paths change nothing, and are as rare as the policy says."""
    world, live = World(), flows()
    controller = running(world, live)
    before = controller.changes
    assert controller.ports_to_trace(0.5) == {}
    wanted = controller.ports_to_trace(1.0)
    assert set(wanted) == set(controller.pairs())
    assert not controller.check_traces(world.looked(wanted), 1.0)
    assert controller.changes == before


def test_a_rehashed_fabric_is_learnt_anew_and_levelled():
    """When a leaf routes around a lost link, a retrace finds other paths, and the new plan is level on the rest."""
    world, live = World(), flows(qps=4)
    controller = running(world, live)
    world.spines.remove(3)
    assert controller.check_traces(world.looked(controller.ports_to_trace(1.0)), 1.0)
    controller.learn(world.traces(controller.pairs()), 1.0)
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
    assert controller.check_traces(world.looked(controller.ports_to_trace(1.0)), 1.0)
    controller.learn(world.traces(controller.pairs()), 1.0)
    assert controller.health.closed == {"up:0>3"}
    assert "up:0>3" not in spines(controller, live)
    # Known to be lost, its silence is no news; but it is looked for often.
    assert not controller.check_traces(world.looked(controller.ports_to_trace(1.2)), 1.2)
    world.silent = set()
    assert controller.check_traces(world.looked(controller.ports_to_trace(1.4)), 1.4)
    controller.learn(world.traces(controller.pairs()), 1.4)
    controller.tick(1.5)
    assert "up:0>3" not in spines(controller, live)
    controller.tick(1.7)
    assert "up:0>3" in spines(controller, live)


@pytest.mark.parametrize("rehashed", [True, False])
def test_of_a_missing_link_it_is_known_since_when_and_what_carries_instead(rehashed):
    """A missing link's record has the time of its last answer and the links used instead, until the link is back."""
    world, live = World(), flows()
    controller = running(world, live)
    controller.check_traces(world.looked(controller.ports_to_trace(1.0)), 1.0)
    if rehashed:
        world.spines.remove(3)
    else:
        world.silent = {"up:0>3"}
    for now_s in (2.0, 2.1):
        controller.check_traces(world.looked(controller.ports_to_trace(now_s)), now_s)
        controller.learn(world.traces(controller.pairs()), now_s)
    lost = {one.name: one for one in controller.missing}["up:0>3"]
    assert (lost.heard_s, lost.missed_s, lost.silent) == (1.0, 2.0, not rehashed)
    carrying = {hop for spine in range(8) if spine != 3 for hop in (f"up:0>{spine}", f"down:{spine}>1")}
    assert carrying <= set(lost.instead) <= carrying | {"down:3>1"}
    assert (lost.through, lost.onward) == ((), ("down:3>1",))
    world.silent, world.spines = set(), list(range(8))
    controller.learn(world.traces(controller.pairs()), 3.0)
    assert controller.missing == ()


def test_of_missing_links_it_is_known_that_one_carries_all_that_they_did():
    """A switch that sends everything out of one port leaves all others without traffic."""
    world, live = World(), flows()
    controller = running(world, live)
    controller.check_traces(world.looked(controller.ports_to_trace(1.0)), 1.0)
    world.spines[:] = [5]
    for now_s in (2.0, 2.1):
        controller.check_traces(world.looked(controller.ports_to_trace(now_s)), now_s)
        controller.learn(world.traces(controller.pairs()), now_s)
    lost = {one.name: one for one in controller.missing}
    assert {f"up:0>{spine}" for spine in range(8) if spine != 5} <= lost.keys()
    assert lost["up:0>3"].through == ("down:5>1", "up:0>5")


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


def test_other_traffic_is_planned_around():
    """Flows avoid a link that other traffic fills."""
    world, live = World(), flows(count=4)
    controller = running(world, live)
    busy = controller.path(live[0].id).hops[1]
    controller.observe({busy: RATE})
    assert busy not in spines(controller, live)


def test_a_flow_that_cannot_be_moved_is_planned_around():
    """Where a device refuses, the flow stays, others keep off its link, and the remark names it."""
    world, live = World(), flows(count=2)
    controller = running(world, live)
    other = controller.path(live[1].id)
    taken = next(port for port in PORTS if world.trace("h0/0", "h8/0", port)[1] == other.hops[1])
    controller.pin(live[0].id, taken, "the device refuses")
    assert controller.port(live[0].id) == taken
    assert controller.path(live[1].id).hops[1] != other.hops[1]
    assert controller.remarks == [f"flow {live[0].id} stays where it is: the device refuses"]


def test_a_pair_without_paths_is_named():
    """A flow that nothing is known for is left to ECMP, and the remark says why."""
    controller = running(World(), flows(count=2))
    controller.join([Flow("x/x:data/0>1/0.0", "x", "h3/0", "nowhere/0", RATE)])
    assert controller.port("x/x:data/0>1/0.0") == 0
    assert "has no route from h3/0 to nowhere/0 and is left to ECMP" in controller.remarks[-1]


@pytest.mark.parametrize(("sharing", "alone"), [("equal", False), ("priority", True)])
def test_a_job_of_a_larger_share_gets_room(sharing, alone):
    """By priority, the flow of a job with share 4 has a link to itself; with equal shares it need not."""
    world = World(spines=3)
    controller = running(world, [], sharing=sharing)
    others = flows(count=4)
    mine = [Flow("vip/vip:data/0>1/0.0", "vip", "h5/0", "h13/0", RATE / 2)]
    controller.join(others)
    controller.join(mine, share=4.0)
    controller.learn(world.traces(controller.pairs()), 0.0)
    assert (spines(controller, mine)[0] not in spines(controller, others)) == alone


def record(flow, qp, size_bytes, transfer_s, **rest):
    spent_s = (0.0, 0.0, transfer_s, 0.0)
    ends = (flow.source, flow.destination, qp, 0)
    return ConnRecord("j:data", 0, 8, *ends, 0, size_bytes, *spent_s, 1e9, 0, 0, **rest)


def test_weights_follow_completion_times():
    """A QP that comes to take three times as long for a byte as the other carries a third as much after one period."""
    world, live = World(), flows(count=1, qps=2)
    controller = running(world, live)
    for flow in live:
        controller._live_flows[flow.id].weight = 0.5
    slow_s = 0.0
    for window in range(10):
        carried = window * 10**6
        slow_s += 0.01 if window < 6 else 0.03
        controller.ingest(
            [record(live[0], 1, carried, 0.01 * window), record(live[1], 2, carried, slow_s)], 0.1 * window
        )
        if window < 6:
            assert [controller.weight(flow.id) for flow in live] == [0.5, 0.5]
    assert [controller.weight(flow.id) for flow in live] == [pytest.approx(0.75), pytest.approx(0.25)]


def test_a_flow_at_a_stand_is_looked_at_at_once():
    """Telemetry of a QP with messages outstanding and no progress makes the next retrace urgent."""
    world, live = World(), flows(count=1)
    controller = running(world, live)
    for window in range(3):
        standing = record(live[0], 1, 10**6, 0.01)
        controller.ingest(
            [
                type(standing)(
                    **{
                        **{f: getattr(standing, f) for f in standing.__struct_fields__},
                        "outstanding": 4,
                        "last_progress_s": 0.0,
                    }
                )
            ],
            0.1 * window + 0.1,
        )
    assert controller.ports_to_trace(0.4)


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


def test_flow_id_gives_the_qp_address():
    """A QP's flow id parses back to its address, whatever slashes the communicator's name has; other ids do not."""
    address = QpAddress("j:data/0>1", 3, 4, 1, 2)
    assert address.flow_id("j") == "j/j:data/0>1/3>4/1.2"
    assert QpAddress.parse(Flow(address.flow_id("j"), "j", "a", "b", 1.0)) == address
    assert QpAddress.parse(Flow("anything", "j", "a", "b", 1.0)) is None


def test_all_qps_carry():
    """Before and after a loss every QP has something to carry, on the paths that the shares were made for."""
    world, live = World(), flows(qps=4)
    controller = running(world, live)
    assert all(controller.weight(flow.id) == pytest.approx(0.25) for flow in live)
    assert len(set(spines(controller, live[:4]))) == 1
    world.spines.remove(3)
    controller.learn(world.traces(controller.pairs()), 1.0)
    assert min(controller.weight(flow.id) for flow in live) > 0.03
    assert sum(controller.weight(flow.id) for flow in live) == pytest.approx(8)


def test_a_stale_atlas_is_learnt_anew_before_it_is_used():
    """What was saved is planned with while it is fresh; older than the policy allows, its pairs have to be learnt."""
    world, live = World(), flows(count=2)
    saved = running(world, live, now_s=1000.0).knowledge
    controller = PathController(PathPolicy(max_age_s=600.0))
    controller.recall(saved)
    assert controller.pairs_to_learn(live, 1500.0) == ()
    assert set(controller.pairs_to_learn(live, 1700.0)) == set(saved.pairs)
    controller.join(live)
    assert len(set(spines(controller, live))) == 2


def test_each_direction_is_planned_by_its_own_paths():
    """Where only one direction has known paths, as behind a one-way filter, it is planned, and the other is named."""
    world = World()
    there, back = flows(count=1)[0], Flow("j/j:data/8>0/0.0", "j", "h8/0", "h0/0", RATE)
    controller = PathController()
    controller.learn(world.traces([("h0/0", "h8/0")]) | {("h8/0", "h0/0", port): (None,) for port in PORTS}, 0.0)
    controller.join([there, back])
    assert controller.port(there.id) in PORTS
    assert controller.port(back.id) == 0
    assert "no route from h8/0 to h0/0 and is left to ECMP: its probes were not answered" in controller.remarks[-1]
