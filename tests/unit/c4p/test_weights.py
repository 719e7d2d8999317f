import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.evaluation import least_worst_load
from c4bench.c4p.placement.planner import Planner
from c4bench.c4p.shares import shares
from c4bench.c4p.tuning import reweigh
from c4bench.errors import UsageError
from c4bench.model.fabric import Flow, Path
from tools.bench.fabrics import clos

RATE = 10e9


def connections(count, qps):
    return [
        Flow(f"c{n}.{qp}", "a", f"h{n}/0", f"h{n + count}/0", RATE / qps) for n in range(count) for qp in range(qps)
    ]


def test_eight_qps_use_seven_of_eight_uplinks_to_the_full():
    """With one of eight uplinks dead, the shares bring the worst link to the bound of linear programming, 8/7."""
    fabric = clos(16, 8, 8)._replace(missing=frozenset({(0, 3)}))
    flows = connections(8, 8)
    atlas = fabric.atlas((flow.source, flow.destination) for flow in flows)
    conditions = Conditions(dict.fromkeys(atlas.hops, RATE))
    planner = Planner(atlas, conditions)
    planner.add(flows)
    divided = planner.divide()
    bound = least_worst_load(flows, atlas, conditions, divisible=True)
    assert bound == pytest.approx(8 / 7)
    assert max(planner.loads().values()) <= 1.005 * bound
    assert sum(divided.values()) == pytest.approx(8)


def test_a_stranded_qp_has_no_share():
    """The QPs that have a path carry what the stranded one would have carried."""
    flows = connections(1, 2)
    assert shares(flows, {"c0.1": Path(1, ("x",))}) == {"c0.1": 1.0}
    assert shares(flows, {}) == {}


def test_an_unequal_pair_of_paths_is_used_in_proportion():
    """Two paths of which one has a third of the other's rate get a quarter and three quarters."""
    paths = {"c0.0": Path(1, ("slow",)), "c0.1": Path(2, ("fast",))}
    found = shares(connections(1, 2), paths, Conditions({"slow": RATE, "fast": 3 * RATE}))
    assert found["c0.0"] == pytest.approx(0.25, abs=0.005)


def test_a_worst_link_of_others_leaves_no_connection_badly_divided():
    """Where one connection's link is full whatever it does, another still divides its load best on the links it has."""
    stuck, free = connections(2, 3)[:3], connections(2, 3)[3:]
    paths = {flow.id: Path(1, ("full",)) for flow in stuck}
    paths |= {"c1.0": Path(1, ("left",)), "c1.1": Path(2, ("left",)), "c1.2": Path(3, ("right",))}
    found = shares([*stuck, *free], paths, Conditions({"full": RATE / 4, "left": RATE, "right": RATE}))
    assert found["c1.2"] == pytest.approx(0.5, abs=0.005)


def test_no_load_is_moved_to_a_link_that_is_the_worst():
    """A QP across the full link of others carries nothing, however level that would make its own connection."""
    stuck, free = connections(2, 2)[:2], connections(2, 2)[2:]
    paths = {flow.id: Path(1, ("full",)) for flow in stuck}
    paths |= {"c1.0": Path(1, ("full",)), "c1.1": Path(2, ("wide",))}
    found = shares([*stuck, *free], paths, Conditions({"full": RATE / 4, "wide": RATE}))
    assert found["c1.0"] == 0.0
    assert found["c1.1"] == 1.0


@given(st.lists(st.floats(-14, 0), min_size=2, max_size=6))
def test_connections_of_any_demand_are_divided(exponents):
    """Demands that differ by up to 14 orders of magnitude, as any agent may state them, leave shares that sum to 1."""
    flows = [
        Flow(f"c{n}.{qp}", "a", f"h{n}/0", "x/0", RATE * 10**e) for n, e in enumerate(exponents) for qp in (0, 1, 2)
    ]
    hops = {"0": ("left",), "1": ("right",), "2": ("left",)}
    paths = {flow.id: Path(1, hops[flow.id[-1]]) for flow in flows}
    found = shares(flows, paths, Conditions({"left": RATE, "right": RATE}))
    for n in range(len(exponents)):
        assert sum(found[f"c{n}.{qp}"] for qp in (0, 1, 2)) == pytest.approx(1)


