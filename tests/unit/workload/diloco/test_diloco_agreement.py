"""Which sites' contributions an outer step uses."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.workload.diloco.agreement import Report, decide


def reports(received, stale=None, workers=2):
    """Every worker of a site says the same."""
    said = {
        site: Report(frozenset(sources) | {site}, frozenset((stale or {}).get(site, ())))
        for site, sources in received.items()
    }
    return {site: [report] * workers for site, report in said.items()}


ALL = {0: [1, 2, 3], 1: [0, 2, 3], 2: [0, 1, 3], 3: [0, 1, 2]}


def test_all_sites_that_hear_each_other_contribute():
    """Without a fault every site is used, in order."""
    assert decide(reports(ALL), 0, 3).sites == (0, 1, 2, 3)


def test_a_site_cut_in_mid_fragment_is_left_out_by_all():
    """Site 3 is cut after site 0 has its contribution: nobody uses it, since others cannot."""
    seen = {0: [1, 2, 3], 1: [0, 2], 2: [0, 1], 3: []}
    assert decide(reports(seen), 0, 3).sites == (0, 1, 2)


def test_one_worker_without_a_shard_leaves_its_pair_of_sites_unconnected():
    """A contribution that only some workers of a site have received is none."""
    said = reports({0: [1], 1: [0]})
    said[1][1] = Report(frozenset({1}), frozenset())
    assert decide(said, 0, 2).sites == ()
    assert decide(said, 0, 1).sites == (0,)


def test_below_the_quorum_nothing_is_done():
    """Two pairs of sites that are cut from each other both fail with a quorum of three; with two the lower goes on."""
    seen = {0: [1], 1: [0], 2: [3], 3: [2]}
    assert decide(reports(seen), 0, 3).sites == ()
    assert decide(reports(seen), 0, 2).sites == (0, 1)


def test_a_site_out_of_date_is_brought_up_to_date_by_the_lowest_that_can():
    """What it contributes would be relative to other parameters; a donor is connected, and has the fragments itself."""
    decision = decide(reports(ALL, {3: [5], 0: [5]}), 5, 2)
    assert decision.sites == (1, 2)
    assert decision.donors == {0: 1, 3: 1}
    assert decide(reports(ALL, {3: [5]}), 4, 2).sites == (0, 1, 2, 3)
    assert decide(reports(ALL | {3: [2]} | {0: [1, 2]}, {3: [5]}), 5, 2).donors == {3: 2}


SITES = st.integers(1, 5)


@given(data=st.data(), count=SITES, quorum=st.integers(1, 5))
def test_the_group_is_connected_up_to_date_and_the_largest(data, count, quorum):
    """Any set of reports leads to a group that all its members can sum, and no larger one exists."""
    sites = range(count)
    received = {site: data.draw(st.sets(st.sampled_from(sites))) for site in sites}
    stale = {site: data.draw(st.sets(st.integers(0, 2), max_size=2)) for site in sites}
    decision = decide(reports(received, stale), 1, quorum)

    def able(group):
        return all(1 not in stale[site] and set(group) <= received[site] | {site} for site in group)

    largest = max((len(g) for size in range(count + 1) for g in combinations(sites, size) if able(g)), default=0)
    assert able(decision.sites)
    assert len(decision.sites) == (largest if largest >= quorum else 0)
    for site, donor in decision.donors.items():
        assert donor in received[site]
        assert not stale[donor] & stale[site]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_the_order_of_reports_does_not_matter(order):
    """Survivors may receive reports in any order, and decide alike."""
    seen = {0: [1], 1: [0, 2], 2: [1]}
    assert decide({site: reports(seen)[site] for site in order}, 0, 2).sites == (0, 1)
