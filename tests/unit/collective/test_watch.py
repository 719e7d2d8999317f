"""What a watch asks, and when; rails and edges stand in for those of a communicator."""

from types import SimpleNamespace

import pytest

from c4bench.collective.resilient.failure_broadcast import FailureBroadcast
from c4bench.collective.resilient.messages import SilenceQuery
from c4bench.collective.resilient.rail import State
from c4bench.collective.resilient.rail_monitor import RailMonitor
from c4bench.collective.resilient.timeouts import FailureTimeouts

QUIET_NS = round(FailureTimeouts().quiet_s * 1e9)


class Rail:
    """Silent for `silence_ns`, until it is probed and for as long as nobody answers."""

    def __init__(self, nic, silence_ns):
        self.nic, self.silence_ns = nic, silence_ns
        self.usable, self.probing, self.probes = True, False, 0

    def silent_ns(self, _now_ns):
        return self.silence_ns

    def probe(self):
        self.probes += not self.probing
        self.probing = True


@pytest.fixture
def rails():
    """One in use and silent for too long, one in use, one idle."""
    return [Rail(0, 2 * QUIET_NS), Rail(1, 0), Rail(2, 0)]


@pytest.fixture
def told():
    """The ranks that are told, of eight."""
    return []


@pytest.fixture
def watch(rails, told):
    """It watches one sending edge of rank 6 with these rails."""
    spread = FailureBroadcast(6, 8, lambda rank, word: told.append((rank, word)))
    edge = SimpleNamespace(rails=rails)
    edges = SimpleNamespace(all=[edge], rails=lambda _=State.UP: [(edge, rail) for rail in rails])
    return RailMonitor(edges, FailureTimeouts(), None, spread, [], [])


def test_silence_is_asked_of_all_nics_at_once(watch, rails):
    """One NIC that is silent has all others asked in the same moment, also those that were not in use."""
    watch.tick(QUIET_NS)
    assert [rail.probes for rail in rails] == [1, 1, 1]


def test_who_is_asked_already_is_not_asked_again(watch, rails):
    """As long as the silent one's probe is under way, those that have answered are left alone."""
    watch.tick(QUIET_NS)
    rails[1].probing = rails[2].probing = False
    watch.tick(QUIET_NS)
    assert [rail.probes for rail in rails] == [1, 1, 1]


def test_nobody_is_asked_while_all_are_heard(watch, rails):
    """Without silence there are no probes."""
    rails[0].silence_ns = QUIET_NS // 2
    watch.tick(QUIET_NS)
    assert [rail.probes for rail in rails] == [0, 0, 0]


def test_silence_has_all_ranks_ask(watch, told):
    """It is passed on to ranks at doubling distances, and soon after to nobody."""
    watch.tick(QUIET_NS)
    assert told == [(7, SilenceQuery()), (0, SilenceQuery()), (2, SilenceQuery())]
    watch.tick(2 * QUIET_NS)
    watch.heard(3 * QUIET_NS)
    assert len(told) == 3


def test_what_others_have_noticed_is_asked_and_passed_on(watch, rails, told):
    """All NICs are asked though none is silent here; the same word that comes another way changes nothing."""
    rails[0].silence_ns = 0
    watch.heard(QUIET_NS)
    assert ([rail.probes for rail in rails], [rank for rank, _ in told]) == ([1, 1, 1], [7, 0, 2])
    for rail in rails:
        rail.probing = False
    watch.heard(QUIET_NS)
    assert ([rail.probes for rail in rails], len(told)) == ([1, 1, 1], 3)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13])
def test_word_reaches_every_rank(size):
    """Whoever begins, all ranks are told in as many turns as the size has doublings."""
    ranks = [FailureBroadcast(rank, size, lambda to, _: turn.add(to)) for rank in range(size)]
    heard = {0}
    turn = set()
    for _ in range(max(1, (size - 1).bit_length())):
        for rank in sorted(heard):
            ranks[rank].word(0)
        heard |= turn
    assert heard == set(range(size))
