"""What a watch asks, and when; rails and edges stand in for those of a communicator."""

from types import SimpleNamespace

import pytest

from c4bench.collective.resilient.patience import Patience
from c4bench.collective.resilient.rail import State
from c4bench.collective.resilient.watch import Watch

QUIET_NS = round(Patience().quiet_s * 1e9)


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
def watch(rails):
    """It watches one sending edge with these rails."""
    edge = SimpleNamespace(rails=rails)
    edges = SimpleNamespace(all=[edge], rails=lambda _=State.UP: [(edge, rail) for rail in rails])
    return Watch(edges, Patience(), None, [], [])


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
