"""The controller against a made-up fabric: which flows it plans, and by what it knows."""

import itertools
import random

import msgspec
import pytest
from rehashing_world import PORTS, RATE, World, flows, running, spines

from c4bench.c4p.controller import PathController
from c4bench.c4p.guidance import LiveFlows
from c4bench.c4p.policy import PathPolicy
from c4bench.model.fabric import Flow
from c4bench.model.qp_address import QpAddress
from c4bench.model.telemetry import ConnRecord
from tools.sim.windows import window_of


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
    assert controller.checks(0.5) == ()
    assert {check.pair for check in controller.checks(1.0)} == set(controller.pairs())
    assert not world.check(controller, 2.0)
    assert controller.changes == before


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


def test_jobs_that_have_ended_leave_no_trace_in_a_plan():
    """A job is placed as in a new fabric, whichever jobs of other pairs and demands have come and gone before."""
    world = World()
    pairs = [(f"h{a}/0", f"h{b + 8}/0") for a, b in itertools.product(range(8), repeat=2)]
    mine = [Flow(f"j/j:data/{n}/0.0", "j", *pair, RATE / 8) for n, pair in enumerate(pairs)]

    def placed(controller):
        controller.join(mine)
        return [controller.path(flow.id).hops for flow in mine]

    def learnt():
        controller = running(world, [])
        controller.learn(world.traces(pairs), 0.0)
        return controller

    alone = placed(learnt())
    for seed in range(5):
        controller, draw = learnt(), random.Random(seed)
        ended = [Flow(f"e/e:data/{n}/0.0", "e", *draw.choice(pairs), RATE * draw.random()) for n in range(20)]
        controller.join(ended)
        controller.leave([flow.id for flow in draw.sample(ended, len(ended))])
        controller.forget("e")
        assert placed(controller) == alone


def told(end_s, *conns):
    """A host's window with these connections."""
    return window_of("h0", 1, end_s - 0.1, end_s, conns=conns)


def record(flow, qp, size_bytes, transfer_s, **rest):
    spent_s = (0.0, 0.0, transfer_s, 0.0)
    ends = (flow.source, flow.destination, qp, 0)
    return ConnRecord("j:data", 0, 8, *ends, 0, size_bytes, *spent_s, 1e9, 0, 0, **rest)


def test_weights_follow_completion_times():
    """A QP that comes to take three times as long for a byte as the other carries a third as much after one period."""
    world, live = World(), flows(count=1, qps=2)
    controller = running(world, live)
    for flow in live:
        controller.live_flows[flow.id].weight = 0.5
    slow_s = 0.0
    for window in range(10):
        carried = window * 10**6
        slow_s += 0.01 if window < 6 else 0.03
        controller.ingest(
            told(0.1 * window, record(live[0], 1, carried, 0.01 * window), record(live[1], 2, carried, slow_s))
        )
        if window < 6:
            assert [controller.weight(flow.id) for flow in live] == [0.5, 0.5]
    assert [controller.weight(flow.id) for flow in live] == [pytest.approx(0.75), pytest.approx(0.25)]


def test_telemetry_is_taken_in_without_a_walk_over_all_flows(monkeypatch):
    """A window costs as much as its own connections, however many flows are live; weights follow all the same."""
    live = flows(count=1, qps=2)
    controller = running(World(), live)
    for flow in live:
        controller.live_flows[flow.id].weight = 0.5
    monkeypatch.setattr(LiveFlows, "__iter__", None)
    for window, slow_s in enumerate(0.01 * count + 0.02 * max(0, count - 5) for count in range(10)):
        carried = window * 10**6
        controller.ingest(
            told(0.1 * window, record(live[0], 1, carried, 0.01 * window), record(live[1], 2, carried, slow_s))
        )
    assert [controller.weight(flow.id) for flow in live] == [pytest.approx(0.75), pytest.approx(0.25)]


def test_a_flow_that_ends_is_no_longer_of_its_connection():
    """What the flows of a connection are follows those that join and leave, in order of their QPs."""
    first, second = flows(count=1, qps=2)
    controller = PathController()
    controller.join([second])
    controller.join([first])
    connection = ("j:data", 0, 8, first.source, first.destination)
    mine = controller.live_flows.of_connection(connection)
    assert [found.flow for found in mine] == [first, second]
    controller.leave([first.id])
    assert [found.flow for found in controller.live_flows.of_connection(connection)] == [second]
    controller.leave([second.id])
    assert not controller.live_flows.of_connection(connection)


@pytest.mark.parametrize("attached", [False, True])
def test_a_flow_at_a_stand_is_looked_at_at_once(attached):
    """Telemetry of a QP with messages outstanding and no progress makes the next retrace urgent.

    Also where its flow is not named as hosts name connections, as of an attached program; once that has ended it is
    nobody's.
    """
    world, live = World(), flows(count=1)
    if attached:
        live = [msgspec.structs.replace(flow, id=f"j/verbs/0/{flow.source}>{flow.destination}/17.0") for flow in live]
    controller = running(world, live)
    for window in range(3):
        standing = record(live[0], 1, 10**6, 0.01)
        standing = msgspec.structs.replace(standing, outstanding=4, last_progress_s=0.0)
        controller.ingest(told(0.1 * window + 0.1, standing))
    assert controller.checks(0.4)
    controller.leave([flow.id for flow in live])
    assert not controller.live_flows.followed("h0", [("j:data", 0, 8, live[0].source, live[0].destination)])


