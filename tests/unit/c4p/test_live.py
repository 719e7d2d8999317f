"""A plan changes as jobs join and leave, and as links fail and return."""

from itertools import pairwise, product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.placement.planner import Assignment, Planner
from c4bench.errors import UsageError
from c4bench.model.fabric import Flow, Path
from tools.bench.fabrics import clos, instance, planes

RATE = 10e9


def across(fabric, count, job="a", demand_bps=RATE):
    """Flow n goes from host n to the host as far into the other half."""
    half = len(fabric.leaf_of) // 2
    return [Flow(f"{job}{n}", job, f"h{n}/0", f"h{n + half}/0", demand_bps) for n in range(count)]


def live(fabric, flows, **conditions):
    atlas = fabric.atlas((flow.source, flow.destination) for flow in flows)
    return Planner(atlas, Conditions(dict.fromkeys(atlas.hops, RATE), **conditions))


def paths(planner):
    return {assignment.flow: assignment.path for assignment in planner.assignments()}


def finite(planner):
    return {hop: load for hop, load in planner.loads().items() if load != float("inf")}


def counted(planner, problem):
    """The loads added up afresh from the plan."""
    shares, demand = problem.conditions.shares, {flow.id: flow for flow in problem.flows}
    bps = dict(problem.conditions.background_bps)
    for flow, path in paths(planner).items():
        for hop in path.hops:
            bps[hop] = bps.get(hop, 0.0) + demand[flow].demand_bps * shares.get(demand[flow].job, 1.0)
    return {hop: bps.get(hop, 0.0) / problem.conditions.capacities[hop] for hop in problem.atlas.hops}


def test_a_new_job_leaves_live_flows_where_they_are():
    """A job that fits beside the others moves none of them."""
    fabric = clos(16, 8, 8)
    flows = across(fabric, 8)
    planner = live(fabric, flows)
    planner.add(flows[:4])
    change = planner.add(flows[4:])
    assert not change.moved
    assert len(change.placed) == 4
    assert max(planner.loads().values()) == 1.0


def test_a_new_job_moves_a_flow_that_is_in_its_only_way():
    """If the new flow has only one path, the live flow on it moves, and the change names it."""
    fabric = clos(4, 2, 2)
    flows = [Flow("live", "a", "h0/0", "h2/0", RATE), Flow("new", "b", "h1/0", "h3/0", RATE)]
    planner = live(fabric, flows)
    taken = planner.add(flows[:1]).placed[0].path.hops[1]
    planner.close([hop for hop in planner.loads() if hop.startswith("up:0") and hop != taken])
    planner.add(flows[1:])
    assert max(finite(planner).values()) == 2.0
    moved = planner.reopen(planner.loads()).moved
    assert [assignment.flow for assignment in moved] in (["live"], ["new"])
    assert max(planner.loads().values()) == 1.0


def test_without_gain_no_live_flow_moves():
    """Without a gain no live flow moves, however contended its links are."""
    fabric = clos(16, 8, 8)
    flows = across(fabric, 8)
    planner = live(fabric, flows)
    first = planner.add(flows[:6])
    planner.remove(assignment.flow for assignment in first.placed[::2])
    kept = paths(planner)
    assert not planner.add(flows[6:], gain=None).moved
    assert {flow: path for flow, path in paths(planner).items() if flow in kept} == kept


def test_a_failed_link_moves_only_its_flows():
    """Of eight flows on eight uplinks, the death of one uplink moves one flow, off that uplink."""
    fabric = clos(16, 8, 8)
    flows = across(fabric, 8)
    planner = live(fabric, flows)
    planner.add(flows)
    before = paths(planner)
    dead = before["a3"].hops[1]
    change = planner.close([dead])
    assert [assignment.flow for assignment in change.moved] == ["a3"]
    assert dead not in change.moved[0].path.hops
    assert {flow: path for flow, path in paths(planner).items() if flow != "a3"} == {
        flow: path for flow, path in before.items() if flow != "a3"
    }


def test_a_returned_link_is_used_again():
    """When the link is back, a flow moves onto it and the fabric is level as before."""
    fabric = clos(16, 8, 8)
    flows = across(fabric, 8)
    planner = live(fabric, flows)
    planner.add(flows)
    dead = paths(planner)["a3"].hops[1]
    planner.close([dead])
    change = planner.reopen([dead])
    assert len(change.moved) == 1
    assert max(planner.loads().values()) == 1.0


def test_a_small_gain_is_not_worth_a_move():
    """A link that would become lighter by less than the gain asked for is left as it is."""
    fabric = clos(4, 2, 2)
    flows = [Flow(f"f{n}", "a", "h0/0", "h2/0", RATE / 10) for n in range(5)] + [
        Flow(f"g{n}", "a", "h1/0", "h3/0", RATE / 10) for n in range(5)
    ]
    planner = live(fabric, flows)
    planner.add(flows)
    planner.remove(["f0", "f1"])
    before = paths(planner)
    assert not planner.rebalance(gain=0.9).moved
    assert paths(planner) == before


