import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oneshot import link_loads, plan, unplaced
from property_examples import examples

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.evaluation import least_worst_load
from c4bench.c4p.evenness import jain_index, max_mean_ratio
from c4bench.c4p.knowledge.atlas import Atlas, PathTrace
from c4bench.errors import UsageError
from c4bench.model.fabric import Flow, Path

UNLIMITED_BPS = 1e18


def nic(host):
    return f"h{host}/0"


def hops(source, destination, spine, hosts_per_leaf):
    first, last = source // hosts_per_leaf, destination // hosts_per_leaf
    if first == last:
        return (f"in:{source}",)
    return f"in:{source}", f"up:{first}>{spine}", f"down:{spine}>{last}"


def atlas(hosts, hosts_per_leaf, spines):
    """An atlas in which every pair has its own order of spines over the source ports, and each spine two ports."""
    answers = [
        PathTrace(
            nic(source),
            nic(target),
            49152 + port,
            hops(source, target, (port + 3 * source + target) % spines, hosts_per_leaf),
        )
        for source in range(hosts)
        for target in range(hosts)
        if source != target
        for port in range(2 * spines)
    ]
    return Atlas.from_answers(answers)


def flow(name, source, target, demand_bps=1e9):
    return Flow(name, "job", nic(source), nic(target), demand_bps)


def capacities(known, rate_bps=10e9):
    """Fabric links at one rate; host links wide enough never to be the worst."""
    return {hop: UNLIMITED_BPS if hop.startswith("in:") else rate_bps for hop in known.hops}


@st.composite
def instances(draw, demands=(1e9, 2e9, 4e9)):
    """A random Clos of up to four leaves and four spines, and up to thirty flows across it."""
    leaves, per_leaf, spines = draw(st.integers(2, 4)), draw(st.integers(1, 3)), draw(st.integers(2, 4))
    hosts = leaves * per_leaf
    ends = st.tuples(st.integers(0, hosts - 1), st.integers(0, hosts - 1), st.sampled_from(demands))
    drawn = draw(st.lists(ends.filter(lambda end: end[0] != end[1]), min_size=1, max_size=30))
    flows = [flow(f"f{index}", *end) for index, end in enumerate(drawn)]
    return flows, atlas(hosts, per_leaf, spines)


def worst(flows, placements, rates):
    assert not unplaced(placements)
    return max(link_loads(flows, placements, rates).values())


@settings(max_examples=examples(20, 60), deadline=None)
@given(instances())
def test_worst_link_is_within_one_percent_of_the_optimum(instance):
    """On random Clos fabrics the most loaded link is at most 1 % above the proven optimum."""
    flows, known = instance
    rates = capacities(known)
    assert worst(flows, plan(flows, known, rates), rates) <= 1.01 * least_worst_load(flows, known, Conditions(rates))


@settings(max_examples=examples(15, 40), deadline=None)
@given(instances(), st.randoms(use_true_random=False))
def test_order_of_flows_does_not_matter(instance, rng):
    """Each flow gets the same path whatever order the flows are given in, and twice the same."""
    flows, known = instance
    shuffled = list(flows)
    rng.shuffle(shuffled)
    first = {placement.flow: placement.path for placement in plan(flows, known)}
    again = plan(shuffled, known)
    assert {placement.flow: placement.path for placement in again} == first
    assert [placement.flow for placement in again] == [flow.id for flow in shuffled]


@settings(max_examples=examples(15, 40), deadline=None)
@given(instances(), st.data())
def test_fixed_flows_never_move(instance, data):
    """A fixed flow keeps the path it has, however bad, and every path chosen for the others is one the atlas knows."""
    flows, known = instance
    stay = data.draw(st.sets(st.sampled_from([flow.id for flow in flows])))
    fixed = {flow.id: known.paths(flow.source, flow.destination)[0] for flow in flows if flow.id in stay}
    for one, placement in zip(flows, plan(flows, known, fixed=fixed), strict=True):
        assert placement.path == fixed.get(one.id, placement.path)
        assert placement.path in known.paths(one.source, one.destination)


def test_others_make_room_for_fixed_flows():
    """Flows that may move go around a fixed flow's links."""
    known = atlas(4, 2, 2)
    flows = [flow("a", 0, 2), flow("b", 1, 3)]
    held = known.paths("h0/0", "h2/0")[1]
    _, placement = plan(flows, known, fixed={"a": held})
    assert set(placement.path.hops).isdisjoint(held.hops)


