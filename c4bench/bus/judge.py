"""What a detector on the bus judges a job with: the job's part of each window, and C4D."""

import statistics
from collections import Counter, defaultdict

from c4bench.c4d.detector import Detector
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.c4d.thresholds import (
    BASELINE_SETTLED_SPANS,
    NAME_SPANS,
    POINT_SPANS,
    UNSURE_SPANS,
    WARM_UP_SPANS,
    span_s,
)
from c4bench.control.detection.telemetry import log_benign
from c4bench.control.detection.windows import WindowParts
from c4bench.control.jobs.job import Job
from c4bench.model.diagnosis import Component, Diagnosis
from c4bench.model.recording import FabricRecord, Record, TrafficRecord
from c4bench.model.window import Window
from c4bench.wire.messages import JobSpec

Dropped = defaultdict[str, Counter[str]]
# A floor is learnt from, and a departure is named after, no more spans of the delay matrix than these together.
MEMORY_SPANS = WARM_UP_SPANS + BASELINE_SETTLED_SPANS + UNSURE_SPANS + NAME_SPANS + POINT_SPANS


class JobJudge:
    """C4D for one attempt, which learns what is normal from the last `memory_s` seconds, or from more.

    Rejected records are counted in `dropped`, by host and reason.
    """

    def __init__(self, spec: JobSpec, fabric: SharedFabric, dropped: Dropped) -> None:
        self._parts, self._dropped = WindowParts({spec.id: Job(spec)}), dropped
        self._attempt, self._detector = spec.id, Detector(fabric, dropped)

    @property
    def memory_s(self) -> float:
        """So much telemetry shows another judge what is normal (s)."""
        intervals_s = self._detector.intervals_s(self._attempt)
        return MEMORY_SPANS * span_s(statistics.median(intervals_s) if intervals_s else None)

    @property
    def standing(self) -> tuple[Component, ...]:
        """What has been named and has not healed."""
        return tuple(sorted(self._detector.standing(self._attempt), key=str))

    def ingest(self, record: Record) -> list[Diagnosis]:
        """Ingest the next record; return new findings if it is an evaluation."""
        if not isinstance(record, Window):
            found = self._detector.ingest(record)
            for slowdown in self._detector.poll_benign():
                log_benign(slowdown)
            return found
        window, foreign = self._parts.own(record)
        if foreign:
            self._dropped[record.host]["foreign rank"] += foreign
        return [found for part in self._parts.parts(window).values() for found in self._detector.ingest(part)]

    def learns(self, at_s: float) -> bool:
        """Whether an evaluation now would close a span of the delay matrix."""
        return self._detector.closes_span(at_s)


class JobJudges:
    """Judges of several attempts, which share what is known about the fabric."""

    def __init__(self) -> None:
        self._fabric = SharedFabric()

    def judge(self, spec: JobSpec, dropped: Dropped) -> JobJudge:
        """A judge of an attempt, which counts what it rejects."""
        return JobJudge(spec, self._fabric, dropped)

    def share(self, record: FabricRecord) -> None:
        """Ingest what path planning or another detector has learnt about the fabric."""
        self._fabric.ingest(record)

    def traffic(self) -> list[TrafficRecord]:
        """What was seen of our own jobs' traffic since the last call."""
        return self._fabric.poll()