def test_stranded_flows_come_back():
    """A flow without an open path is stranded, loads no link, and is placed when a path opens."""
    fabric = clos(4, 2, 1)
    flows = across(fabric, 2)
    planner = live(fabric, flows)
    planner.add(flows)
    change = planner.close(["up:0>0"])
    assert change.stranded == ("a0", "a1")
    assert set(finite(planner).values()) == {0.0}
    assert [assignment.flow for assignment in planner.reopen(["up:0>0"]).placed] == ["a0", "a1"]
    assert max(planner.loads().values()) == 2.0


def test_blamed_links_are_avoided():
    """A path over a hop that is to be avoided is used by no flow."""
    fabric = clos(8, 4, 4)
    flows = across(fabric, 4, demand_bps=RATE / 4)
    planner = live(fabric, flows, avoid=frozenset({"down:2>1"}))
    planner.add(flows)
    assert not any("down:2>1" in path.hops for path in paths(planner).values())


def test_other_traffic_is_planned_around():
    """Flows keep off a link that traffic out of the planner's hands fills."""
    fabric = clos(8, 4, 4)
    flows = across(fabric, 3)
    planner = live(fabric, flows, background_bps={"up:0>1": 0.9 * RATE})
    planner.add(flows)
    assert max(planner.loads().values()) == 1.0


def test_other_traffic_that_comes_up_is_made_room_for():
    """When a link fills with traffic of others, its flow moves at the next rebalancing, and counts there no more."""
    fabric = clos(8, 4, 4)
    flows = across(fabric, 3)
    planner = live(fabric, flows)
    planner.add(flows)
    busy = paths(planner)["a1"].hops[1]
    planner.observe({busy: RATE})
    assert max(planner.loads().values()) == 2.0
    assert [assignment.flow for assignment in planner.rebalance().moved] == ["a1"]
    assert max(planner.loads().values()) == 1.0
    planner.observe({})
    assert planner.loads()[busy] == 0.0


def test_a_job_of_higher_share_has_more_room():
    """With two uplinks, one flow of share 3 has one of them to itself and three flows of share 1 have the other."""
    fabric = clos(8, 4, 2)
    flows = [*across(fabric, 1, "vip"), *(flow for flow in across(fabric, 4, "low") if flow.id != "low0")]
    planner = live(fabric, flows, shares={"vip": 3.0})
    planner.add(flows)
    found = paths(planner)
    assert all(found[f"low{n}"].hops[1] != found["vip0"].hops[1] for n in (1, 2, 3))


@settings(max_examples=examples(5, 15))
@given(st.integers(0, 10_000), st.data())
def test_loads_are_what_the_plan_adds_up_to(seed, data):
    """After any row of steps, the loads are those of the paths in the plan, and no path crosses a closed link."""
    problem = instance(seed)
    planner = Planner(problem.atlas, problem.conditions)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(problem.flows)), max_size=2)))
    closed = set()
    for first, last in pairwise([0, *cuts, len(problem.flows)]):
        planner.add(problem.flows[first:last])
        closed = set(data.draw(st.lists(st.sampled_from(problem.atlas.hops), max_size=3)))
        planner.close(closed)
        planner.remove(data.draw(st.lists(st.sampled_from([flow.id for flow in problem.flows]), max_size=3)))
        assert not any(closed & set(path.hops) for path in paths(planner).values())
        expected = counted(planner, problem)
        assert finite(planner) == {hop: pytest.approx(expected[hop], abs=1e-9) for hop in expected.keys() - closed}
        planner.reopen(closed)
    expected = counted(planner, problem)
    assert planner.loads() == {hop: pytest.approx(load, abs=1e-9) for hop, load in expected.items()}


@settings(max_examples=examples(5, 30))
@given(st.integers(0, 10_000), st.integers(2, 6))
def test_no_placement_is_lexicographically_better(seed, count):
    """Of all placements of a few flows, none has a lower worst link, nor an equal worst and a lower next, and so on."""
    problem = instance(seed)
    flows = problem.flows[:count]
    planner = Planner(problem.atlas, msgspec.structs.replace(problem.conditions, bonds={}))
    ends = problem.conditions.bonds
    flows = [
        Flow(flow.id, flow.job, *(ends.get(end, (end,))[0] for end in (flow.source, flow.destination)), flow.demand_bps)
        for flow in flows
    ]
    stranded = planner.add(flows).stranded
    choices = [problem.atlas.paths(flow.source, flow.destination) for flow in flows if flow.id not in stranded]
    demands = [flow.demand_bps for flow in flows if flow.id not in stranded]
    assert levels(planner.loads()) <= min(levels(summed(problem, demands, chosen)) for chosen in product(*choices))


def summed(problem, demands, chosen):
    bps = {hop: problem.conditions.background_bps.get(hop, 0.0) for hop in problem.atlas.hops}
    for demand, path in zip(demands, chosen, strict=True):
        for hop in path.hops:
            bps[hop] += demand
    return {hop: load / problem.conditions.capacities[hop] for hop, load in bps.items()}


def levels(loads):
    return sorted((round(load, 9) for load in loads.values()), reverse=True)


