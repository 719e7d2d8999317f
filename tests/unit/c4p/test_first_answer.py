"""What C4P answers first is what it plans: a job's first operation runs on the plan, not on what it was before."""

import random

import pytest
from rehashing_world import RATE, World, running

from c4bench.c4p.evaluation import least_worst_load
from c4bench.c4p.placement.planner import Planner
from c4bench.model.fabric import Flow
from tools.bench.fabrics import clos

QPS = 4


def connection(number, source, destination):
    return [
        Flow(f"j{number}/j{number}:x/0>1/0.{qp}", f"j{number}", source, destination, RATE / QPS) for qp in range(QPS)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_connections_that_come_one_by_one_stay_where_they_were_put(seed):
    """Eight jobs open their connections both ways, in any order: nobody is moved, and no link has more than a NIC."""
    controller = running(World(), [])
    ends = [(f"h{n}/0", f"h{n + 8}/0") for n in range(8)]
    order = [*ends, *(pair[::-1] for pair in ends)]
    random.Random(seed).shuffle(order)
    controller.learn(World().traces(order), 0.0)
    first = {}
    for number, pair in enumerate(order):
        flows = connection(number, *pair)
        controller.join(flows)
        first |= {flow.id: (controller.port(flow.id), controller.weight(flow.id)) for flow in flows}
    assert first == {flow: (controller.port(flow), controller.weight(flow)) for flow in first}
    assert {weight for _, weight in first.values()} == {1 / QPS}
    loads = controller.live_flows.link_loads({})
    assert max(load.offered_bps for load in loads.values()) == pytest.approx(RATE)


def test_others_make_room_where_that_is_lighter():
    """Where new connections fit only if those before them are divided again, they are."""
    fabric = clos(6, 3, 2)
    flows = [flow for n in range(3) for flow in connection(n, f"h{n}/0", f"h{n + 3}/0")]
    atlas = fabric.atlas((flow.source, flow.destination) for flow in flows)
    planner = Planner(atlas)
    for start in range(0, len(flows), QPS):
        new = flows[start : start + QPS]
        planner.add(new, gain=None)
        divided = planner.divide([flow.id for flow in new])
    assert max(planner.loads().values()) <= 1.005 * least_worst_load(flows, atlas, divisible=True)
    assert sum(divided.values()) == pytest.approx(3)
