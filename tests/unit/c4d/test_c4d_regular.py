"""Judgements and windows that come a little early or late, as clocks let them."""

import pytest
from msgspec.structs import replace
from night_cases import at_night

from c4bench.c4d.detector import Detector
from c4bench.model.diagnosis import Component
from c4bench.model.step import StepOp
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

ONSET_S = 2.05
JOB = SimJob(6, (StepOp("all_reduce", 4 << 20, 0.02), StepOp("all_to_all", 4 << 20, 0.0)))
FAULT = SimFault(SimFaultKind.NIC_RATE, 2, ONSET_S, factor=0.25, side="rx")


LATE_S = [((0.0, 0.0, 0.0),), ((1e-6, 0.0, 0.0),), ((0.0, 0.0, 1e-6),)]
DRIFTS = (-1e-8, 1e-3, *at_night(-1e-3, 0.0, 1e-8))


def findings(fault, drift, late_s=(0.0,)):
    """What a master finds whose clock drifts against the hosts', of windows that end late by these in turn."""
    detector = Detector()
    found = []
    for tick in simulate(JOB, [fault], 4.0):
        for window in tick.windows:
            began, ended = (late_s[number % len(late_s)] for number in (window.sequence - 1, window.sequence))
            detector.ingest_window(replace(window, start_s=window.start_s + began, end_s=window.end_s + ended))
        found += detector.evaluate(tick.time_s * (1 + drift))
    return found


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_judgement_that_comes_a_little_early_makes_no_span_longer(drift):
    """Two judgements of 0.1 s are a span of 0.2 s, whether the clock shows a little less or more between them.

    Eight such spans are what a job needs to know its health, so a fault after 2 s is found; with spans of three
    judgements it would be taken for health.
    """
    (found,) = findings(FAULT, drift)
    assert found.component == Component("nic", "h2/0", "rx")
    assert found.alarmed_s < ONSET_S + 0.5


@pytest.mark.parametrize("late_s", [(0.0, 1e-6, 0.0), (2e-3, 1e-3, 0.0), *at_night(*LATE_S)])
def test_a_death_is_named_two_windows_after_it_was_seen(late_s):
    """Two windows are enough and three are not waited for, whichever of them end a little late."""
    (found,) = findings(SimFault(SimFaultKind.KILLED, 2, ONSET_S), 0.0, late_s)
    assert found.component == Component("rank", "job:2")
    assert found.alarmed_s == pytest.approx(2.1)
    assert found.named_s == pytest.approx(2.3)
