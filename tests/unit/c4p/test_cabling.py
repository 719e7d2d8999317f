import pytest

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.evaluation import PathGap, gaps, no_route, shortages
from c4bench.c4p.knowledge.atlas import Atlas, PathTrace
from c4bench.c4p.knowledge.cabling import Link, infer, tiers
from c4bench.model.fabric import Flow
from tools.bench.fabrics import clos, planes


def every_pair(fabric):
    return fabric.atlas((a, b) for a in fabric.leaf_of for b in fabric.leaf_of if a.split("/")[0] != b.split("/")[0])


def names(fabric):
    """The switch that each hop of a synthetic fabric is an address of."""
    found = {}
    for hop in every_pair(fabric).hops:
        kind, _, rest = hop.partition(":")
        if kind != "out":
            target = rest.partition(">")[2]
            found[hop] = f"spine{target}" if kind == "up" else f"leaf{target}"
    return found


@pytest.mark.parametrize("fabric", [clos(8, 2, 3), planes(4, 2, 3)])
def test_switches_are_told_from_paths_alone(fabric):
    """Without any name, the addresses of one switch are found to be one, and those of two never."""
    truth = names(fabric)
    plain = {link.hop: link.target for link in infer(every_pair(fabric)) if link.hop in truth}
    assert plain.keys() == truth.keys()
    assert len({(plain[hop], truth[hop]) for hop in truth}) == len(set(truth.values())) == len(set(plain.values()))


def test_links_join_what_is_cabled():
    """Links are between NICs, leaves and spines as built, each under the address at its far end."""
    fabric = clos(4, 2, 1)
    assert infer(every_pair(fabric), names(fabric)) == (
        Link("h0/0", "leaf0", "in:h0/0>0"),
        Link("h1/0", "leaf0", "in:h1/0>0"),
        Link("h2/0", "leaf1", "in:h2/0>1"),
        Link("h3/0", "leaf1", "in:h3/0>1"),
        Link("leaf0", "h0/0", "out:h0/0"),
        Link("leaf0", "h1/0", "out:h1/0"),
        Link("leaf0", "spine0", "up:0>0"),
        Link("leaf1", "h2/0", "out:h2/0"),
        Link("leaf1", "h3/0", "out:h3/0"),
        Link("leaf1", "spine0", "up:1>0"),
        Link("spine0", "leaf0", "down:0>0"),
        Link("spine0", "leaf1", "down:0>1"),
    )


def test_tiers_count_from_the_nics():
    """NICs are tier 0, leaves 1, spines 2."""
    fabric = clos(4, 2, 2)
    found = tiers(infer(every_pair(fabric), names(fabric)), fabric.leaf_of)
    assert {node: tier for node, tier in found.items() if node in ("h0/0", "leaf1", "spine0")} == {
        "h0/0": 0,
        "leaf1": 1,
        "spine0": 2,
    }


def test_a_way_that_no_port_reaches_is_named():
    """A pair whose ports hash past one spine is told which, and how many QPs it can still keep apart."""
    fabric = clos(4, 2, 3)
    pairs = [("h0/0", "h2/0"), ("h1/0", "h3/0")]
    answers = [
        PathTrace(source, destination, 49152 + spine, fabric.hops(source, destination, spine))
        for source, destination in pairs
        for spine in range(3)
        if (source, spine) != ("h0/0", 1)
    ]
    (gap,) = gaps(Atlas.from_answers(answers))
    assert gap == PathGap("h0/0", "h2/0", 2, (("up:0>1", "down:1>1"),))
    assert str(gap).startswith(
        "h0/0 > h2/0: the probed source ports reach 2 of 3 paths, none leads over up:0>1 down:1>1"
    )
    assert "up to 2 QPs" in str(gap)


def test_full_coverage_has_no_gaps():
    """Pairs that reach every way, and pairs under one leaf, are not reported."""
    assert gaps(every_pair(clos(4, 2, 3))) == ()


@pytest.mark.parametrize(
    ("ends", "conditions", "reason"),
    [
        (("h0/0", "h9/0"), Conditions(), "the pair is not in the atlas"),
        (("h0/0", "h2/0"), Conditions(avoid=frozenset({"in:h0/0>0"})), "every known path crosses in:h0/0>0"),
        (
            ("h0/0", "h2/0"),
            Conditions(avoid=frozenset({"up:0>0", "down:1>1"})),
            "every known path crosses one of down:1>1 up:0>0",
        ),
        (("quiet", "h0/0"), Conditions(), "its probes were not answered"),
    ],
)
def test_no_route_says_why(ends, conditions, reason):
    """A flow without a way is told what stands in it."""
    fabric = clos(4, 2, 2)
    answers = [PathTrace("h0/0", "h2/0", n, fabric.hops("h0/0", "h2/0", n)) for n in range(2)]
    atlas = Atlas.from_answers([*answers, PathTrace("quiet", "h0/0", 1, (None,))])
    said = no_route(Flow("f", "a", *ends, 1.0), atlas, conditions)
    assert said.startswith(f"flow f has no route from {ends[0]} to {ends[1]} and is left to ECMP: {reason}")


def test_demands_above_capacity_are_told():
    """A link that is asked for more than it has is named with both figures; dead and idle ones are not."""
    assert shortages({"a": 15e9, "b": 5e9, "c": 40e9, "d": 1.0}, {"a": 10e9, "b": 10e9, "c": 10e9, "d": 0.0}) == (
        "hop c is asked for 40 Gbit/s and has 10: its flows get 25 % of their demand",
        "hop a is asked for 15 Gbit/s and has 10: its flows get 66.7 % of their demand",
    )
