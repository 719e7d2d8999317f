"""What faults of a switch's forwarding run there, and that each is undone to what was found."""

import contextlib
from types import SimpleNamespace

import pytest
from fakes import NOQUEUE, target

from c4bench.errors import UnhealthyError
from c4bench.inject.drivers import switch as driver
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.witness import forwarding as witness
from c4bench.inject.witness.base import Traffic
from c4bench.model.fault import FaultRequest, SwitchPort

NETNS = "/run/netns/leaf0"
PORT = SwitchPort("leaf0", "up1", NETNS)
TWO = (
    "10.9.0.0/24 proto static metric 20 nexthop via 10.0.0.1 dev up0 weight 1 nexthop via 10.0.0.3 dev up1 weight 2\n"
    "10.8.0.0/24 nexthop via 10.0.0.3 dev up1 weight 1 nexthop via 10.0.0.5 dev up2 weight 1\n"
)


def port(qdisc=NOQUEUE, **sections):
    """Port up1 of a leaf, whose next hop is 10.0.0.3."""
    found = {"route": "10.0.0.2/31 dev up1\n", "multipath": TWO, "neighbour": "10.0.0.3 lladdr 02:aa PERMANENT\n"}
    return InterfaceTarget(PORT, 9, target(qdisc).printed | found | sections)


def request(fault):
    return FaultRequest(fault, "leaf0", port="up1", netns=NETNS)


def lines(actions):
    """Commands as lines; all run where the port is."""
    assert {action.netns for action in actions} == {NETNS}
    return [" ".join(action.argv) for action in actions]


def test_a_member_of_an_ecmp_group_gets_a_next_hop_that_nobody_has():
    """The address that was fixed by hand comes back as it was; one that the kernel had resolved is resolved again."""
    wrong = "ip neighbour replace 10.0.0.3 lladdr 02:c4:de:ad:00:00 dev up1 nud permanent"
    plan = driver.ecmp_member(request("link.ecmp_member"), port())
    assert lines(plan.apply) == [wrong]
    assert lines(plan.revert) == ["ip neighbour replace 10.0.0.3 lladdr 02:aa dev up1 nud permanent"]
    assert plan.claims == ("neighbour of up1 in /run/netns/leaf0", "link of up1 in /run/netns/leaf0")
    resolved = port(route="10.7.0.0/16 via 10.0.0.3 dev up1\n", neighbour="10.0.0.7 lladdr 02:bb PERMANENT\n")
    plan = driver.ecmp_member(request("link.ecmp_member"), resolved)
    assert lines(plan.apply) == [wrong]
    assert lines(plan.revert) == ["ip neighbour del 10.0.0.3 dev up1"]
    with pytest.raises(UnhealthyError, match="leaf0/up1 has no next hop"):
        driver.ecmp_member(request("link.ecmp_member"), port(neighbour="", multipath=""))


def test_acknowledgements_are_known_by_their_opcode():
    """UDP to the RoCE port with the opcode of an acknowledgement, 28 bytes behind the start of the IP header."""
    plan = driver.acks_lost(request("link.acks_lost"), port())
    assert lines(plan.apply) == [
        "tc qdisc add dev up1 clsact",
        "tc filter add dev up1 egress protocol ip pref 7 u32 match ip dport 4791 0xffff match u8 0x11 0xff at 28 "
        "action drop",
    ]
    assert lines(plan.revert) == ["tc qdisc del dev up1 clsact"]
    assert plan.claims == ("ingress of up1 in /run/netns/leaf0",)


@pytest.mark.parametrize("kind", ["ingress", "clsact"])
def test_filters_of_others_are_left_alone(kind):
    """To delete the hook would delete them too, so the fault is refused with what to do."""
    taken = NOQUEUE[:-1] + f',{{"kind":"{kind}","handle":"ffff:"}}]'
    with pytest.raises(UnhealthyError, match=r"leaf0/up1 has its own filters; .*tc qdisc del dev up1"):
        driver.acks_lost(request("link.acks_lost"), port(taken))


