"""When the rail monitor probes, with stand-ins for rails and edges."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from c4bench.collective.edges import ReceivingPeer
from c4bench.collective.migration import FailureBroadcast, RailMonitor
from c4bench.collective.options import FailureTimeouts
from c4bench.collective.rail import RailState
from c4bench.collective.rail_protocols import SilenceQuery

QUIET_NS = round(FailureTimeouts().quiet_s * 1e9)


class Rail:
    """Silent for `silence_ns`, until it is probed and for as long as nobody answers."""

    def __init__(self, nic, silence_ns):
        self.nic, self.silence_ns = nic, silence_ns
        self.usable, self.probing, self.probes, self.awaited = True, False, 0, 0
        self.state, self.port = RailState.UP, SimpleNamespace(active=True)

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
def sent():
    """The ranks that are told, of eight."""
    return []


@pytest.fixture
def monitor(rails, sent):
    """It watches one sending edge of rank 6 with these rails."""
    broadcast = FailureBroadcast(6, 8, lambda rank, announce: sent.append((rank, announce)))
    edge = SimpleNamespace(rails=rails)
    edges = SimpleNamespace(all=[edge], rails=lambda _=RailState.UP: [(edge, rail) for rail in rails])
    return RailMonitor(edges, FailureTimeouts(), None, broadcast, [], [])


def test_silence_is_asked_of_all_nics_at_once(monitor, rails):
    """One silent NIC causes probes of all NICs at once, also of idle ones."""
    monitor.tick(QUIET_NS)
    assert [rail.probes for rail in rails] == [1, 1, 1]


def test_who_is_asked_already_is_not_asked_again(monitor, rails):
    """While the silent rail's probe is in flight, rails that have answered are not probed again."""
    monitor.tick(QUIET_NS)
    rails[1].probing = rails[2].probing = False
    monitor.tick(QUIET_NS)
    assert [rail.probes for rail in rails] == [1, 1, 1]


def test_nobody_is_asked_while_all_are_heard(monitor, rails):
    """Without silence there are no probes."""
    rails[0].silence_ns = QUIET_NS // 2
    monitor.tick(QUIET_NS)
    assert [rail.probes for rail in rails] == [0, 0, 0]


def test_silence_has_all_ranks_ask(monitor, sent):
    """Silence is broadcast to ranks at doubling distances, and not again soon after."""
    monitor.tick(QUIET_NS)
    assert sent == [(7, SilenceQuery()), (0, SilenceQuery()), (2, SilenceQuery())]
    monitor.tick(2 * QUIET_NS)
    monitor.on_silence_query(3 * QUIET_NS)
    assert len(sent) == 3


def test_what_others_have_noticed_is_asked_and_passed_on(monitor, rails, sent):
    """Another rank's broadcast causes probes of all NICs; a duplicate of it does nothing."""
    rails[0].silence_ns = 0
    monitor.on_silence_query(QUIET_NS)
    assert ([rail.probes for rail in rails], [rank for rank, _ in sent]) == ([1, 1, 1], [7, 0, 2])
    for rail in rails:
        rail.probing = False
    monitor.on_silence_query(QUIET_NS)
    assert ([rail.probes for rail in rails], len(sent)) == ([1, 1, 1], 3)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13])
def test_word_reaches_every_rank(size):
    """Any rank's broadcast reaches all n ranks in log2(n) steps."""
    ranks = [FailureBroadcast(rank, size, lambda to, _: step.add(to)) for rank in range(size)]
    on_silence_query = {0}
    step = set()
    for _ in range(max(1, (size - 1).bit_length())):
        for rank in sorted(on_silence_query):
            ranks[rank].announce(0)
        on_silence_query |= step
    assert on_silence_query == set(range(size))


@pytest.mark.parametrize("needed", [True, False])
def test_a_peer_that_sends_nothing_is_asked_less_and_less_often(needed):
    """After the quiet time, then after twice as long each time, up to a second; only where data is still to come."""
    receiver = SimpleNamespace(complete=not needed)
    edge = ReceivingPeer(3, [Rail(0, 0)], {0: receiver}, quiet_s=FailureTimeouts().quiet_s)
    edges = SimpleNamespace(all=[edge], rails=lambda _=RailState.UP: [])
    monitor = RailMonitor(edges, FailureTimeouts(), None, None, [], [])
    monitor.begin(0)
    asked_ns, quiet_s = [], FailureTimeouts().quiet_s
    for now_ns in range(0, 5 * 10**9, 10**6):
        monitor.tick(now_ns)
        if edge.rails[0].probing:
            asked_ns.append(now_ns)
            edge.rails[0].probing = False
    waits_s = [(later - before) / 1e9 for before, later in pairwise([0, *asked_ns])]
    expected_s = [min(1.0, quiet_s * 2**number) for number in range(len(waits_s))]
    assert waits_s == pytest.approx(expected_s, abs=1e-3)
    assert (len(waits_s) > 3) == needed
    monitor.begin(5 * 10**9)
    assert (edge.last_message_ns, edge.probe_after_s) == (5 * 10**9, quiet_s)


class Broken:
    """Keeps which rails were given up, and takes them out of use."""

    def __init__(self):
        self.rails = []

    def broken(self, _edge, rail, why, _now_ns):
        rail.state, rail.usable = RailState.FENCED, False
        self.rails.append((rail.nic, why))


@pytest.fixture
def repaired(rails):
    """A monitor of these rails, and what it gives up."""
    repair = Broken()
    edge = SimpleNamespace(rails=rails)
    up = SimpleNamespace(all=[], rails=lambda _=None: [(edge, rail) for rail in rails if rail.state is RailState.UP])
    broadcast = FailureBroadcast(6, 8, lambda *_: None)
    return RailMonitor(up, FailureTimeouts(), repair, broadcast, [], []), repair


def test_a_probe_without_an_answer_fails_however_long_the_nic_retries(repaired, rails):
    """After 60 ms of ticks, though the NIC has reported nothing; rails that have answered stay."""
    monitor, repair = repaired
    monitor.tick(QUIET_NS)
    rails[1].probing = rails[2].probing = False
    allowed = round(0.06 / FailureTimeouts().tick_s)
    for _ in range(allowed):
        assert repair.rails == []
        monitor.tick(QUIET_NS)
    monitor.tick(QUIET_NS)
    assert repair.rails == [(0, "a probe has no answer")]


def test_a_rank_that_was_frozen_first_reads_its_answers(repaired, rails):
    """However late the next tick is, it is one tick."""
    monitor, repair = repaired
    monitor.tick(QUIET_NS)
    monitor.tick(QUIET_NS + 10**12)
    assert repair.rails == []
    assert rails[0].awaited == 1
