"""The fewest probes that tell suspects apart, and what their answers leave."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.c4d.act.flows import ProbePaths, plan_probes, probe_outcomes, remaining_suspects
from c4bench.model.diagnosis import Component

_NICS = [f"h{host}/{nic}" for host in range(4) for nic in range(2)]
_PATH = Component("path", "h0/0>h1/0")
_SENDER, _RECEIVER = Component("nic", "h0/0", "tx"), Component("nic", "h1/0", "rx")
_RATE_BPS = 10e9


def _left(suspects, plan, faulty):
    return remaining_suspects(suspects, plan, [faulty in probe.crosses for probe in plan])


@given(st.permutations([_PATH, _SENDER, _RECEIVER]))
def test_ring_suspects_are_told_apart_by_two_probes(suspects):
    """Path, sender and receiver need two flows with a third NIC, and the answers leave the one that is faulty."""
    plan = plan_probes(suspects, _NICS, ProbePaths(), _RATE_BPS)
    assert len(plan) == 2
    for faulty in suspects:
        assert _left(suspects, plan, faulty) == {faulty}


def test_third_nic_shares_neither_suspect():
    """Triangulation goes by a NIC on another host than both ends."""
    plan = plan_probes([_PATH, _SENDER, _RECEIVER], _NICS, ProbePaths(), _RATE_BPS)
    for flow in plan:
        hosts = {flow.source.partition("/")[0], flow.destination.partition("/")[0]}
        assert len(hosts) == 2
        assert len(hosts & {"h0", "h1"}) == 1


def test_two_hosts_alone_cannot_tell():
    """Without a third NIC every flow crosses both ends, and no probe is wasted."""
    plan = plan_probes([_SENDER, _RECEIVER], ["h0/0", "h1/0"], ProbePaths(), _RATE_BPS)
    assert plan == ()


def test_link_and_switch_port_are_triangulated():
    """NIC, its cable and a spine's link are told apart where paths share them differently."""
    rail = {(a, b, 7): (f"up-{a}", "spine", f"down-{b}") for a in _NICS for b in _NICS if a[:2] != b[:2]}
    rail["h2/0", "h3/0", 7] = ("up-h2/0", "down-h3/0")
    suspects = [Component("link", "spine"), Component("link", "up-h0/0"), Component("nic", "h0/0", "tx"), _PATH]
    plan = plan_probes(suspects, _NICS, ProbePaths(rail), _RATE_BPS)
    # The cable and the NIC carry the same flows: only a look at their counters can tell.
    together = {Component("link", "up-h0/0"), Component("nic", "h0/0", "tx")}
    assert _left(suspects, plan, Component("link", "up-h0/0")) == together
    assert _left(suspects, plan, Component("link", "spine")) == {Component("link", "spine")}


def test_what_crosses_a_link_to_a_switch_clears_both():
    """Where a probe comes through, neither the link nor what it leads to is dead; another link may be."""
    rail = {(a, b, 7): ("spine",) for a in _NICS for b in _NICS if a[:2] != b[:2]}
    lost = Component("link", "lost")
    suspects = [Component("link", "spine"), Component("switch", "spine"), lost]
    plan = plan_probes(suspects, _NICS, ProbePaths(rail), _RATE_BPS)
    assert _left(suspects, plan, lost) == {lost}


@given(st.lists(st.sampled_from(_NICS), min_size=2, max_size=6, unique=True))
def test_probes_share_the_fabric_politely(nics):
    """However many flows are asked for, together they take 1 % of a NIC."""
    suspects = [Component("nic", nic, "tx") for nic in nics]
    plan = plan_probes(suspects, _NICS, ProbePaths(), _RATE_BPS)
    assert math.fsum(flow.rate_bps for flow in plan) <= 0.01 * _RATE_BPS * (1 + 1e-9)


def test_contradiction_leaves_nobody():
    """Answers that no single fault gives leave no suspect; missing ones refute nobody."""
    suspects = [_PATH, _SENDER, _RECEIVER]
    plan = plan_probes(suspects, _NICS, ProbePaths(), _RATE_BPS)
    assert remaining_suspects(suspects, plan, [True] * len(plan)) == frozenset()
    assert remaining_suspects(suspects, plan, [None] * len(plan)) == set(suspects)


def test_a_path_is_probed_on_the_way_that_traffic_takes():
    """Only the source port that is in use tells of a pair's path; of two that are known the other crosses its NICs."""
    used = {("h0/0", "h1/0"): {9}}
    paths = ProbePaths({("h0/0", "h1/0", port): (f"spine{port}",) for port in (8, 9)}, used)
    assert paths.flows(("h0/0", "h1/0")) == [("h0/0", "h1/0", 9)]
    assert _PATH in paths.touched(("h0/0", "h1/0", 9)).crosses
    assert _PATH not in paths.touched(("h0/0", "h1/0", 8)).crosses
    assert paths.flows(("h0/0", "h2/0")) == [("h0/0", "h2/0", 0)]


def test_acknowledgements_may_be_as_late_as_data():
    """A NIC that sends late delays what it receives as well, by the answers: that accuses no path."""
    suspects = [Component("nic", "h1/0", "tx"), Component("path", "h1/0>h2/0"), _PATH]
    plan = plan_probes(suspects, _NICS, ProbePaths(), _RATE_BPS)
    late = [suspects[0] in (*probe.crosses, *probe.returns) for probe in plan]
    assert remaining_suspects(suspects, plan, late) == {suspects[0]}


@pytest.mark.parametrize("others", [[_PATH], [_PATH, Component("path", "h0/0>h2/0")]])
def test_where_one_suspect_could_make_all_probes_slow_another_is_sent(others):
    """A last probe crosses none of the suspects, as a reference for the others."""
    plan = plan_probes([_SENDER, *others], _NICS, ProbePaths(), _RATE_BPS)
    assert [bool(flow.crosses) for flow in plan] == [True] * len(others) + [False]
    assert plan[-1].returns == ()


@given(times=st.floats(1.1, 10.0), best=st.floats(0.96, 1.0))
def test_a_probe_is_bad_if_it_is_as_slow_as_what_is_sought(times, best):
    """What is nearer to the fault than to the best probe is bad; what failed is; busy probes tell nothing."""
    assert probe_outcomes([best, best / times, 0.0], times) == (False, True, True)
    busy = 0.99 / math.sqrt(times)
    assert probe_outcomes([busy, busy / 2], times) == (None, None)