def test_permutation_traffic_is_spread_perfectly():
    """Full-rate permutation traffic on a non-blocking Clos, which hashing cannot place, collides nowhere."""
    hosts, per_leaf = 64, 8
    known = atlas(hosts, per_leaf, spines=8)
    targets = list(range(hosts))
    random.Random(1).shuffle(targets)
    flows = [flow(f"f{source}", source, target) for source, target in enumerate(targets) if source != target]
    loads = link_loads(flows, plan(flows, known))
    assert max(loads.values()) == 1e9


def test_second_worst_link_counts_too():
    """With the worst link given by a flow that has no choice, the rest is still evened out."""
    answers = {("x", "y", 1): ("only",)}
    answers |= {("s", "d", port): (f"up{port}",) for port in (1, 2, 3)}
    flows = [flow("big", 0, 0, 9e9)] + [flow(f"f{index}", 1, 1) for index in range(6)]
    names = {"h0/0": ("x", "y"), "h1/0": ("s", "d")}
    known = Atlas.from_answers(
        {
            (source, source, port): hops
            for source, pair in names.items()
            for (*ends, port), hops in answers.items()
            if tuple(ends) == pair
        }
    )
    loads = link_loads(flows, plan(flows, known))
    assert loads == {"only": 9e9, "up1": 2e9, "up2": 2e9, "up3": 2e9}


def test_slow_links_carry_less():
    """With capacities, load is a share of each link's rate: a link of a quarter rate gets a fifth of the flows."""
    known = Atlas.from_answers({("h0/0", "h1/0", 1): ("fast",), ("h0/0", "h1/0", 2): ("slow",)})
    flows = [flow(f"f{index}", 0, 1) for index in range(10)]
    loads = link_loads(flows, plan(flows, known, {"fast": 40e9, "slow": 10e9}))
    assert loads == {"fast": 8e9, "slow": 2e9}


def test_dead_links_are_not_used():
    """A path over a hop without capacity is never chosen; a flow that has no other is left to ECMP and reported."""
    known = Atlas.from_answers(
        {("h0/0", "h1/0", 1): ("dead",), ("h0/0", "h1/0", 2): ("good",), ("h1/0", "h0/0", 1): ("dead",)}
    )
    flows = [flow("a", 0, 1), flow("b", 1, 0), flow("c", 2, 0)]
    placements = plan(flows, known, {"dead": 0.0, "good": 10e9})
    assert placements[0].path == Path(2, ("good",))
    assert unplaced(placements) == ("b", "c")
    assert {placement.path.source_port for placement in placements[1:]} == {0}


@pytest.mark.parametrize(
    ("flows", "fixed", "message"),
    [
        ([flow("a", 0, 1), flow("a", 1, 0)], {}, "same id"),
        ([flow("a", 0, 1)], {"b": Path(1, ())}, "fixed flow b"),
        ([flow("a", 0, 1, float("nan"))], {}, "flow a has no valid demand"),
    ],
)
def test_nonsense_is_refused(flows, fixed, message):
    """Input that contradicts itself is refused by name before anything is planned."""
    with pytest.raises(UsageError, match=message):
        plan(flows, atlas(2, 1, 2), fixed=fixed)


def test_a_hop_without_a_rate_is_refused():
    """Capacities that leave out a hop of the atlas are refused with the hop's name."""
    with pytest.raises(UsageError, match="hop down:0>0 has no capacity"):
        plan([flow("a", 0, 1)], atlas(2, 1, 2), {"in:0": 1e9})


def test_no_flows_no_placements():
    """An empty plan is a plan."""
    assert plan([], atlas(2, 1, 2)) == ()


def test_planned_load_is_as_even_as_its_indices_say():
    """MMR and JFI of an even placement are 1, of everything on one of four links 4 and a quarter."""
    assert max_mean_ratio([2.0, 2.0]) == jain_index([2.0, 2.0]) == 1.0
    assert max_mean_ratio([4.0, 0, 0, 0]) == 4.0
    assert jain_index([4e-200, 0, 0, 0]) == 0.25


@pytest.mark.parametrize("values", [[], [0.0, 0.0]])
def test_no_load_has_no_evenness(values):
    """Without load the indices are NaN, never a perfect score."""
    assert max_mean_ratio(values) != max_mean_ratio(values)
    assert jain_index(values) != jain_index(values)


@given(st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_indices_do_not_depend_on_the_unit(values, scale):
    """MMR and JFI are bounded as the draft says and the same in bit/s and Gbit/s."""
    scaled = [value * scale for value in values]
    assert max_mean_ratio(scaled) == pytest.approx(max_mean_ratio(values))
    assert jain_index(scaled) == pytest.approx(jain_index(values))
    assert 1 / len(values) - 1e-9 <= jain_index(values) <= 1 + 1e-9
    assert max_mean_ratio(values) >= 1 - 1e-9
