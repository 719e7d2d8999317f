"""What a dead rail is attributed to, by what both ends and third hosts have found."""

from types import SimpleNamespace

import pytest

from c4bench.collective.rail import RailState
from c4bench.collective.rail_protocols import FailureAttribution, RailDeath
from c4bench.model.diagnosis import Component
from c4bench.model.telemetry import Member

PATH = Component("path", "h0/0>h1/0")


def ms(time_ms):
    return round((1000 + time_ms) * 1e6)


class Rank:
    """Rank 0 of as many hosts, with a rail to each of the others; those to `dead` ranks have died just now."""

    def __init__(self, hosts, dead):
        members = tuple(Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(hosts))
        self.rails = [
            SimpleNamespace(nic=0, peer=peer, probing=False, state=RailState.FENCED if peer in dead else RailState.UP)
            for peer in range(1, hosts)
        ]
        edges = SimpleNamespace(rails=self._in_state)
        self.sent, self.reported = [], []
        self.attribution = FailureAttribution(
            edges, 0, members, lambda *message: self.sent.append(message), self.reported.append
        )
        self.attribution.open(0, ms(0))

    def _in_state(self, state=None):
        return [(None, rail) for rail in self.rails if state in {None, rail.state}]

    def receive(self, rank, found, time_ms=70):
        """Rank `rank` has found these ranks' NICs out of reach, or not."""
        cells = tuple((f"h{rank}/0", f"h{other}/0", bad) for other, bad in found.items())
        self.attribution.on_rail_death(RailDeath(0, cells), ms(time_ms))

    def named(self, *times_ms):
        for time_ms in times_ms:
            self.attribution.tick(ms(time_ms))
        return [{loss.component, *loss.alternatives} for loss in self.reported]


def test_of_two_hosts_either_may_be_to_blame():
    """With nobody else to probe, both NICs and the path between them stay possible."""
    rank = Rank(2, {1})
    assert rank.named(70) == []
    assert rank.sent == [(1, RailDeath(0, (("h0/0", "h1/0", True),)))]
    rank.receive(1, {0: True})
    (named,) = rank.named(130)
    assert named == {Component("nic", "h0/0"), Component("nic", "h1/0")}


@pytest.mark.parametrize(("answers", "due_ms"), [(True, 120), (False, 1000)])
def test_the_other_end_of_a_dead_rail_is_waited_for(answers, due_ms):
    """The judgement comes when both ends have told, or after a second where one of them stays silent."""
    rank = Rank(2, {1})
    rank.named(70)
    if answers:
        rank.receive(1, {0: True})
    assert rank.named(due_ms - 1) == []
    assert len(rank.named(due_ms)) == 1


@pytest.mark.parametrize(
    ("dead", "accounts", "named"),
    [
        ({1}, {1: {0: True, 2: False}, 2: {0: False, 1: False}}, {PATH, Component("path", "h1/0>h0/0")}),
        ({1}, {1: {0: True, 2: False}}, {PATH, Component("path", "h1/0>h0/0")}),
        ({1}, {1: {0: True, 2: True}, 2: {0: False, 1: True}}, {Component("nic", "h1/0")}),
        ({1, 2}, {1: {0: True, 2: False}, 2: {0: True, 1: False}}, {Component("nic", "h0/0")}),
    ],
    ids=["path", "path, third silent", "remote NIC", "own NIC"],
)
def test_a_third_host_tells_a_nic_from_a_path(dead, accounts, named):
    """A NIC that reaches nobody is to blame itself; where both ends reach a third host, the path between them is."""
    rank = Rank(3, dead)
    rank.named(70)
    for other, found in accounts.items():
        rank.receive(other, found)
    (blamed,) = rank.named(130)
    assert blamed <= named
    assert blamed


def test_what_was_found_long_before_is_not_held_against_anybody():
    """Results of an earlier failure do not count when the next rail dies."""
    rank = Rank(3, {1})
    rank.receive(2, {0: True, 1: True}, time_ms=-2500)
    rank.named(70)
    rank.receive(1, {0: True})
    (blamed,) = rank.named(130)
    assert blamed == {Component("nic", "h1/0")}


def test_nothing_is_sent_while_probes_are_in_flight():
    """Results are those of ended probes: the ranks are told nothing before."""
    rank = Rank(3, {1})
    rank.rails[1].probing = True
    rank.named(70)
    assert rank.sent == []
    rank.rails[1].probing = False
    rank.named(80)
    assert [to for to, _ in rank.sent] == [1, 2]
