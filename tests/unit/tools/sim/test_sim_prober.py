"""Simulated probes show what a NIC's fault does to packets that cross it, and nothing of packets that do not."""

import pytest

from c4bench.model.recording import ExpiringProbe
from c4bench.model.step import StepOp
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob
from tools.sim.prober import SimProber

JOB = SimJob(4, (StepOp("all_reduce", 1 << 20, 0.02),))
AT_S = 2.0
FLOWS = (("h0/0", "h1/0", 49152), ("h1/0", "h0/0", 49152), ("h2/0", "h3/0", 49152))


def _prober(factor, side, busy=0.0):
    return SimProber(JOB, [SimFault(SimFaultKind.NIC_RATE, 1, 1.0, factor=factor, side=side)], busy)


@pytest.mark.parametrize(("side", "slow"), [("rx", 0), ("tx", 1)])
def test_a_slow_nic_spreads_the_trains_that_cross_its_side(side, slow):
    """At a quarter of its rate trains over that side take four times as long from the first packet to the last."""
    timed = _prober(0.25, side).time_trains(FLOWS, AT_S)
    spread = [sum(train.s_per_byte for train in one.trains) / len(one.trains) * 10e9 / 8 for one in timed]
    assert spread == pytest.approx([4.0 if number == slow else 1.0 for number in range(3)])


def test_before_its_onset_a_fault_shows_nothing():
    """Trains are as fast as their NICs until the fault begins."""
    timed = _prober(0.25, "tx").time_trains(FLOWS, 0.5)
    assert {train.s_per_byte for one in timed for train in one.trains} == {8 / 10e9}


def test_nothing_arrives_over_a_dead_nic():
    """Numbered packets are lost that cross the dead side; others arrive, and no train of the former is timed."""
    prober = _prober(0.0, "rx")
    assert [(one.sent, one.data, one.acks) for one in prober.deliver(FLOWS, AT_S)] == [
        (100, 0, 0),
        (100, 100, 100),
        (100, 100, 100),
    ]
    assert [len(one.trains) for one in prober.time_trains(FLOWS, AT_S)] == [0, 10, 10]
    assert prober.deliver(FLOWS[:1], AT_S) == ()


@pytest.mark.parametrize("side", ["tx", "rx"])
def test_a_switch_answers_all_but_the_dead_nic(side):
    """A packet that expires needs its NIC both ways: to be sent, and to be answered."""
    probes = [ExpiringProbe(*flow, 1) for flow in FLOWS]
    assert _prober(0.0, side).expire(probes, AT_S) == ("10.0.0.254", "", "10.2.0.254")


def test_trains_of_a_busy_job_meet_its_data():
    """Of the trains that share arrives later which the job is busy for."""
    timed = _prober(1.0, "tx", busy=0.3).time_trains(FLOWS[2:] * 100, AT_S)
    late = [train.s_per_byte > 1.5 * 8 / 10e9 for one in timed for train in one.trains]
    assert sum(late) / len(late) == pytest.approx(0.3, abs=0.05)


def test_paths_cross_the_switch_and_are_told_once():
    """All pairs of NICs have a path at first; a connection's own port has one from the first window that shows it."""
    job = SimJob(4, (StepOp("all_to_all", 1 << 20, 0.02),))
    prober = SimProber(job, ())
    first = prober.all_paths()
    assert {path[:2] for path in first} == {(f"h{a}/0", f"h{b}/0") for a in range(4) for b in range(4) if a != b}
    assert ("h2/0", "h3/0", 49152, ("10.2.0.254", "10.3.0.1")) in first
    (tick,) = simulate(job, (), 0.1)
    flows = {(conn.source, conn.destination, conn.source_port) for window in tick.windows for conn in window.conns}
    assert {path[:3] for path in prober.new_paths(tick.windows)} == {flow for flow in flows if flow[2] != 49152}
    assert prober.new_paths(tick.windows) == ()