def test_every_ecmp_route_through_the_port_is_left_with_it_alone():
    """All of its routes at once, and each comes back with all next hops and weights; their ports' links are claimed."""
    plan = driver.misrouted(request("switch.misrouted"), port())
    assert lines(plan.apply) == [
        "ip -4 route replace 10.9.0.0/24 proto static metric 20 via 10.0.0.3 dev up1",
        "ip -4 route replace 10.8.0.0/24 via 10.0.0.3 dev up1",
    ]
    assert lines(plan.revert) == [f"ip -4 route replace {line}".replace("  ", " ") for line in TWO.splitlines()]
    assert plan.sudden == 2
    assert plan.claims == tuple(f"link of {dev} in {NETNS}" for dev in ("up0", "up1", "up2"))


def test_a_port_in_no_ecmp_route_is_refused(switch):
    """Nothing could be misrouted to it; the message says how to find another."""
    switch.found = port(multipath="10.7.0.0/24 nexthop via 10.0.0.9 dev up8 weight 1\n")
    for make in (lambda asked: driver.misrouted(asked, switch.found), witness.PortShare):
        with pytest.raises(UnhealthyError, match=r"leaf0/up1 is in no ECMP route of the switch's own; choose a port"):
            make(request("switch.misrouted"))


class Switch:
    """A switch that sends flows by ports in proportion to `weights`; its clock is moved by sleeping."""

    def __init__(self):
        self.now_s, self.found = 50.0, port()
        self.weights, self.sent, self.entered = {"up0": 1, "up1": 1}, dict.fromkeys(("up0", "up1", "up2"), 100.0), []

    def sleep(self, seconds):
        self.now_s += seconds

    def time(self):
        return self.now_s

    def read(self, device):
        return Traffic(7, 7, 7, self.sent[device])

    @contextlib.contextmanager
    def network(self, netns):
        self.entered.append(netns)
        yield

    @contextlib.contextmanager
    def socket(self, *_kind):
        yield self

    def sendto(self, data, where):
        """One flow, to an address behind the route."""
        assert where == ("10.9.0.1", 33434)
        assert data
        for device, weight in self.weights.items():
            self.sent[device] += weight / sum(self.weights.values())


@pytest.fixture
def switch(monkeypatch):
    switch = Switch()
    monkeypatch.setattr(witness.interfaces, "examine", lambda _: switch.found)
    monkeypatch.setattr(witness, "Counters", lambda _: switch)
    monkeypatch.setattr(witness, "namespaces", switch)
    names = {"socket": switch.socket, "AF_INET": 2, "SOCK_DGRAM": 2}
    monkeypatch.setattr(witness, "socket", SimpleNamespace(**names))
    monkeypatch.setattr(witness, "time", switch)
    return switch


def test_misrouted_flows_are_seen_once_the_queues_are_empty(switch):
    """Flows that were queued for other ports leave first: the measurement is repeated, and counts from the first."""
    share = witness.PortShare(request("switch.misrouted"))
    assert share.before() == {"share": pytest.approx(0.5)}
    began_s = switch.now_s
    switch.weights = {"up0": 1, "up1": 9}

    def sleep(seconds):
        Switch.sleep(switch, seconds)
        if switch.now_s > began_s + 0.011:
            switch.weights = {"up1": 1}

    switch.sleep = sleep
    assert share.during(began_s) == ({"share": pytest.approx(1.0)}, began_s)
    switch.weights = {"up0": 1, "up1": 1}
    switch.sleep = lambda seconds: Switch.sleep(switch, seconds)
    assert share.after() == ({"share": pytest.approx(0.5)}, True)
    assert set(switch.entered) == {NETNS}


@pytest.mark.parametrize(
    ("before", "during", "seen"), [(1, 19.1, True), (1, 18.9, False), (20, 20, False), (1, 0.0, False)]
)
def test_almost_all_flows_must_leave_by_the_port(switch, before, during, seen):
    """19 of 20 flows are almost all; a port by which all left before shows nothing, nor does one by which none do."""
    share = witness.PortShare(request("switch.misrouted"))
    switch.weights = {"up0": 1 if before == 1 else 0, "up1": before}
    share.before()
    switch.weights = {"up0": 1, "up1": during} if during < 20 else {"up1": 1}
    evidence = share.during(switch.now_s)
    assert (evidence.observed_s is not None) == seen
    assert share.after().recovered is (not seen and before == 1)
