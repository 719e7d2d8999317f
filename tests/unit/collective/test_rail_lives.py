"""A rail is brought back by messages of its present life only, with stand-ins for its QPs."""

import pytest

from c4bench.collective.edges import PeerRails, ReceivingPeer
from c4bench.collective.options import FailureTimeouts
from c4bench.collective.rail import RailName, RailState, ReceivingRail, SendingRail
from c4bench.collective.rail_protocols import Accepted, RailOffer, RailRecovery, RailUp
from c4bench.verbs.transport import Remote

NAME = RailName(0, 1, 0)
DATA, PROBE = Remote("::9", 7), Remote("::9", 8)
HERE = Remote("::1", 3), Remote("::1", 4)
NOW_NS = 10**9


class StandIn:
    """A rail without QPs, in its third life, which notes what it is asked to do."""

    in_flight = 0  # a plain attribute, where a rail counts what its QPs carry
    life, source_port = 3, 0
    accepted = False
    good_ns = retry_ns = up_ns = 0
    penalty_s = 0.0

    def __init__(self, peer, state, in_flight=0):
        self.name, self.peer, self.state, self.in_flight = NAME, peer, state, in_flight
        self.done = []
        self.port = type("Port", (), {"active": True})

    def connect(self, *addresses):
        self.done.append(("connect", *addresses[:2]))

    def probe(self):
        self.done.append("probe")

    def here(self):
        return HERE


class Receiving(StandIn, ReceivingRail):
    """The end that grants."""


class Sending(StandIn, SendingRail):
    """The end that writes."""


def recovery(rail):
    """The recovery of a rank with this rail, and what it sends."""
    sent = []
    edge = ReceivingPeer(rail.peer, [rail], {})
    edges = PeerRails([edge], by_name={NAME: (edge, rail)})
    return RailRecovery(edges, FailureTimeouts(), lambda rank, message: sent.append((rank, message))), sent


@pytest.mark.parametrize(("life", "taken"), [(2, False), (3, False), (4, True), (7, True)])
def test_an_offer_is_for_a_life_to_come(life, taken):
    """An offer of this life or an earlier one, which arrives late, connects nothing."""
    rail = Receiving(0, RailState.DOWN)
    protocol, sent = recovery(rail)
    protocol.on_offer(RailOffer(NAME, life, DATA, PROBE), 0)
    assert rail.done == ([("connect", DATA, PROBE)] if taken else [])
    assert sent == ([(0, Accepted(NAME, life, *HERE))] if taken else [])
    assert (rail.life, rail.state) == ((life, RailState.TRIAL) if taken else (3, RailState.DOWN))


@pytest.mark.parametrize(("state", "in_flight"), [(RailState.UP, 0), (RailState.FENCED, 0), (RailState.DOWN, 1)])
def test_a_rail_in_use_takes_no_offer(state, in_flight):
    """What is up, or has messages in flight, is not connected anew."""
    rail = Receiving(0, state, in_flight)
    protocol, sent = recovery(rail)
    protocol.on_offer(RailOffer(NAME, 4, DATA, PROBE), 0)
    assert (rail.done, sent, rail.life) == ([], [], 3)


def test_an_offer_to_a_nic_without_a_link_is_not_taken():
    """The end whose port is down waits for a later offer."""
    rail = Receiving(0, RailState.DOWN)
    rail.port.active = False
    protocol, sent = recovery(rail)
    protocol.on_offer(RailOffer(NAME, 4, DATA, PROBE), 0)
    assert (rail.done, sent) == ([], [])


@pytest.mark.parametrize(("life", "taken"), [(2, False), (3, True), (4, False)])
def test_an_offer_is_accepted_in_its_own_life(life, taken):
    """Only the answer to the last offer connects the sending end, and only once."""
    rail = Sending(1, RailState.TRIAL)
    protocol, _ = recovery(rail)
    for _ in range(2):
        protocol.on_accepted(Accepted(NAME, life, DATA, PROBE), NOW_NS)
    assert rail.done == ([("connect", DATA, PROBE), "probe"] if taken else [])
    assert rail.accepted == taken


def test_an_answer_after_the_offer_was_given_up_is_ignored():
    """A rail that is down again waits for its next offer."""
    rail = Sending(1, RailState.DOWN)
    protocol, _ = recovery(rail)
    protocol.on_accepted(Accepted(NAME, 3, DATA, PROBE), NOW_NS)
    assert rail.done == []


@pytest.mark.parametrize(
    ("life", "state", "after"),
    [
        (3, RailState.TRIAL, RailState.UP),
        (2, RailState.TRIAL, RailState.TRIAL),
        (4, RailState.TRIAL, RailState.TRIAL),
        (3, RailState.FENCED, RailState.FENCED),
    ],
)
def test_a_rail_is_up_in_its_own_life(life, state, after):
    """That an earlier life was in use says nothing of this one, nor of a rail that has died since."""
    rail = Receiving(0, state)
    protocol, _ = recovery(rail)
    protocol.on_up(RailUp(NAME, life), NOW_NS)
    assert rail.state is after
