"""Shares over fewer QPs that load every link as before."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.c4p.shares import fewest


def loads(share, of, links, demand, count):
    found = np.zeros(count)
    for qp, crossed in enumerate(links):
        for link in crossed:
            found[link] += share[qp] * demand[of[qp]]
    return found


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_the_same_loads_from_fewer_qps(seed):
    """Sums of connections and loads of links stay, and no more QPs carry than there are connections and links."""
    rng = np.random.default_rng(seed)
    groups, qps, count = (int(rng.integers(1, 8)) for _ in range(3))
    of = np.repeat(np.arange(groups), qps)
    links = rng.integers(count, size=(len(of), 2))
    demand = rng.uniform(1e9, 1e10, size=groups)
    share = rng.uniform(0.1, 1.0, size=len(of))
    share /= np.bincount(of, share)[of]
    found = fewest(share, of, links, demand, count)
    assert (found >= 0).all()
    assert np.bincount(of, found) == pytest.approx(np.ones(groups), abs=1e-6)
    assert loads(found, of, links, demand, count) == pytest.approx(loads(share, of, links, demand, count), rel=1e-6)
    assert np.count_nonzero(found) <= groups + count


def test_a_connection_that_fits_on_one_link_uses_one():
    """Four connections spread evenly over four equal links come to one link each."""
    of, links = np.repeat(np.arange(4), 4), np.tile(np.arange(4), 4)[:, None]
    found = fewest(np.full(16, 0.25), of, links, np.ones(4), 4)
    assert np.count_nonzero(found > 1e-6) == 4
    assert found.max() == pytest.approx(1.0)
