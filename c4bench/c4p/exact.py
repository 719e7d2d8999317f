"""The least possible worst link load, by mixed-integer programming: the oracle that the fast planner is held to."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np

from c4bench.c4p.atlas import Atlas
from c4bench.c4p.problem import Problem
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.fabric import Flow, Path


def least_worst_load(
    flows: Sequence[Flow],
    atlas: Atlas,
    capacities: Mapping[str, float] | None = None,
    fixed: Mapping[str, Path] = MappingProxyType({}),
    time_limit_s: float = 60.0,
) -> float:
    """The worst link load of the best placement (`plan` has the arguments), in bit/s, or a fraction with capacities.

    Raises UsageError when highspy is not installed, UnhealthyError when the optimum is not proven in time.
    """
    problem = Problem(flows, atlas, capacities, fixed)
    loads = problem.unavoidable_load()
    # The solver's tolerances are absolute: loads are scaled so that the unknown is of the order of one.
    scale = float(loads.sum() + sum(flow.demand_bps for flow in problem.flows) * problem.weight.max()) or 1.0
    solver = _solver(time_limit_s)
    worst = solver.addVariable(lb=float(loads.max()) / scale, obj=1.0)
    usage: dict[int, Any] = {}
    for flow, choice in zip(problem.flows, problem.choices, strict=True):
        taken = [solver.addBinary() for _ in choice.ways]
        solver.addConstr(sum(taken) == 1)
        for variable, way in zip(taken, choice.ways, strict=True):
            for link in way:
                usage[link] = usage.get(link, 0.0) + variable * (flow.demand_bps * problem.weight[link] / scale)
    for link, used in usage.items():
        solver.addConstr(used - worst <= -float(loads[link]) / scale)
    return _minimum(solver) * scale


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
