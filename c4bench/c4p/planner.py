"""Where every flow goes, all jobs together: greedy, largest first, then ejection chains on the most loaded links."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from c4bench.c4p.atlas import Atlas
from c4bench.c4p.problem import Problem
from c4bench.c4p.search import Board
from c4bench.model.fabric import Flow, Path, Placement

ECMP = Path(source_port=0, hops=())

# Counted in moves considered, not in seconds: the same input must give the same plan on a slower machine.
_BUDGET = 200_000
_ATTEMPT = 8_000


def plan(
    flows: Sequence[Flow],
    atlas: Atlas,
    capacities: Mapping[str, float] | None = None,
    fixed: Mapping[str, Path] = MappingProxyType({}),
) -> tuple[Placement, ...]:
    """Place `flows` so that the worst link load is least, then the next worst, and so on; in the order of `flows`.

    A heuristic: `exact.least_worst_load` proves how near it comes. 100,000 flows over 1,024 hosts take about 2 s.

    `capacities` are bit/s by hop: loads are then fractions, and a path over a hop of capacity 0 is not used. `fixed`
    flows (by id) keep their paths and are counted. A flow without a usable path is placed on `ECMP`; `unplaced`
    lists those. The plan depends on nothing but the set of arguments: equal input in any order gives equal paths.

    Raises UsageError for two flows of one id, a fixed flow that is not among the flows, a demand below zero, and a
    hop without a capacity.
    """
    problem = Problem(flows, atlas, capacities, fixed)
    chosen, loads = _greedy(problem)
    demands = [flow.demand_bps for flow in problem.flows]
    board = Board(loads.tolist(), problem.weight.tolist(), demands, problem.choices, chosen)
    board.improve(_BUDGET, _ATTEMPT)
    paths = problem.paths(board.chosen) | dict(fixed)
    return tuple([Placement(flow.id, paths.get(flow.id, ECMP)) for flow in flows])


def unplaced(placements: Iterable[Placement]) -> tuple[str, ...]:
    """The ids of the flows that no path was known for and that the fabric's own hashing will place."""
    return tuple(placement.flow for placement in placements if placement.path == ECMP)


def _greedy(problem: Problem) -> tuple[list[int], npt.NDArray[np.float64]]:
    """Give each flow in turn the first way whose worst link is least loaded with it."""
    loads = problem.unavoidable_load()
    weight = problem.weight
    chosen = []
    for flow, choice in zip(problem.flows, problem.choices, strict=True):
        if len(choice.ways) == 1:
            chosen.append(0)
            continue
        table = choice.table
        after = loads[table] + flow.demand_bps * weight[table]
        best = int(after.max(axis=1).argmin())
        loads[table[best]] = after[best]
        chosen.append(best)
    return chosen, loads
