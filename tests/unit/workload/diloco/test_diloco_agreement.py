"""Which sites' contributions an outer step uses."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.workload.diloco.fabric_exchange import CatchUp, Decision, Report, decide


def reports(received, old=None, workers=2):
    """All workers of a site say the same; `old` are the fragments, of six, that a site has from turn 3, not turn 9."""
    old = old or {}
    return {
        site: [Report(frozenset({*sources, site}), tuple(3 if part in old.get(site, ()) else 9 for part in range(6)))]
        * workers
        for site, sources in received.items()
    }


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
    said[1][1] = Report(frozenset({1}), said[1][0].versions)
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
    assert decision == Decision((1, 2), (CatchUp(0, 1, (5,)), CatchUp(3, 1, (5,))))
    assert decide(reports(ALL, {3: [5]}), 4, 2) == Decision((0, 1, 2, 3), (CatchUp(3, 0, (5,)),))
    one_way = ALL | {3: [2], 0: [1, 2]}
    assert decide(reports(one_way, {3: [1, 5]}), 5, 2) == Decision((0, 1, 2), (CatchUp(3, 2, (1, 5)),))


def test_a_site_that_is_left_out_gets_the_fragment_that_the_others_agreed_on():
    """Sites 0 and 3 do not reach each other, and 3 is left out: site 1, which 3 reaches, sends the result."""
    seen = {0: [1, 2], 1: [0, 2, 3], 2: [0, 1, 3], 3: [1, 2]}
    assert decide(reports(seen), 4, 3) == Decision((0, 1, 2), (CatchUp(3, 1, (4,)),))


SITES = st.integers(1, 5)


@given(data=st.data(), count=SITES, quorum=st.integers(1, 5))
def test_the_group_is_connected_up_to_date_and_the_largest(data, count, quorum):
    """Any set of reports leads to a group that all its members can sum, and no larger one exists."""
    sites = range(count)
    received = {site: data.draw(st.sets(st.sampled_from(sites))) for site in sites}
    versions = {site: data.draw(st.tuples(*[st.integers(0, 2)] * 2)) for site in sites}
    newest = [max(versions[site][part] for site in sites) for part in range(2)]
    decision = decide({site: [Report(frozenset({*received[site], site}), versions[site])] for site in sites}, 1, quorum)

    def able(group):
        return all(versions[site][1] == newest[1] and set(group) <= received[site] | {site} for site in group)

    largest = max((len(g) for size in range(count + 1) for g in combinations(sites, size) if able(g)), default=0)
    assert able(decision.sites)
    assert len(decision.sites) == (largest if largest >= quorum else 0)
    for catch_up in decision.catch_ups:
        assert catch_up.donor in received[catch_up.site]
        assert catch_up.site in received[catch_up.donor]
        assert all(versions[catch_up.donor][part] == newest[part] for part in catch_up.fragments)
        assert not decision.sites or catch_up.donor in decision.sites


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_the_order_of_reports_does_not_matter(order):
    """Survivors may receive reports in any order, and decide alike."""
    seen = {0: [1], 1: [0, 2], 2: [1]}
    assert decide({site: reports(seen)[site] for site in order}, 0, 2).sites == (0, 1)
