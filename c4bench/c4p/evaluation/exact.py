"""The least possible worst link load, by mathematical programming: the oracle that the fast planner is held to."""

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from c4bench.c4p.arrays import Array
from c4bench.c4p.conditions import Conditions
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.placement.path_choices import EcmpGroups, PathChoice, PathChoices
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.fabric import Flow

# Below the solver's tolerances, which refuses smaller coefficients.
_NEGLIGIBLE = 1e-8


def least_worst_load(
    flows: Sequence[Flow],
    atlas: Atlas,
    conditions: Conditions | None = None,
    *,
    divisible: bool = False,
    time_limit_s: float = 60.0,
) -> float:
    """The worst link load of the best placement, in bit/s, or a fraction where the conditions have capacities.

    Flows take one path each; `divisible` lets each spread over all its paths as it likes, which is the bound of linear
    programming for any number of QPs a connection. Flows without a usable path do not count.

    Raises UsageError when highspy is not installed, UnhealthyError when the optimum is not proven in time.
    """
    problem = _Problem(flows, atlas, conditions or Conditions())
    # The solver's tolerances are absolute: loads are scaled so that the unknown is of the order of one.
    scale = problem.ceiling or 1.0
    solver = _solver(time_limit_s)
    worst = solver.addVariable(lb=float(problem.load.max(initial=0.0)) / scale, obj=1.0)
    usage: dict[int, Any] = {}
    for demand, ways, count in problem.choices:
        # Flows that choose alike are one variable a way: how many of them go there.
        variable = solver.addVariable if divisible else solver.addIntegral
        taken = [variable(lb=0, ub=count) for _ in ways]
        solver.addConstr(sum(taken) == count)
        for number, way in zip(taken, ways, strict=True):
            for link in way:
                if (added := demand * problem.weight[link] / scale) > _NEGLIGIBLE:
                    usage[link] = usage.get(link, 0.0) + number * added
    for link, used in usage.items():
        solver.addConstr(used - worst <= -float(problem.load[link]) / scale)
    return _minimum(solver) * scale


class _Problem:
    """What loads the links in any case, and which flows choose between which ways: (demand, ways, how many)."""

    def __init__(self, flows: Sequence[Flow], atlas: Atlas, conditions: Conditions) -> None:
        conditions.check(atlas.hops)
        weight = conditions.weights(atlas.hops)
        self._shut = frozenset(np.flatnonzero(np.isinf(weight)).tolist())
        self.weight: Array = np.append(np.where(np.isinf(weight), 0.0, weight), 0.0)
        self.load: Array = np.append(conditions.background(atlas.hops), 0.0) * self.weight
        fans = EcmpGroups(len(atlas.hops))
        lanes = PathChoices(atlas, fans, conditions.bonds)
        counts: Counter[tuple[float, tuple[tuple[int, ...], ...]]] = Counter()
        for flow in flows:
            demand = flow.demand_bps * conditions.shares.get(flow.job, 1.0)
            counts[demand, self._ways(lanes, flow)] += 1
        self.choices = [(demand, ways, count) for (demand, ways), count in counts.items() if ways]
        asked = sum(demand * count for demand, _, count in self.choices)
        used = sorted({link for _, ways, _ in self.choices for way in ways for link in way})
        self.ceiling = float(self.load[used].max(initial=0.0) + self.weight[used].max(initial=0.0) * asked)

    def _ways(self, lanes: PathChoices, flow: Flow) -> tuple[tuple[int, ...], ...]:
        """The open ways of a flow, crossing planes only where there is no other."""
        for crossing in (False, True):
            (option,) = lanes.options([(flow.source, flow.destination)], crossing)
            if ways := tuple(way for way in _all(option) if self._shut.isdisjoint(way)):
                return ways
        return ()


def _all(option: PathChoice) -> list[tuple[int, ...]]:
    return [lane.routes.hops(way) for lane in option.lanes for way in range(len(lane.routes.source_ports))]


def _solver(time_limit_s: float) -> Any:  # noqa: ANN401  (highspy ships no types)
    try:
        highspy: Any = import_module("highspy")
    except ImportError:
        raise UsageError("the exact planner needs highspy; run: pip install 'c4bench[plan]'") from None
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", time_limit_s)
    solver.setOptionValue("mip_rel_gap", 1e-6)
    return solver


def _minimum(solver: Any) -> float:  # noqa: ANN401
    solver.minimize()
    status = solver.modelStatusToString(solver.getModelStatus())
    if status != "Optimal":
        raise UnhealthyError(f"the exact planner ended with {status!r}; give it fewer flows or more time")
    return float(np.round(solver.getInfo().objective_function_value, 12))
