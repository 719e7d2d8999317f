"""Plans made in one step, as tests of the planner's arithmetic want them."""

from types import MappingProxyType
from typing import NamedTuple

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.placement.planner import ECMP, Planner
from c4bench.errors import UsageError
from c4bench.model.fabric import Path


class Placement(NamedTuple):
    """A flow by its id, and the path that it was given."""

    flow: str
    path: Path


def plan(flows, atlas, capacities=None, fixed=MappingProxyType({})):
    """Place `flows` in their order; `fixed` ones (by id) keep their paths and are counted."""
    if unknown := sorted(fixed.keys() - {flow.id for flow in flows}):
        raise UsageError(f"fixed flow {unknown[0]} is not among the flows; give its demand with the others")
    background = {}
    for flow in sorted((flow for flow in flows if flow.id in fixed), key=lambda flow: flow.id):
        for hop in fixed[flow.id].hops:
            background[hop] = background.get(hop, 0.0) + flow.demand_bps
    planner = Planner(atlas, Conditions(capacities, background))
    change = planner.add((flow for flow in flows if flow.id not in fixed), gain=None)
    paths = {assignment.flow: assignment.path for assignment in change.placed} | dict(fixed)
    return tuple(Placement(flow.id, paths.get(flow.id, ECMP)) for flow in flows)


def unplaced(placements):
    """The ids of the flows that no path was known for."""
    return tuple(placement.flow for placement in placements if placement.path == ECMP)


def link_loads(flows, placements, capacities=None):
    """The demand that placed flows bring to each hop: bit/s, or a fraction where `capacities` are given."""
    demand_bps = {flow.id: flow.demand_bps for flow in flows}
    loads = dict.fromkeys(capacities or (), 0.0)
    for placement in placements:
        for hop in placement.path.hops:
            loads[hop] = loads.get(hop, 0.0) + demand_bps[placement.flow]
    return {hop: load / capacities[hop] if load and capacities else load for hop, load in loads.items()}
