"""The fewest probes that tell suspects apart, and what their answers leave."""

import math

from hypothesis import given
from hypothesis import strategies as st

from c4bench.c4d.probes import crossing, plan_probes
from c4bench.model.diagnosis import Component

_NICS = [f"h{host}/{nic}" for host in range(4) for nic in range(2)]
_PATH = Component("path", "h0/0>h1/0")
_SENDER, _RECEIVER = Component("nic", "h0/0", "tx"), Component("nic", "h1/0", "rx")
_RATE_BPS = 10e9


def _shown(plan, crosses, faulty):
    return {(f.source, f.destination): faulty in crosses((f.source, f.destination)) for f in plan.flows}


@given(st.permutations([_PATH, _SENDER, _RECEIVER]))
def test_ring_suspects_are_told_apart_by_two_probes(suspects):
    """Path, sender and receiver need two flows with a third NIC, and the answers leave the one that is faulty."""
    crosses = crossing()
    plan = plan_probes(suspects, _NICS, crosses, _RATE_BPS)
    assert len(plan.flows) == 2
    assert all(len(group) == 1 for group in plan.inseparable)
    for faulty in suspects:
        assert plan.remaining(_shown(plan, crosses, faulty)) == {faulty}


def test_third_nic_shares_neither_suspect():
    """Triangulation goes by a NIC on another host than both ends."""
    plan = plan_probes([_PATH, _SENDER, _RECEIVER], _NICS, crossing(), _RATE_BPS)
    for flow in plan.flows:
        hosts = {flow.source.partition("/")[0], flow.destination.partition("/")[0]}
        assert len(hosts) == 2
        assert len(hosts & {"h0", "h1"}) == 1


def test_finding_elsewhere_is_kept_out_of_it():
    """A NIC with a finding of its own is no third party."""
    plan = plan_probes([_PATH, _SENDER, _RECEIVER], _NICS, crossing(), _RATE_BPS, avoid={"h2/0", "h2/1"})
    assert not any("h2/" in flow.source + flow.destination for flow in plan.flows)


def test_two_hosts_alone_cannot_tell_and_it_says_so():
    """Without a third NIC every flow crosses both ends: they stay together and no probe is wasted."""
    plan = plan_probes([_SENDER, _RECEIVER], ["h0/0", "h1/0"], crossing(), _RATE_BPS)
    assert plan.inseparable == (frozenset({_SENDER, _RECEIVER}),)
    assert plan.flows == ()


def test_link_and_switch_port_are_triangulated():
    """NIC, its cable and a spine's link are told apart where paths share them differently."""
    rail = {(a, b): (f"up-{a}", "spine", f"down-{b}") for a in _NICS for b in _NICS if a[:2] != b[:2]}
    rail["h2/0", "h3/0"] = ("up-h2/0", "down-h3/0")
    crosses = crossing(rail)
    suspects = [Component("link", "spine"), Component("link", "up-h0/0"), Component("nic", "h0/0", "tx"), _PATH]
    plan = plan_probes(suspects, _NICS, crosses, _RATE_BPS)
    # The cable and the NIC carry the same flows: only a look at their counters can tell.
    together = frozenset({Component("link", "up-h0/0"), Component("nic", "h0/0", "tx")})
    assert together in plan.inseparable
    assert plan.remaining(_shown(plan, crosses, Component("link", "spine"))) == {Component("link", "spine")}


@given(st.lists(st.sampled_from(_NICS), min_size=2, max_size=6, unique=True))
def test_probes_share_the_fabric_politely(nics):
    """However many flows are asked for, together they take 1 % of a NIC."""
    suspects = [Component("nic", nic, "tx") for nic in nics]
    plan = plan_probes(suspects, _NICS, crossing(), _RATE_BPS)
    assert math.fsum(flow.rate_bps for flow in plan.flows) <= 0.01 * _RATE_BPS * (1 + 1e-9)


def test_contradiction_leaves_nobody():
    """Answers that no single fault gives leave no suspect; missing ones refute nobody."""
    plan = plan_probes([_PATH, _SENDER, _RECEIVER], _NICS, crossing(), _RATE_BPS)
    assert plan.remaining({(f.source, f.destination): True for f in plan.flows}) == frozenset()
    assert plan.remaining({}) == {_PATH, _SENDER, _RECEIVER}
