import pytest
from night_cases import at_night

from c4bench.c4p.evaluation import least_worst_load
from c4bench.c4p.placement.planner import Planner
from c4bench.errors import UnhealthyError
from tools.bench.fabrics import instance


def regret(seed):
    """By how much the planner's worst link is above the proven optimum, as a fraction; None where none is proven."""
    problem = instance(seed)
    planner = Planner(problem.atlas, problem.conditions)
    change = planner.add(problem.flows)
    loads = [load for load in planner.loads().values() if load != float("inf")]
    placed = {assignment.flow for assignment in change.placed}
    assert placed | set(change.stranded) == {flow.id for flow in problem.flows}
    try:
        return max(loads) / least_worst_load(problem.flows, problem.atlas, problem.conditions, time_limit_s=20.0) - 1
    except UnhealthyError:
        return None


def check(seeds):
    found = {seed: regret(seed) for seed in seeds}
    assert {seed: over for seed, over in found.items() if over is not None and not -1e-6 < over <= 0.01} == {}
    assert sum(over is None for over in found.values()) <= len(found) / 100


def test_random_problems_within_one_percent_of_the_optimum():
    """On Clos, rails and planes, with links missing, unequal rates and other traffic, no plan is 1 % too high."""
    # In 35 and 37 placing flows one after the other is not enough.
    check(range(32, 40))


@pytest.mark.nightly
def test_five_hundred_random_problems_within_one_percent_of_the_optimum():
    """The same on twenty times as many."""
    check(range(500))


@pytest.mark.parametrize("seed", [*range(4), *at_night(*range(4, 20))])
def test_one_path_each_is_never_better_than_dividing(seed):
    """The bound of linear programming is a bound: no placement of whole flows is below it."""
    problem = instance(seed)
    bound = least_worst_load(problem.flows, problem.atlas, problem.conditions, divisible=True)
    planner = Planner(problem.atlas, problem.conditions)
    planner.add(problem.flows)
    assert max(load for load in planner.loads().values() if load != float("inf")) >= bound * (1 - 1e-9)
