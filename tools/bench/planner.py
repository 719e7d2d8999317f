"""The planner's regret and cost, without a lab, on the machine's clock."""

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from c4bench.bench.figures import note
from c4bench.c4p.evaluation import least_worst_load
from c4bench.c4p.placement.planner import Planner
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Flow
from c4bench.model.measurement import Clock
from c4bench.record import Ledger, RunDirectory
from c4bench.record.artefacts import Growth
from c4bench.report.statistics import median
from tools.bench.degraded import PATHS, Kind, Size, draw, fractions
from tools.bench.fabrics import Fabric, clos, instance

_SUITE = "planner"
_HOSTS, _HOSTS_PER_LEAF, _SPINES = 1024, 16, 16
_FLOWS, _MORE = 100_000, 1_000
_RATE_BPS = 10e9
_PROOF_S = 20.0
# Nothing was tuned on these seeds.
_FIRST_SEED = 52_001


def measure(run: RunDirectory, *, quick: bool) -> None:
    """Measure regret against the proven optimum, time for a full and an incremental plan, and cost growth."""
    _regret(run, 50 if quick else 500)
    _degraded(run, 1 if quick else 20)
    rounds = 1 if quick else 3
    sizes = [_FLOWS >> step for step in range(6 if quick else 8)][::-1]
    seconds = {size: median([_plan(size) for _ in range(rounds)]) for size in sizes}
    full: dict[str, Any] = {"flows": _FLOWS, "hosts": _HOSTS}
    note(run, _SUITE, "planner.flows_100k_s", seconds[_FLOWS], unit="s", clock=Clock.MACHINE, at_most=2.0, **full)
    more = median([_incremental_plan() for _ in range(rounds)])
    note(run, _SUITE, "planner.incremental_s", more, unit="s", clock=Clock.MACHINE, at_most=0.05, more=_MORE, **full)
    note(run, _SUITE, "planner.exponent", exponent(list(seconds.items())), clock=Clock.MACHINE)
    points = tuple((float(size), took) for size, took in seconds.items())
    Ledger(run, f"bench.{_SUITE}").save("growth", Growth("planning from nothing", "flows", "processor seconds", points))


def _regret(run: RunDirectory, count: int) -> None:
    regrets = [regret(seed) for seed in range(count)]
    proven = [over for over in regrets if over is not None]
    labels: dict[str, Any] = {"instances": count, "proven": len(proven)}
    worst = max(proven, default=math.nan)
    note(run, _SUITE, "planner.regret", worst, clock=Clock.NONE, at_most=0.01, **labels)


def _degraded(run: RunDirectory, draws: int) -> None:
    """What the worst job gets of what degraded fabrics can carry, in the worst draw, by each way to choose paths."""
    kinds: tuple[tuple[Kind, float], ...] = (("down", 0.0), ("half", 0.5))
    for kind, left in kinds:
        for links_down in (0.05, 0.1, 0.2):
            seeds = range(_FIRST_SEED, _FIRST_SEED + draws)
            found = [fractions(draw(seed, links_down, kind, Size(16, 4, 4))) for seed in seeds]
            labels: dict[str, Any] = {"links_down": links_down, "left": left, "draws": draws, "jobs": 8}
            for paths in PATHS:
                shares = [of_draw[paths] for of_draw in found]
                mean = round(sum(shares) / draws, 4)
                limit = 0.98 if paths == "planned" else None
                name = "c4p.optimum_fraction"
                note(run, _SUITE, name, min(shares), clock=Clock.NONE, at_least=limit, paths=paths, mean=mean, **labels)


def regret(seed: int) -> float | None:
    """Excess of the planner's worst link load over the proven optimum, as a fraction; None if unproven."""
    problem = instance(seed)
    planner = Planner(problem.atlas, problem.conditions)
    planner.add(problem.flows)
    loads = [load for load in planner.loads().values() if load != math.inf]
    try:
        least = least_worst_load(problem.flows, problem.atlas, problem.conditions, time_limit_s=_PROOF_S)
    except UnhealthyError:
        return None
    return max(loads) / least - 1


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Growth exponent: the slope of the line through the points' logarithms."""
    sizes, costs = np.log(np.array(points)).T
    return float(np.polyfit(sizes, costs, 1)[0])


def _plan(count: int) -> float:
    fabric = clos(_HOSTS, _HOSTS_PER_LEAF, _SPINES)
    flows = _flows(fabric, count)
    planner = Planner(fabric.atlas((flow.source, flow.destination) for flow in flows))
    began = time.process_time()
    planner.add(flows)
    return time.process_time() - began


def _incremental_plan() -> float:
    fabric = clos(_HOSTS, _HOSTS_PER_LEAF, _SPINES)
    flows = _flows(fabric, _FLOWS + _MORE)
    planner = Planner(fabric.atlas((flow.source, flow.destination) for flow in flows))
    planner.add(flows[:_FLOWS])
    began = time.process_time()
    planner.add(flows[_FLOWS:])
    return time.process_time() - began


def _flows(fabric: Fabric, count: int) -> list[Flow]:
    """Flows between random hosts under different leaves, the same for every call."""
    rng = np.random.default_rng(1)
    hosts = len(fabric.leaf_of)
    return [
        Flow(f"f{number:06}", "job", f"h{source}/0", f"h{destination}/0", _RATE_BPS)
        for number, (source, destination) in enumerate(_ends(rng, hosts, count))
    ]


def _ends(rng: np.random.Generator, hosts: int, count: int) -> Iterable[tuple[int, int]]:
    source = rng.integers(hosts, size=count)
    # At least one leaf away, at most as far as the fabric is round.
    away = rng.integers(_HOSTS_PER_LEAF, hosts - _HOSTS_PER_LEAF, size=count)
    return zip(source.tolist(), ((source + away) % hosts).tolist(), strict=True)
