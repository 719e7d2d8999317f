"""Times of other hosts, and limits held against figures that two clocks have made."""

from contextlib import nullcontext

import pytest

from c4bench.inject.protocol import Applied
from c4bench.model.fault import WitnessReport
from c4bench.model.measurement import Clock, Outcome, evaluate
from c4bench.pytest_plugin.fixtures import Clocks
from c4bench.record import Ledger, RunDirectory
from c4bench.remote.clock import ClockOffset
from c4bench.report import evaluate_run

FAULT = Applied("f", "nic.down", None, None, 100.0, 0.001, 130.0, WitnessReport(True, 100.25, {}, {}))


def test_a_fault_on_a_host_whose_clock_is_ahead_is_told_on_ours():
    """Onset, observation and end move together; a host whose clock nobody has read keeps its times."""
    clocks = Clocks({"h5": ClockOffset(40.0, 0.002)})
    with clocks.translated(nullcontext(FAULT), "h5") as fault:
        assert (fault.onset_s, fault.observed_s, fault.expires_s) == (60.0, 60.25, 90.0)
        assert fault.clock_error_s == 0.002
    with clocks.translated(nullcontext(FAULT), "h6") as fault:
        assert fault == FAULT
    assert (clocks.error_s("h5"), clocks.error_s("h6"), clocks.error_s("h6", "h5")) == (0.002, 0.0, 0.002)
    assert (clocks.ours("h5", 100.0), clocks.ours("h6", 100.0)) == (60.0, 100.0)


@pytest.mark.parametrize(
    ("value", "limit", "plus_minus", "outcome"),
    [
        (2.004, "<= 2", 0.0, Outcome.FAIL),
        (2.004, "<= 2", 0.005, Outcome.PASS),
        (2.006, "<= 2", 0.005, Outcome.FAIL),
        (1.996, ">= 2", 0.005, Outcome.PASS),
        (1.994, ">= 2", 0.005, Outcome.FAIL),
        (2.004, "== 2", 0.005, Outcome.PASS),
        (2.006, "== 2", 0.005, Outcome.FAIL),
        (2.0, "< 2", 0.001, Outcome.PASS),
    ],
)
def test_a_limit_fails_only_outside_the_interval(value, limit, plus_minus, outcome):
    """What the clocks cannot tell is not held against the fabric."""
    assert evaluate(value, limit, plus_minus) is outcome


def test_the_interval_is_recorded_and_judged_again(tmp_path):
    """A run's verdict from its directory alone is the one it had, interval and all."""
    ledger = Ledger(RunDirectory(tmp_path), "c4d.slow")
    ledger.measure("alarm_s", 2.004, "s", at_most=2.0, clock=Clock.MACHINE, plus_minus=0.005)
    verdict = evaluate_run(tmp_path)
    assert (verdict.outcome, verdict.changed) == (Outcome.PASS, 0)
    assert verdict.timings[0].plus_minus == 0.005