@settings(max_examples=examples(15, 40))
@given(st.data())
def test_shares_reach_the_optimum(data):
    """On random paths, rates and other traffic the worst link is within 1 % of the exact optimum."""
    spines, leaves = data.draw(st.integers(2, 4)), 2
    fabric = clos(4 * leaves, 4, spines)
    flows = connections(4, spines)
    atlas = fabric.atlas((flow.source, flow.destination) for flow in flows)
    rates = {hop: data.draw(st.sampled_from([RATE / 4, RATE / 2, RATE])) for hop in atlas.hops if hop[0] in "ud"}
    rates |= {hop: 4 * RATE for hop in atlas.hops if hop not in rates}
    busy = {hop: data.draw(st.sampled_from([0.0, RATE / 10])) for hop in atlas.hops}
    conditions = Conditions(rates, busy)
    # One QP on each way: the shares are all that is left to choose.
    paths = {flow.id: atlas.paths(flow.source, flow.destination)[int(flow.id.rpartition(".")[2])] for flow in flows}
    found = shares(flows, paths, conditions)
    bps = dict(busy)
    for flow in flows:
        for hop in paths[flow.id].hops:
            bps[hop] += found[flow.id] * RATE
    bound = least_worst_load(flows, atlas, conditions, divisible=True)
    assert max(bps[hop] / rates[hop] for hop in atlas.hops) <= 1.01 * bound


rates_of_paths = st.lists(st.floats(0.05, 1.0), min_size=2, max_size=8)


@given(rates_of_paths)
def test_one_operation_levels_the_times(rates):
    """Paths of steady rates finish together after one correction, and are then left alone."""
    weights = tuple(1 / len(rates) for _ in rates)
    times = [weight / rate for weight, rate in zip(weights, rates, strict=True)]
    after = reweigh(weights, times, min_gain=0.01, least=0.0)
    again = [weight / rate for weight, rate in zip(after, rates, strict=True)]
    assert sum(after) == pytest.approx(1)
    assert max(again) <= 1.011 / sum(rates)
    assert reweigh(after, again, min_gain=0.01, least=0.0) == pytest.approx(after)


def test_a_small_difference_changes_nothing():
    """Within the dead band the weights stay to the bit, so that noise does not shake them."""
    assert reweigh((0.5, 0.5), (1.0, 1.04)) == (0.5, 0.5)
    assert reweigh((0.5, 0.5), (1.0, 2.0)) != (0.5, 0.5)


def test_a_qp_that_did_not_finish_is_spared():
    """What did not finish gets nothing, what has nothing stays so, and what is slow keeps a little to show recovery."""
    assert reweigh((0.5, 0.25, 0.25, 0.0), (None, 1.0, 1.0, None)) == (0.0, 0.5, 0.5, 0.0)
    slow = reweigh((0.5, 0.5), (1.0, 1000.0), least=0.02)
    assert slow[1] == pytest.approx(0.02, rel=0.05)


def test_connections_that_share_a_slow_uplink_agree_in_two_operations():
    """Eight connections over eight uplinks, one of a quarter rate: after two operations all are at the optimum."""
    uplinks = [1.0] * 7 + [0.25]
    weights = [tuple([1 / 8] * 8)] * 8
    for _ in range(2):
        # All connections have the same weights, so each gets an eighth of every uplink.
        times = [[weight * 8 / rate for weight, rate in zip(row, uplinks, strict=True)] for row in weights]
        weights = [reweigh(row, took) for row, took in zip(weights, times, strict=True)]
    worst = max(8 * weight / rate for weight, rate in zip(weights[0], uplinks, strict=True))
    assert worst == pytest.approx(8 / sum(uplinks), rel=0.01)


@pytest.mark.parametrize(
    ("weights", "times", "message"),
    [((1.0,), (1.0, 2.0), "give each QP's weight"), ((1.0,), (0.0,), "above zero"), ((1.0,), (None,), "has finished")],
)
def test_times_without_sense_are_refused(weights, times, message):
    """What does not fit together is refused."""
    with pytest.raises(UsageError, match=message):
        reweigh(weights, times)
