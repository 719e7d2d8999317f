"""Recorded telemetry gives the verdict that the live detector gave."""

from c4d_telemetry import MIX, drive

from c4bench.c4d.detector import Detector
from c4bench.c4d.offline import detect
from c4bench.record.telemetry import read_telemetry, to_lines
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

_FAULT = SimFault(SimFaultKind.NIC_RATE, 5, 3.0, factor=0.25, side="rx")


def test_offline_is_the_same_as_live(tmp_path):
    """The same windows through JSON lines, in order of arrival, give the same diagnoses."""
    job = SimJob(8, MIX, seed=4)
    path = tmp_path / "job.jsonl"
    path.write_bytes(b"".join(to_lines(one for tick in simulate(job, [_FAULT], 6.0) for one in tick.windows)))
    recorded, torn = read_telemetry(path)
    assert torn == 0
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
