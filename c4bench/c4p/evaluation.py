"""How good a plan is: the proven optimum, how even link loads are, and what the plan cannot give.

The optimum is the lowest possible worst link load by mathematical programming: the reference for the heuristic planner.
Evenness is told by the KPIs MMR and JFI of draft-calabria-bmwg-ai-fabric-training-bench.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec
import numpy as np

from c4bench.c4p.conditions import Array, Conditions
from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Atlas, InnerPath, LinkPath, Pair
from c4bench.c4p.placement.path_choices import EcmpGroupTable, PathChoice, PathChoices
from c4bench.c4p.shares import needed_qps
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.fabric import USUAL_QPS, Flow, Path
from c4bench.model.qp_address import connection_key

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
        path_choices = PathChoices(atlas, EcmpGroupTable(len(atlas.hops)), conditions)
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
    return [pair.paths.hops(number) for pair in choice.port_pairs for number in pair.offered]


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


# Relative: a link this much above its capacity is above it only by rounding errors.
_SLACK = 1e-9


def no_route(flow: Flow, atlas: Atlas, conditions: Conditions, closed: Iterable[str] = ()) -> str:
    """A line that says why a flow has no open path; `closed` are hops closed in addition to the conditions' own."""
    sources, destinations = (conditions.bonds.get(end, (end,)) for end in (flow.source, flow.destination))
    pairs = [(source, destination) for source in sources for destination in destinations]
    paths = [path for pair in pairs for path in atlas.paths(*pair)]
    start = f"flow {flow.id} has no route from {flow.source} to {flow.destination} and is left to ECMP: "
    if paths:
        return start + _blocked(paths, _unusable(conditions) | set(closed))
    if any(pair in atlas.pairs for pair in pairs):
        return start + "its probes were not answered; see whether switches answer TTL-exceeded"
    return start + "the pair is not in the atlas; probe it"


def shortages(loads_bps: Mapping[str, float], capacities: Mapping[str, float]) -> tuple[str, ...]:
    """A line for every link whose load is above its capacity, the worst first; both in bit/s by hop.

    Links of capacity 0 are left out.
    """
    ratios = {hop: load / capacities[hop] for hop, load in loads_bps.items() if capacities.get(hop)}
    over = sorted((hop for hop, ratio in ratios.items() if ratio > 1 + _SLACK), key=lambda hop: (-ratios[hop], hop))
    return tuple(
        f"hop {hop} is asked for {loads_bps[hop] / 1e9:.4g} Gbit/s and has {capacities[hop] / 1e9:.4g}: "
        f"its flows get {100 / ratios[hop]:.3g} % of their demand"
        for hop in over
    )


def few_qps(flows: Iterable[Flow], atlas: Atlas, capacities: Mapping[str, float]) -> tuple[str, ...]:
    """A line for every connection with fewer QPs than its thin links need, by name; `capacities` are bit/s by hop."""
    counts = Counter(connection_key(flow) for flow in flows)
    needs = {key: needed_qps((path.hops for path in atlas.paths(*key[1:])), capacities) for key in sorted(counts)}
    return tuple(
        f"connection {key[0]} of {counts[key]} QPs may cross links thinner than its NICs: {need} QPs fill them"
        for key, need in needs.items()
        if need > max(USUAL_QPS, counts[key])
    )


class PathGap(msgspec.Struct, frozen=True, order=True):
    """A pair whose source ports do not reach all known paths: `missing` are those, by the links between the leaves."""

    source: str
    destination: str
    reached: int
    missing: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Which paths are missing, and how many QPs can be kept apart."""
        paths = "; ".join(" ".join(path) for path in self.missing)
        return (
            f"{self.source} > {self.destination}: the probed source ports reach {self.reached} of "
            f"{self.reached + len(self.missing)} paths, none leads over {paths}; "
            f"up to {self.reached} QPs of a connection can be kept apart; probe more source ports"
        )


def gaps(atlas: Atlas) -> tuple[PathGap, ...]:
    """Every pair that reaches fewer paths than other pairs between the same two leaves.

    Pairs are between the same leaves if any of their paths have the same links between first and last hop.
    """
    inner = {pair: {path.hops[1:-1] for path in atlas.paths(*pair)} - {()} for pair in atlas.pairs}
    group = _leaf_groups(inner)
    known: dict[InnerPath, set[InnerPath]] = defaultdict(set)
    for pair, representative in group.items():
        known[representative] |= inner[pair]
    missing = {pair: known[representative] - inner[pair] for pair, representative in group.items()}
    return tuple(
        sorted(PathGap(*pair, len(inner[pair]), tuple(sorted(lacking))) for pair, lacking in missing.items() if lacking)
    )


def _leaf_groups(inner_paths: Mapping[Pair, Collection[InnerPath]]) -> dict[Pair, InnerPath]:
    """A representative for each pair, the same for all pairs that share an inner path; none for pairs at one leaf."""
    same_leaves: DisjointSets[InnerPath] = DisjointSets()
    several = {pair: sorted(set(paths) - {()}) for pair, paths in inner_paths.items()}
    for paths in filter(None, several.values()):
        same_leaves.join(paths)
    return {pair: same_leaves.root(paths[0]) for pair, paths in several.items() if paths}


def _unusable(conditions: Conditions) -> set[str]:
    return set(conditions.avoid) | {hop for hop, rate in (conditions.capacities or {}).items() if rate <= 0}


def _blocked(paths: Iterable[Path], closed: set[str]) -> str:
    """The closed hops that block every path: those common to all paths, else all of them."""
    sets = [closed.intersection(path.hops) for path in paths]
    common = set.intersection(*sets)
    hops = " ".join(sorted(common or set.union(*sets)))
    return f"every known path crosses {'' if common else 'one of '}{hops}, which may not be used"
