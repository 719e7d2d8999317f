"""Detection: what judges the telemetry of attempts. Here in this process; a bus has another implementation."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from c4bench.attribution.weigh import Cell
from c4bench.c4d.act.doubts import Doubts
from c4bench.c4d.detector import Detector
from c4bench.c4d.detectors import Judge, MakeJudge
from c4bench.c4d.observe.shared_fabric import SharedFabric
from c4bench.control.jobs.job import Job
from c4bench.control.state.archiving import Archiving
from c4bench.errors import RepeatedFailures
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.recording import Evaluated, PlannerRecord, Record
from c4bench.wire.messages import JobSpec


class Detection(Protocol):
    """What judges the attempts that it follows; records of other attempts are ignored.

    `dropped` counts rejected windows and records of each host by reason, `left_out` what came over a bus and could not
    be used.
    """

    dropped: defaultdict[str, Counter[str]]
    left_out: Counter[str]

    def obstacle(self) -> str:
        """Why nothing is judged; "" if nothing prevents it."""

    def follow(self, job: Job, now_s: float) -> None:
        """Evaluate this attempt's telemetry from now on."""

    def forget(self, attempt: str) -> None:
        """Follow an attempt that has ended no longer."""

    def ingest(self, attempt: str, record: Record) -> None:
        """Ingest a record of an attempt: its part of a host's window, or what one of its ranks reports."""

    def ingest_fabric(self, record: PlannerRecord) -> None:
        """Ingest what path planning has learnt about the fabric, for all attempts."""

    def evaluate(self, now_s: float) -> dict[str, list[Diagnosis]]:
        """New diagnoses by attempt."""

    def poll_benign(self) -> list[BenignSlowdown]:
        """Slowdowns without a fault that were explained since the last call."""

    def doubts(self, attempt: str) -> Doubts | None:
        """The findings about an attempt that probes may make more exact; None where there are none here."""

    def doubtful(self) -> list[str]:
        """The attempts with findings that probes may make more exact."""

    def cells(self, attempt: str) -> Mapping[Cell, float]:
        """The newest delay matrix of an attempt, seconds per byte; empty where there is none here."""

    def intervals_s(self, attempt: str) -> tuple[float, ...]:
        """The newest times between like operations of an attempt, seconds, oldest first; empty where none are here."""


def _raised(message: str, failure: Exception) -> None:  # noqa: ARG001  (as `on_failure` is called)
    raise failure


class _Followed(msgspec.Struct):
    """An attempt that is followed since `since_s`, its detector, and errors in evaluating it.

    `known` are its ranks and NICs as the fabric between them was recorded; those of some jobs come and go.
    """

    job: Job
    detector: Judge
    since_s: float
    archiving: Archiving | None
    failures: RepeatedFailures
    known: JobSpec | None = None

    def ingest(self, record: Record) -> list[Diagnosis]:
        """Pass a record to the detector; recording and archive have all of them in the same order."""
        self.note(record)
        return self.detector.ingest(record)

    def note(self, record: Record) -> None:
        """Record what the detector learns, also from others."""
        self.job.recording.append(record)
        if self.archiving:
            self.archiving.add(self.job.spec.id, self.since_s, record)

    def learn(self, record: Record) -> None:
        """What all detectors share has a new record; one that shares nothing ingests it."""
        self.note(record)
        if not self.detector.shares:
            self.detector.ingest(record)


class LocalDetection:
    """A detector in this process for each followed attempt.

    `on_failure` gets an error in evaluating an attempt, and what to say of it; unless it raises, other attempts follow.
    `judge` makes the detectors.
    """

    def __init__(
        self,
        archiving: Archiving | None = None,
        on_failure: Callable[[str, Exception], None] = _raised,
        judge: MakeJudge = Detector,
    ) -> None:
        self._archiving, self._on_failure, self._judge = archiving, on_failure, judge
        self._fabric = SharedFabric()
        self._followed: dict[str, _Followed] = {}
        self.dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.left_out: Counter[str] = Counter()

    def obstacle(self) -> str:
        """Why nothing is judged; "" if nothing prevents it."""
        return ""

    def follow(self, job: Job, now_s: float) -> None:
        """Evaluate this attempt's telemetry from now on."""
        detector, failures = self._judge(self._fabric, self.dropped), RepeatedFailures(self._on_failure)
        followed = _Followed(job, detector, now_s, self._archiving, failures)
        self._followed[job.spec.id] = followed
        self._introduce(followed, now_s)

    def _introduce(self, followed: _Followed, now_s: float) -> None:
        """Record what is known of the fabric between an attempt's NICs."""
        followed.known = followed.job.spec
        for record in self._fabric.snapshot(now_s, {nic.name for nic in followed.known.nics}):
            followed.learn(record)

    def forget(self, attempt: str) -> None:
        """Drop the detector of an attempt that has ended."""
        self._followed.pop(attempt, None)

    def ingest(self, attempt: str, record: Record) -> None:
        """Ingest a record of an attempt: its part of a host's window, or what one of its ranks reports."""
        if attempt in self._followed:
            self._followed[attempt].ingest(record)

    def ingest_fabric(self, record: PlannerRecord) -> None:
        """Ingest what path planning has learnt about the fabric, for all attempts."""
        self._fabric.ingest(record)
        for followed in self._followed.values():
            followed.learn(record)

    def evaluate(self, now_s: float) -> dict[str, list[Diagnosis]]:
        """New diagnoses by attempt."""
        diagnoses = {attempt: self._evaluate(followed, now_s) for attempt, followed in self._followed.items()}
        return {attempt: new for attempt, new in diagnoses.items() if new}

    def _evaluate(self, followed: _Followed, now_s: float) -> list[Diagnosis]:
        """Evaluate one attempt, and record what its detector shares of its traffic in the recordings of all others.

        Their detectors read the same traffic from the shared fabric.
        """
        if followed.job.spec is not followed.known:
            self._introduce(followed, now_s)
        try:
            diagnoses = followed.ingest(Evaluated(now_s))
        except Exception as failure:
            followed.failures.note(f"{followed.job.spec.id} was not evaluated", failure)
            return []
        if self._archiving:
            self._archiving.add_findings(diagnoses)
        for traffic in self._fabric.poll():
            for other in self._followed.values():
                if other is not followed:
                    other.learn(traffic)
        return diagnoses

    def poll_benign(self) -> list[BenignSlowdown]:
        """Slowdowns without a fault that were explained since the last call."""
        return [slowdown for followed in self._followed.values() for slowdown in followed.detector.poll_benign()]

    def doubts(self, attempt: str) -> Doubts | None:
        """The findings about an attempt that probes may make more exact; None before it sends telemetry."""
        followed = self._followed.get(attempt)
        return followed.detector.doubts(attempt) if followed else None

    def doubtful(self) -> list[str]:
        """The attempts with findings that probes may make more exact."""
        return [attempt for attempt in self._followed if (doubts := self.doubts(attempt)) and doubts.any_open]

    def cells(self, attempt: str) -> Mapping[Cell, float]:
        """The newest delay matrix of an attempt, seconds per byte; empty before the first."""
        followed = self._followed.get(attempt)
        return followed.detector.cells(attempt) if followed else {}

    def intervals_s(self, attempt: str) -> tuple[float, ...]:
        """The newest times between like operations of an attempt, seconds, oldest first; empty before the first."""
        followed = self._followed.get(attempt)
        return followed.detector.intervals_s(attempt) if followed else ()
