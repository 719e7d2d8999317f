"""A NIC whose pause frames stop the switch's port to it is named by its own counters, whatever becomes slow for it."""

import msgspec
import pytest
from c4d_telemetry import MIX, remade
from night_cases import at_night

from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.nic_counters import NicView
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.telemetry import NicRecord
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

ONSET_S = 3.1
RANKS = 8


def found(faults, paused, *, waiting=None, duration_s=6.5, counted=True):
    """What is named while the NICs of these ranks stop their ports for a share of the time from the onset on.

    Those of the hosts `waiting` are stopped for a share of it. All NICs count frames; `counted`: they count times as
    well, as mlx5 and bnxt do and ice does not.
    """
    detector, named = Detector(), []
    for tick in simulate(SimJob(RANKS, MIX, seed=3), faults, duration_s):
        lasted_s = max(0.0, tick.time_s - ONSET_S)
        for window in tick.windows:
            share = paused.get(window.host, 0.0)
            sent_us = round(share * lasted_s * 1e6) if counted else None
            waited_us = round((waiting or {}).get(window.host, 0.0) * lasted_s * 1e6)
            counts = {"pause_sent": round(share * lasted_s * 3000), "pause_sent_us": sent_us}
            frames = NicRecord(f"{window.host}/0", "linkup", **counts, pause_received_us=waited_us)
            detector.ingest_window(remade(window, nics=(frames,)))
        named += detector.evaluate(tick.time_s)
    return named


def slow(rank, factor, side="rx", until_s=99.0):
    """The NIC of a rank receives, or sends, at a part of its rate."""
    return SimFault(SimFaultKind.NIC_RATE, rank, ONSET_S, until_s, factor, side)


def test_a_slow_nic_that_pauses_its_port_is_a_storm():
    """The port stands still for four fifths of the time: the NIC is named for that, once, not for slow transfers."""
    (diagnosis,) = found([slow(5, 0.2)], {"h5": 0.8})
    assert (diagnosis.component, diagnosis.cause) == (Component("nic", "h5/0"), Cause.PAUSE_STORM)
    assert diagnosis.syndrome is Syndrome.COMMUNICATION_SLOW
    assert diagnosis.figures["paused_share"] == pytest.approx(0.8, abs=0.15)


def test_what_waits_behind_a_storm_is_not_blamed():
    """Another NIC sends slowly because the switch pauses it in turn: the one that pauses is named, and no other."""
    (diagnosis,) = found([slow(2, 0.4, "tx")], {"h5": 0.9})
    assert (diagnosis.component, diagnosis.cause) == (Component("nic", "h5/0"), Cause.PAUSE_STORM)


def test_a_port_that_lets_nothing_through_is_a_storm():
    """The job hangs at the NIC: it is named for its pause frames, not as a stalled connection."""
    (diagnosis,) = found([slow(5, 0.0, until_s=float("inf"))], {"h5": 1.0})
    assert (diagnosis.component, diagnosis.cause) == (Component("nic", "h5/0"), Cause.PAUSE_STORM)
    assert diagnosis.syndrome is Syndrome.COMMUNICATION_HANG


@pytest.mark.parametrize(("paused", "counted"), [({"h5": 0.3}, True), ({"h5": 0.9}, False), *at_night(({}, True))])
def test_a_port_that_is_paused_now_and_then_is_no_storm(paused, counted):
    """A NIC that is slow is named as such if it stops its port for less time than not, or nobody knows for how long."""
    (diagnosis,) = found([slow(5, 0.2)], paused, counted=counted)
    assert (diagnosis.component, diagnosis.cause) == (Component("nic", "h5/0", "rx"), Cause.TRANSFER_SLOW)


def test_what_is_paused_in_turn_is_not_blamed():
    """A NIC that sends slowly, and is paused for a fifth of the time: the one whose pauses began it is named."""
    (diagnosis,) = found([slow(2, 0.6, "tx")], {"h5": 0.33}, waiting={"h2": 0.2})
    assert (diagnosis.component.name, diagnosis.cause) == ("h5/0", Cause.PAUSE_STORM)


@pytest.mark.parametrize(
    ("paused", "cause"),
    [
        ({"h5": 0.32}, Cause.PAUSE_STORM),
        *at_night(({"h5": 0.1}, Cause.TRANSFER_SLOW)),  # which explains a third of it
        ({"h2": 0.32}, Cause.TRANSFER_SLOW),  # which does not concern h5, as nothing pauses that
    ],
)
def test_a_nic_that_is_as_slow_as_its_pauses_make_it_is_named_for_them(paused, cause):
    """A port that is stopped for 30 % of the time carries 70 %: a NIC that receives so is no slow one, but pauses."""
    (diagnosis,) = found([slow(5, 0.7)], paused)
    assert (diagnosis.component.name, diagnosis.cause) == ("h5/0", cause)


def test_pause_frames_alone_are_no_finding():
    """A NIC that stops its port while nothing is slow harms nobody."""
    assert found([], {"h5": 0.9}, duration_s=5.0) == []


def test_counters_that_no_driver_can_have_are_dropped():
    """A record with a negative count is not ingested."""
    (tick,) = simulate(SimJob(RANKS, MIX, seed=3), (), 0.1)
    bad = msgspec.structs.replace(NicRecord("h0/0", "linkup"), pause_sent_us=-1)
    detector = Detector()
    detector.ingest_window(remade(tick.windows[0], nics=(bad,)))
    assert detector.dropped_by_reason == {"foreign NIC": 1}


@pytest.mark.parametrize(
    ("records", "pace"),
    [
        ([(0.0, 0), (0.2, 0), (0.4, 150), (0.5, 150), (0.6, 300), (0.7, 300)], 750),  # asked every second time
        ([(0.0, 0), (0.1, 30), (0.2, 60)], 300),
        ([(0.0, 5), (0.1, 5)], 0),
        ([(0.0, None), (0.1, 40)], 0),
        ([], 0),
    ],
)
def test_the_pace_of_a_counter_is_that_while_it_grows(records, pace):
    """A storm that begins after the onset, and whose counter is read now and then, is as dense as it is."""
    view = NicView("h5")
    for at_s, count in records:
        view.ingest(NicRecord("h5/0", "linkup", pause_sent_us=count), at_s)
    assert view.pace("pause_sent_us", 0.1) == pytest.approx(pace)
