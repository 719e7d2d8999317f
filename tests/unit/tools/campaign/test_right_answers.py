"""Which answers about a fault are right is derived from the fabric's graph, and from nothing that C4D says."""

import pytest
from campaign_fabric import leaf_spine

from c4bench.model.diagnosis import Component, Syndrome
from tools.campaign.measurable import Measurable
from tools.campaign.trial_record import TrialRecord
from tools.campaign.truth import Truth

SLOW, HANG = Syndrome.COMMUNICATION_SLOW, Syndrome.COMMUNICATION_HANG
TWO, THREE = Measurable(leaf_spine(2)), Measurable(leaf_spine(3))
# The link of leaf0 and spine1, by either end, and what comes next on the way to leaf1.
UP, BACK, ONWARD, ONWARD_BACK = "172.16.0.6", "172.16.0.5", "172.16.1.5", "172.16.1.6"


def trial(fault, expected, target, addresses=(), **parameters):
    return TrialRecord("t", fault, expected, target, addresses, parameters, 0.0, 0.0, 9.0, 0.0, False, ())


def right(fabric, *what, **parameters):
    """The names of all links, NICs with their sides, paths, hosts and switches that are right answers."""
    truth = Truth(trial(*what, **parameters), fabric)
    nics = [nic for nics in fabric.nics.values() for nic in nics]
    found = [Component("nic", nic, side) for nic in nics for side in ("", "tx", "rx")]
    found += [Component("path", f"{a}>{b}") for a in nics for b in nics if a != b]
    found += [Component("host", host) for host in fabric.nics]
    links = [f"172.16.{leaf}.{n}" for leaf in range(3) for n in (1, 2, 5, 6)]
    links += [f"10.0.{host}.{end}" for host in range(6) for end in (1, 254)]
    found += [Component(kind, address) for kind in ("link", "switch") for address in links]
    return {str(one) for one in found if truth.equivalent(one)}


def test_a_slow_side_is_told_from_the_other_but_not_from_its_link():
    """A NIC that sends slowly, and the link that it sends over, meet the same transfers; its receiver meets others."""
    found = right(TWO, "nic.rate", SLOW, Component("nic", "h1/0", "tx"), direction="tx")
    assert found == {"nic h1/0 (tx)", "link 10.0.1.254", "link 10.0.1.1"}


def test_one_of_two_slow_sides_is_a_right_answer():
    """Of a NIC that is slow both ways, either side may be named; its name without a side too."""
    found = right(TWO, "nic.rate", SLOW, Component("nic", "h1/0"), direction="both")
    assert {"nic h1/0", "nic h1/0 (tx)", "nic h1/0 (rx)"} < found


def test_between_two_leaves_links_in_series_meet_the_same_transfers():
    """With two leaves whatever goes up to a spine goes on to the other leaf; with three it may go elsewhere."""
    slow = "link.rate", SLOW, Component("link", "leaf0/up1"), (BACK, UP)
    series = {f"link {address}" for address in (UP, BACK, ONWARD, ONWARD_BACK)}
    assert right(TWO, *slow, direction="tx") == series
    assert right(THREE, *slow, direction="tx") == {f"link {UP}", f"link {BACK}"}


@pytest.mark.parametrize("fabric", [TWO, THREE])
def test_expiring_packets_tell_links_in_series_apart(fabric):
    """Of a link that carries nothing, the switch before it answers and the one behind it does not."""
    dead = "link.blackhole", HANG, Component("link", "leaf0/up1"), (BACK, UP)
    assert right(fabric, *dead, direction="tx") == {f"link {UP}", f"link {BACK}"}


def test_a_link_that_loses_acknowledgements_answers_expiring_packets():
    """Only transfers show it, so links in series remain."""
    lost = "link.acks_lost", HANG, Component("link", "leaf0/up1"), (BACK, UP)
    assert right(TWO, *lost) == {f"link {address}" for address in (UP, BACK, ONWARD, ONWARD_BACK)}


def test_a_dead_spine_between_two_leaves_is_like_its_links():
    """No path leads over it any more, as if one of its two links were gone; three leaves leave one without."""
    addresses = ("172.16.0.6", "172.16.1.6", "172.16.2.6")
    down = "switch.down", HANG, Component("switch", "spine1")
    links = {f"link {address}" for address in (UP, BACK, ONWARD, ONWARD_BACK)}
    switches = {"switch 172.16.0.6", "switch 172.16.1.6"}
    assert right(TWO, *down, addresses[:2]) == links | switches
    assert right(THREE, *down, addresses) == switches | {"switch 172.16.2.6"}


def test_a_dead_nic_is_like_its_cable_and_a_crashed_host_like_nothing():
    """A host that is gone takes its agent with it; one whose data network is cut does not."""
    cable = {"link 10.0.2.1", "link 10.0.2.254"}
    nic = {"nic h2/0", "nic h2/0 (tx)", "nic h2/0 (rx)"}
    assert right(TWO, "nic.blackhole", HANG, Component("nic", "h2/0")) == nic | cable | {"host h2"}
    assert right(TWO, "host.data_cut", HANG, Component("host", "h2")) == nic | cable | {"host h2"}
    assert right(TWO, "host.crash", HANG, Component("host", "h2")) == {"host h2"}


def test_a_rank_is_itself_only():
    """Nothing is like a rank, least of all another one."""
    truth = Truth(trial("process.hang", Syndrome.NON_COMMUNICATION_HANG, Component("rank", "job:1")), TWO)
    assert truth.equivalent(Component("rank", "job:1"))
    assert not truth.equivalent(Component("rank", "job:2"))
    assert not truth.equivalent(Component("host", "h1"))
