"""How many QPs a connection needs, by the rates of the links that it may cross."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.c4p.shares import MAX_QPS, needed_qps
from c4bench.model.fabric import USUAL_QPS

rates = st.floats(1e9, 4e11)


def over(*uplinks, source=1e10, destination=1e10):
    """Paths over one of several uplinks each, and the rates of their links."""
    capacities = {"leaf": source, "nic": destination} | {f"up{n}": rate for n, rate in enumerate(uplinks)}
    return [("leaf", f"up{n}", "nic") for n in range(len(uplinks))], capacities


@pytest.mark.parametrize(
    ("case", "qps"),
    [
        (over(1e10, 1e10), 4),
        (over(4e10, 1e10), 4),
        (over(9e9, 9e9, 9e9, 5e9), 8),
        (over(9e9, 9e9), 5),
        (over(1e10, 2.5e9), 16),
        (over(1e9), 16),
        (over(1e10, 0.0), 4),
        (over(5e9, destination=5e9), 4),
        (over(5e9, source=5e9), 4),
        (over(2.5e9, destination=5e9), 8),
        (([], {"up0": 1e9}), 4),
        (([("leaf", "up0", "nic")], {}), 4),
        (([("leaf", "up0", "nic")], {"up0": 5e9, "elsewhere": 1e10}), 8),
    ],
)
def test_thin_links_need_more_qps(case, qps):
    """Links at half the NICs' rate need twice the usual QPs; equal, dead and unrated links and slow NICs do not."""
    assert needed_qps(*case) == qps


@pytest.mark.parametrize(("port_bps", "qps"), [(5e9, 8), (1e10, 8), (2.5e9, 8)])
def test_each_port_of_a_bond_gets_the_usual_qps(port_bps, qps):
    """A bond of two ports carries half of a connection by each, whether or not the links above are faster."""
    paths = [(leaf, f"{leaf}-up", port) for leaf in ("leaf0", "leaf1") for port in ("nic@leaf2", "nic@leaf3")]
    capacities = {hop: port_bps for path in paths for hop in path if not hop.endswith("up")}
    assert needed_qps(paths, capacities | {"leaf0-up": 1e10, "leaf1-up": 1e10}) == qps


@given(st.lists(rates, min_size=1, max_size=8), rates, rates)
def test_every_link_gets_the_usual_qps(uplinks, source, destination):
    """Each link's part of the QPs, by its rate, is the usual number, with no QP too many, unless the bound is met."""
    qps = needed_qps(*over(*uplinks, source=source, destination=destination))
    thinnest = min(1.0, min(uplinks) / min(source, destination))
    assert USUAL_QPS <= qps <= MAX_QPS
    assert qps == MAX_QPS or qps * thinnest >= USUAL_QPS * (1 - 1e-9)
    assert qps == USUAL_QPS or (qps - 1) * thinnest < USUAL_QPS


@given(st.lists(rates, min_size=1, max_size=8), st.lists(rates, min_size=1, max_size=8))
def test_further_thin_links_never_lower_the_number(uplinks, more):
    """A connection with further paths needs no fewer QPs."""
    assert needed_qps(*over(*uplinks, *more)) >= needed_qps(*over(*uplinks))
