"""The witness of lost acknowledgements believes a silent switch only if it shows that it can answer."""

import socket
from types import SimpleNamespace

import pytest
from fakes import nic_request, target

from c4bench.errors import UnhealthyError
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.witness import forwarding
from c4bench.model.fabric import Nic

ACKNOWLEDGE, DATA = 0x11, 0x04


class Switch:
    """The switch at the far end: it answers six datagrams at once and then one a second, as Linux does by default."""

    def __init__(self, answers=6.0):
        self.now_s, self.lost, self.answers = 1000.0, set(), answers

    def sleep(self, seconds):
        self.now_s += seconds
        self.answers = min(6.0, self.answers + seconds)

    def arrives(self, _, opcode):
        if opcode in self.lost or self.answers < 1:
            return False
        self.answers -= 1
        return True


@pytest.fixture
def switch(monkeypatch):
    switch = Switch()
    monkeypatch.setattr(forwarding, "time", SimpleNamespace(sleep=switch.sleep, time=lambda: switch.now_s))
    monkeypatch.setattr(forwarding, "arrives", switch.arrives)
    monkeypatch.setattr(forwarding.interfaces, "examine", lambda _: target())
    return switch


@pytest.fixture
def witness(switch):  # noqa: ARG001
    return forwarding.AcksLost(nic_request("link.acks_lost"))


def test_lost_acknowledgements_are_seen_without_waiting(switch, witness):
    """All three measurements fit into the answers that a switch gives at once."""
    assert witness.before() == {"acks": 1.0, "data": 1.0}
    switch.lost = {ACKNOWLEDGE}
    assert witness.during(switch.now_s) == ({"acks": 0.0, "data": 1.0}, 1000.0)
    switch.lost = set()
    assert witness.after() == ({"acks": 1.0, "data": 1.0}, True)
    assert switch.now_s == 1000.0


def test_a_switch_without_an_answer_is_asked_again(switch, witness):
    """Where earlier probes took all answers, silence is no evidence; the fault counts from the later measurement."""
    switch.answers = 0.0
    assert witness.before() == {"acks": 1.0, "data": 1.0}
    switch.lost, switch.answers = {ACKNOWLEDGE}, 0.0
    values, observed_s = witness.during(switch.now_s)
    assert (values["acks"], values["data"]) == (0.0, 1.0)
    assert observed_s == switch.now_s > 1002.0


@pytest.mark.parametrize("lost", [set(), {DATA}, {ACKNOWLEDGE, DATA}])
def test_anything_but_lost_acknowledgements_alone_is_not_seen(switch, witness, lost):
    """Not where nothing is lost, nor where data is lost as well: that is another fault."""
    witness.before()
    switch.lost = lost
    assert witness.during(switch.now_s).observed_s is None


def test_acknowledgements_that_were_lost_before_are_no_fault_of_now(switch, witness):
    """A link that lost them already proves nothing, and has not recovered while it still does."""
    switch.lost = {ACKNOWLEDGE}
    witness.before()
    assert witness.during(switch.now_s).observed_s is None
    assert witness.after().recovered is False


@pytest.fixture
def loopback():
    """The loopback interface of the machine, as if it were a link to a switch."""
    found = target(route="default via 127.0.0.1 dev lo\n")
    return InterfaceTarget(Nic("h5", 0, "", "lo", "127.0.0.1", 1e9), 1, found.printed)


def test_a_datagram_arrives_where_its_port_is_unreachable(loopback, monkeypatch):
    """The far end's answer that nobody listens proves the arrival; where somebody does, there is no answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setattr(forwarding, "_ROCE_PORT", listener.getsockname()[1])
        assert not forwarding.arrives(loopback, ACKNOWLEDGE)
        assert listener.recv(64) == bytes([ACKNOWLEDGE]) + bytes(15)
    monkeypatch.setattr(forwarding, "_ANSWER_S", 1.0)
    assert forwarding.arrives(loopback, DATA)


def test_a_link_that_is_down_delivers_nothing(loopback, monkeypatch):
    """A datagram that cannot be sent has not arrived; it is no error."""

    class Down(socket.socket):
        def send(self, _data):
            raise OSError(100, "Network is down")

    monkeypatch.setattr(forwarding.socket, "socket", Down)
    assert not forwarding.arrives(loopback, DATA)


@pytest.mark.parametrize("sections", [{"neighbour": "", "route": ""}, {"address": '[{"mtu": 4200}]'}])
def test_a_port_that_cannot_be_probed_is_refused(switch, monkeypatch, sections):
    """Without a neighbour, or an address to send from, nothing could be witnessed."""
    monkeypatch.setattr(forwarding.interfaces, "examine", lambda _: target(**sections))
    with pytest.raises(UnhealthyError, match="h5/0 cannot be probed: it has no neighbour or no IPv4 address"):
        forwarding.AcksLost(nic_request("link.acks_lost"))
    assert switch.now_s == 1000.0