@settings(max_examples=examples(5, 15))
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_same_steps_same_plan(seed, rng):
    """The same flows in another order, and the same link closed, give the same plan."""
    problem = instance(seed)
    shuffled = rng.sample(problem.flows, len(problem.flows))
    plans = []
    for flows in (problem.flows, shuffled):
        planner = Planner(problem.atlas, problem.conditions)
        planner.add(flows)
        planner.close(problem.atlas.hops[:1])
        plans.append(paths(planner))
    assert plans[0] == plans[1]


def bonded(hosts=4, down=()):
    fabric = planes(hosts, 2, 4)
    bonds = {f"h{n}": (f"h{n}/0", f"h{n}/1") for n in range(hosts)}
    atlas = fabric.atlas((a, b) for a in fabric.leaf_of for b in fabric.leaf_of if a[:2] != b[:2])
    return Planner(atlas, Conditions(dict.fromkeys(atlas.hops, RATE) | dict.fromkeys(down, 0.0), bonds=bonds))


def ring(hosts=4, qps=4):
    return [
        Flow(f"c{n}.{qp}", "a", f"h{n}", f"h{(n + 1) % hosts}", 2 * RATE / qps)
        for n in range(hosts)
        for qp in range(qps)
    ]


def test_both_ports_of_a_bond_are_level():
    """Four QPs between bonded hosts load both ports of either end alike, none goes from one plane to the other."""
    planner = bonded()
    planner.add(ring())
    loads = planner.loads()
    assert {loads[hop] for hop in loads if hop.startswith(("in:", "out:"))} == {1.0}
    assert all(found.source[-1] == found.destination[-1] for found in planner.assignments())


def test_planes_are_crossed_only_where_a_port_is_down():
    """With a receive port dead its sender crosses no plane while the other port is there, and both dead ends must."""
    planner = bonded(down=("out:h1/0", "in:h0/1>1"))
    change = planner.add(ring())
    crossed = {found.flow[:2] for found in change.placed if found.source[-1] != found.destination[-1]}
    assert crossed == {"c0"}


def test_a_flow_that_had_to_cross_goes_straight_again():
    """Once its port is back, a flow that crossed planes stays in one."""
    planner = bonded(down=())
    planner.close(["out:h1/0", "in:h0/1>1"])
    planner.add(ring())
    change = planner.reopen(["out:h1/0", "in:h0/1>1"])
    assert {found.flow for found in change.moved} >= {f"c0.{qp}" for qp in range(4)}
    assert all(found.source[-1] == found.destination[-1] for found in planner.assignments())


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        (Conditions({"x": 1.0}), "has no capacity"),
        (Conditions(background_bps={"x": -1.0}), "hop x has no valid background"),
        (Conditions(shares={"j": 0.0}), "job j has no valid share"),
        (Conditions(bonds={"b": ()}), "bond b has no ports"),
    ],
)
def test_conditions_without_sense_are_refused(conditions, message):
    """What cannot be is refused by name before anything is planned."""
    with pytest.raises(UsageError, match=message):
        Planner(clos(4, 2, 2).atlas([("h0/0", "h2/0")]), conditions)


def test_an_id_that_is_taken_is_refused():
    """A flow under the id of a live one is refused, and nothing changes."""
    fabric = clos(4, 2, 2)
    flows = across(fabric, 2)
    planner = live(fabric, flows)
    planner.add(flows)
    before = paths(planner)
    with pytest.raises(UsageError, match="same id"):
        planner.add(flows[:1])
    assert paths(planner) == before


def test_live_flows_are_taken_over_as_they_run():
    """Flows that run already stay on their paths, however bad; one on an unknown path or a closed link gets another."""
    fabric = clos(8, 4, 4)
    flows = across(fabric, 4)
    planner = live(fabric, flows)
    known = {flow.id: fabric.hops(flow.source, flow.destination, 0) for flow in flows}
    known[flows[3].id] = ("elsewhere",)
    planner.adopt([(flow, Assignment("", Path(1, known[flow.id]), flow.source, flow.destination)) for flow in flows])
    found = paths(planner)
    assert [found[flow.id].hops for flow in flows[:3]] == [known[flow.id] for flow in flows[:3]]
    assert found[flows[3].id].hops[1] != found[flows[0].id].hops[1]
    assert len({path.hops[1] for path in {**found, **after(planner.rebalance())}.values()}) == 4


def after(change):
    return {one.flow: one.path for one in change.moved}


@settings(max_examples=examples(3, 20))
@given(st.integers(0, 10_000))
def test_a_plan_taken_over_is_the_same_plan(seed):
    """Whatever a planner has placed, another one that takes it over has the same paths and the same loads."""
    problem = instance(seed)
    first, second = (Planner(problem.atlas, problem.conditions) for _ in range(2))
    first.add(problem.flows)
    flows = {flow.id: flow for flow in problem.flows}
    second.adopt([(flows[one.flow], one) for one in first.assignments()])
    assert second.assignments() == first.assignments()
    assert second.loads() == {hop: pytest.approx(load) for hop, load in first.loads().items()}
