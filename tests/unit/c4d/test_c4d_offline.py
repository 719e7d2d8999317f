"""Recorded telemetry gives the verdict that the live detector gave."""

import msgspec
from c4d_telemetry import MIX, drive

from c4bench.c4d.detector import Detector
from c4bench.c4d.offline import detect
from c4bench.model.telemetry import Window
from c4bench.sim.job import simulate
from c4bench.sim.model import SimFault, SimFaultKind, SimJob

_FAULT = SimFault(SimFaultKind.NIC_RATE, 5, 3.0, factor=0.25, side="rx")


def test_offline_is_the_same_as_live():
    """The same windows through JSON lines, in order of arrival, give the same diagnoses."""
    job = SimJob(8, MIX, seed=4)
    lines = [msgspec.json.encode(one) for tick in simulate(job, [_FAULT], 6.0) for one in tick.windows]
    recorded = (msgspec.json.decode(line, type=Window) for line in lines)
    assert detect(recorded) == drive(job, [_FAULT], 6.0) != []


def test_empty_recording_says_nothing():
    """No windows, no findings."""
    assert detect([]) == []


def test_detector_is_readable_afterwards():
    """A given detector keeps its matrix for the report, with the slow column in it."""
    detector = Detector()
    detect((one for tick in simulate(SimJob(8, MIX), [_FAULT], 6.0) for one in tick.windows), detector)
    cells = detector.cells("job")
    assert cells["h4/0", "h5/0"] > 2 * cells["h4/0", "h6/0"]