@pytest.mark.parametrize("which", range(4))
def test_the_path_of_a_slow_qp_is_looked_at_first(which):
    """Of four paths in use, where the last switch has one answer to give besides what a trace would need."""
    world, live = World(), flows(count=1, qps=4)
    pair = live[0].source, live[0].destination
    live = [msgspec.structs.replace(flow, id=f"j/verbs/0/{'>'.join(pair)}/{qp}.0") for qp, flow in enumerate(live)]
    controller = running(world, live)
    assert len(set(spines(controller, live))) == len(live)
    last = controller.path(live[0].id).hops[-2]
    while controller._checks._budget.surely_left(pair[0], last, 0.3) >= 3:
        controller.note_answers(pair[0], [last], 0.3)
    for window in range(3):
        conns = [
            msgspec.structs.replace(
                record(flow, qp, 10**6 * (1 if qp == which else window), 0.01),
                source_port=controller.port(flow.id),
                outstanding=4,
                last_progress_s=0.0 if qp == which else 0.1 * window + 0.1,
            )
            for qp, flow in enumerate(live)
        ]
        controller.ingest(told(0.1 * window + 0.1, *conns))
    asked = [check.source_port for check in controller.checks(0.3) if check.pair == pair]
    assert asked == [controller.port(live[which].id)]


@pytest.mark.parametrize("attached", [False, True])
def test_own_traffic_is_none_of_others(attached):
    """What switches count of live flows, also of attached programs, is not planned around; a neighbour's is."""
    world, live = World(), flows(count=1, qps=2)
    if attached:
        pair = f"{live[0].source}>{live[0].destination}"
        live = [msgspec.structs.replace(flow, id=f"j/verbs/0/{pair}/{qp}.0") for qp, flow in enumerate(live, 1)]
    controller = running(world, live)
    for carried in (0, 10**8):
        controller.ingest(told(carried / 1e8, *(record(flow, qp, carried, 0.5) for qp, flow in enumerate(live, 1))))
    hops = [hop for flow in live for hop in controller.path(flow.id).hops]
    counted = {hop: 10**8 * hops.count(hop) for hop in hops}
    seen = []
    controller.observe = seen.append
    controller.ingest_counters({**counted, "neighbour": 10**8}, 1.0)
    assert [set(one) for one in seen] == [{"neighbour"}]


def test_flow_id_gives_the_qp_address():
    """A QP's flow id parses back to its address, whatever slashes the communicator's name has; other ids do not."""
    address = QpAddress("j:data/0>1", 3, 4, 1, 2)
    assert address.flow_id("j") == "j/j:data/0>1/3>4/1.2"
    assert QpAddress.parse(Flow(address.flow_id("j"), "j", "a", "b", 1.0)) == address
    assert QpAddress.parse(Flow("anything", "j", "a", "b", 1.0)) is None


def test_all_qps_carry():
    """Before and after this loss every QP carries something, on the paths that the shares were made for."""
    world, live = World(), flows(qps=4)
    controller = running(world, live)
    assert all(controller.weight(flow.id) == pytest.approx(0.25) for flow in live)
    assert len(set(spines(controller, live[:4]))) == 1
    world.spines.remove(3)
    world.learn(controller, 1.0)
    assert min(controller.weight(flow.id) for flow in live) > 0.03
    assert sum(controller.weight(flow.id) for flow in live) == pytest.approx(8)


def test_a_stale_atlas_is_learnt_anew_before_it_is_used():
    """What was saved is planned with while it is fresh; older than the policy allows, its pairs have to be learnt."""
    world, live = World(), flows(count=2)
    saved = running(world, live, now_s=1000.0).knowledge
    controller = PathController(PathPolicy(max_age_s=600.0))
    controller.recall(saved, 1000.0)
    pairs = [(flow.source, flow.destination) for flow in live]
    assert controller.pairs_to_learn(pairs, 1500.0) == ()
    assert set(controller.pairs_to_learn(pairs, 1700.0)) == set(saved.pairs)
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


def test_a_link_carries_what_its_flows_offer():
    """A link's load is the demand of the flows over it, as a connection's weights divide it."""
    live = flows(count=2)
    controller = running(World(), live)
    loads = controller.live_flows.link_loads({})
    for flow in live:
        for hop in controller.path(flow.id).hops:
            mine = [other for other in live if hop in controller.path(other.id).hops]
            assert loads[hop].flows == len(mine)
            assert loads[hop].offered_bps == pytest.approx(sum(other.demand_bps for other in mine))
            assert loads[hop].rate_bps is None
    hop = controller.path(live[0].id).hops[0]
    assert controller.live_flows.link_loads({hop: RATE})[hop].rate_bps == RATE


def test_a_nic_sends_no_faster_than_its_rate():
    """Seven flows of one NIC bring a link its rate, not seven times as much; each by its demand, others unchanged."""
    world = World()
    pairs = [(f"h{source}/0", f"h{8 + n}/0") for source, count in ((0, 7), (1, 1)) for n in range(count)]
    live = [Flow(f"j/j:data/{n}>0/0.0", "j", *pair, RATE) for n, pair in enumerate(pairs)]
    controller = running(world, live)
    first = [controller.path(flow.id).hops[0] for flow in live]
    unbound = controller.live_flows.link_loads({})
    bound = controller.live_flows.link_loads({}, {"h0/0": RATE, "h1/0": RATE})
    assert unbound[first[0]].offered_bps == pytest.approx(7 * RATE)
    assert bound[first[0]].offered_bps == pytest.approx(RATE)
    assert bound[first[7]].offered_bps == pytest.approx(RATE)
    assert {hop: load.flows for hop, load in bound.items()} == {hop: load.flows for hop, load in unbound.items()}
    last = controller.path(live[1].id).hops[-1]
    assert bound[last].offered_bps == pytest.approx(RATE / 7)
