"""The lowest possible worst link load, by mathematical programming: the reference for the heuristic planner."""

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from c4bench.c4p.conditions import Array, Conditions
from c4bench.c4p.knowledge.atlas import Atlas, LinkPath
from c4bench.c4p.placement.path_choices import EcmpGroupTable, PathChoice, PathChoices
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.fabric import Flow

# Loads as a fraction of the scale; the solver refuses coefficients below its tolerances.
_NEGLIGIBLE = 1e-8


def least_worst_load(
    flows: Sequence[Flow],
    atlas: Atlas,
    conditions: Conditions | None = None,
    *,
    divisible: bool = False,
    time_limit_s: float = 60.0,
) -> float:
    """The worst link load of the best placement, in bit/s, or a fraction if the conditions have capacities.

    Each flow uses one path; with `divisible` each may spread over all its paths, which is the lower bound of linear
    programming for any number of QPs. Flows without a usable path do not count.

    Raises UsageError if highspy is not installed, UnhealthyError if the optimum is not proven in `time_limit_s`.
    """
    problem = _Problem(flows, atlas, conditions or Conditions())
    # The solver's tolerances are absolute: loads are scaled so that the unknown is of the order of one.
    scale = problem.ceiling or 1.0
    solver = _solver(time_limit_s)
    worst = solver.addVariable(lb=float(problem.load.max(initial=0.0)) / scale, obj=1.0)
    usage: dict[int, Any] = {}
    for demand, paths, count in problem.choices:
        # Flows with the same choice and demand share variables: the number of them on each path.
        variable = solver.addVariable if divisible else solver.addIntegral
        numbers = [variable(lb=0, ub=count) for _ in paths]
        solver.addConstr(sum(numbers) == count)
        for number, path in zip(numbers, paths, strict=True):
            for link in path:
                if (added := demand * problem.weight[link] / scale) > _NEGLIGIBLE:
                    usage[link] = usage.get(link, 0.0) + number * added
    for link, used in usage.items():
        solver.addConstr(used - worst <= -float(problem.load[link]) / scale)
    return _minimum(solver) * scale


class _Problem:
    """The links' background load, and the flows' choices: (demand in bit/s, paths, number of such flows)."""

    def __init__(self, flows: Sequence[Flow], atlas: Atlas, conditions: Conditions) -> None:
        conditions.check(atlas.hops)
        weight = conditions.weights(atlas.hops)
        self._closed = frozenset(np.flatnonzero(np.isinf(weight)).tolist())
        self.weight: Array = np.append(np.where(np.isinf(weight), 0.0, weight), 0.0)
        self.load: Array = np.append(conditions.background(atlas.hops), 0.0) * self.weight
        path_choices = PathChoices(atlas, EcmpGroupTable(len(atlas.hops)), conditions.bonds)
        counts: Counter[tuple[float, tuple[LinkPath, ...]]] = Counter()
        for flow in flows:
            demand = flow.demand_bps * conditions.shares.get(flow.job, 1.0)
            counts[demand, self._open_paths(path_choices, flow)] += 1
        self.choices = [(demand, paths, count) for (demand, paths), count in counts.items() if paths]
        total_bps = sum(demand * count for demand, _, count in self.choices)
        used = sorted({link for _, paths, _ in self.choices for path in paths for link in path})
        self.ceiling = float(self.load[used].max(initial=0.0) + self.weight[used].max(initial=0.0) * total_bps)

    def _open_paths(self, path_choices: PathChoices, flow: Flow) -> tuple[LinkPath, ...]:
        """The open paths of a flow; those that cross planes only if there is no other."""
        for crossing in (False, True):
            (choice,) = path_choices.between([(flow.source, flow.destination)], crossing)
            if paths := tuple(path for path in _all_paths(choice) if self._closed.isdisjoint(path)):
                return paths
        return ()


def _all_paths(choice: PathChoice) -> list[LinkPath]:
    pairs = [pair.paths for pair in choice.port_pairs]
    return [paths.hops(index) for paths in pairs for index in range(len(paths.source_ports))]


def _solver(time_limit_s: float) -> Any:  # noqa: ANN401  (highspy ships no types)
    try:
        highspy: Any = import_module("highspy")
    except ImportError:
        raise UsageError("the exact planner needs highspy; run: pip install highspy") from None
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
