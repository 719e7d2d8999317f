"""After a first finding all NICs are probed: each slow one is found, and no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.c4d.act.sweep import plan_sweep, slow_nics, unexplained
from c4bench.model.fabric import Nic
from c4bench.model.recording import ProbeSweep

RATE_BPS = 1e10


def nics(hosts, each=1):
    return [Nic(f"h{host}", index, "", "", "", RATE_BPS, plane=index) for host in range(hosts) for index in range(each)]


def swept(found, slow, luck=None):
    """What a sweep of these NICs shows where sending or receiving takes so many times as long at some."""
    probes = tuple(probe for step in plan_sweep(found) for probe in step)
    shares = [
        1 / max(slow.get((probe.source, "tx"), 1.0), slow.get((probe.destination, "rx"), 1.0)) for probe in probes
    ]
    shares = [share * (luck(number) if luck else 1.0) for number, share in enumerate(shares)]
    return ProbeSweep(7.0, "job", probes, tuple(shares))


def both(nic, times):
    return {(nic, "tx"): times, (nic, "rx"): times}


@given(st.integers(4, 17), st.integers(1, 4))
def test_a_sweep_asks_little_of_every_nic(hosts, each):
    """Each NIC meets at least three others of its kind in either direction, one at a time, for 1 % of its time."""
    steps = plan_sweep(nics(hosts, each))
    sent, received = {}, {}
    for step in steps:
        ends = [end for probe in step for end in (probe.source, probe.destination)]
        assert len(set(ends)) == len(ends)
        for probe in step:
            sent.setdefault(probe.source, set()).add(probe.destination)
            received.setdefault(probe.destination, set()).add(probe.source)
            assert probe.source.partition("/")[2] == probe.destination.partition("/")[2]
            assert probe.rate_bps <= 0.02 * RATE_BPS
    names = {nic.name for nic in nics(hosts, each)}
    for met in (sent, received):
        assert met.keys() == names
        assert all(len(others) >= 3 for others in met.values())
    lasts_s = sum(step[0].duration_s for step in steps)
    busiest_s = max(sum(p.duration_s * p.rate_bps / RATE_BPS for s in steps for p in s if p.source == n) for n in names)
    assert busiest_s <= 0.0101 * lasts_s * (2 * (hosts // 2) / hosts if hosts % 2 else 1) * 1.25


@given(st.data())
def test_who_is_slow_is_named_and_nobody_else(data):
    """One or two NICs of eight, either side or both, down to a tenth slower, whatever a few hundredths of luck say."""
    found = nics(8)
    names = data.draw(st.lists(st.sampled_from([nic.name for nic in found]), min_size=0, max_size=2, unique=True))
    slow, wanted = {}, set()
    for name in names:
        times, side = data.draw(st.floats(1.12, 4.0)), data.draw(st.sampled_from(["", "tx", "rx"]))
        slow |= both(name, times) if not side else {(name, side): times}
        wanted.add(f"nic {name}" + (f" ({side})" if side else ""))
    luck = [data.draw(st.floats(0.98, 1.0)) for _ in range(24)]
    verdicts = slow_nics(swept(found, slow, luck.__getitem__))
    assert {str(verdict.component) for verdict in verdicts} == wanted


def test_what_is_known_hides_nobody():
    """Beside a NIC at a quarter of its rate, which traffic has shown, one at nine tenths is seen."""
    slow = both("h1/0", 4.0) | both("h6/0", 1.12)
    (verdict,) = slow_nics(swept(nics(8), slow), {"h1/0"})
    assert str(verdict.component) == "nic h6/0"
    assert verdict.figures["times_as_long"] == pytest.approx(1.12)
    assert "h6/0>" in verdict.evidence[0]


def test_nothing_is_said_while_another_job_is_in_the_way():
    """Where most probes came to less than the best, none tells anything."""
    assert slow_nics(swept(nics(8), {}, lambda number: 1.0 if number % 3 == 0 else 0.6)) == []


def test_a_probe_that_failed_is_no_slowness():
    """Hangs are found by other means."""
    heard = swept(nics(8), {}, lambda number: float(number > 3))
    assert slow_nics(heard) == []


def test_too_few_nics_are_not_swept():
    """With three of a kind nobody could say whose fault it is where one of them is bad."""
    assert plan_sweep(nics(3)) == ()


def test_what_begins_in_the_midst_of_a_sweep_calls_for_another():
    """A NIC that became slow after its first probe is named for the later ones; what no NIC explains is swept again."""
    ends = [(probe.source, probe.destination) for step in plan_sweep(nics(8)) for probe in step]
    begun = swept(nics(8), {}, lambda number: 0.8 if "h3/0" in ends[number] and number > 8 else 1.0)
    whole = swept(nics(8), both("h3/0", 1.25))
    assert [one.component.name for one in slow_nics(begun)] == ["h3/0"]
    late = swept(nics(8), {}, lambda number: 0.8 if "h3/0" in ends[number] and number > 18 else 1.0)
    assert unexplained(late)
    assert (len(slow_nics(whole)), unexplained(whole)) == (1, False)
