"""What a detector on the bus judges a job with: the job's part of each window, and C4D."""

from c4bench.bus.job_follower import Dropped
from c4bench.c4d.detector import Detector
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.control.jobs import Job
from c4bench.control.window_parts import WindowParts
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.recording import Record
from c4bench.model.window import Window
from c4bench.wire.messages import JobSpec


class JobJudge:
    """C4D for one attempt. Rejected records are counted in `dropped`, by host and reason."""

    def __init__(self, spec: JobSpec, fabric: SharedFabric, dropped: Dropped) -> None:
        self._parts, self._dropped = WindowParts({spec.id: Job(spec)}), dropped
        self._detector = Detector(fabric, dropped)

    def ingest(self, record: Record) -> list[Diagnosis]:
        """Ingest the next record; return new findings if it is an evaluation."""
        if not isinstance(record, Window):
            return self._detector.ingest(record)
        window, foreign = self._parts.own(record)
        if foreign:
            self._dropped[record.host]["foreign rank"] += foreign
        return [found for part in self._parts.parts(window).values() for found in self._detector.ingest(part)]
