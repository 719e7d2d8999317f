"""What is bad in a fabric that nobody has touched."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.c4d.act.pre_run_suspects import find_suspects
from c4bench.c4d.act.sweep import tournament

NICS = [f"h{number}/0" for number in range(8)]


def costs(**worse):
    """A healthy fabric with 1 % of noise, times what each cell is worse by."""
    cells = {
        (a, b): 1.0 + 0.01 * math.sin(7 * i + 3 * j) for i, a in enumerate(NICS) for j, b in enumerate(NICS) if a != b
    }
    for (a, b), cost in cells.items():
        cells[a, b] = (
            cost * worse.get("tx", {}).get(a, 1) * worse.get("rx", {}).get(b, 1) * worse.get("path", {}).get((a, b), 1)
        )
    return cells


@pytest.mark.parametrize(
    ("worse", "named"),
    [
        ({"tx": {"h3/0": 4}}, "nic h3/0 (tx)"),
        ({"rx": {"h3/0": 1.3}}, "nic h3/0 (rx)"),
        ({"tx": {"h3/0": 4}, "rx": {"h3/0": 4}}, "nic h3/0"),
        ({"path": {("h1/0", "h6/0"): 2}}, "path h1/0>h6/0"),
        ({"rx": {"h0/0": math.inf}}, "nic h0/0 (rx)"),
    ],
)
def test_the_bad_part_is_named(worse, named):
    """A slow or dead side of a NIC, a NIC, a path: each by itself, and nothing else beside it."""
    found = find_suspects("time a byte", costs(**worse), times=1.15)
    assert [suspect.component for suspect in found] == [named]
    assert ("dead" in str(found[0])) == ("h0/0" in named)


def test_a_healthy_fabric_has_no_suspect():
    """A per cent of noise is nobody's fault."""
    assert find_suspects("time a byte", costs(), times=1.15) == []


def test_near_pairs_are_not_compared_with_far_ones():
    """A round trip over more switches is longer, and no fault of the NICs at its ends."""
    far = {
        cell: cost * (1 if NICS.index(cell[0]) // 4 == NICS.index(cell[1]) // 4 else 2)
        for cell, cost in costs().items()
    }
    assert (
        find_suspects("round trip", far, times=1.5, group=lambda c: NICS.index(c[0]) // 4 == NICS.index(c[1]) // 4)
        == []
    )


@given(st.integers(2, 33))
def test_a_tournament_meets_every_pair_once_each_way_and_no_host_twice_in_a_round(count):
    """However many hosts there are."""
    hosts = [f"h{number}" for number in range(count)]
    rounds = tournament(hosts)
    met = [pair for round_ in rounds for pair in round_]
    assert sorted(met) == sorted((a, b) for a in hosts for b in hosts if a != b)
    assert all(len({name for pair in round_ for name in pair}) == 2 * len(round_) for round_ in rounds)
    assert len(rounds) <= 2 * count
