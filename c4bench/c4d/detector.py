"""The detector of all jobs: records in, in the order of arrival, and diagnoses out."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from c4bench.attribution.localise import Cell
from c4bench.c4d.ingest.record_validator import RecordValidator
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.c4d.ingest.telemetry_store import TelemetryStore
from c4bench.c4d.job_detector import JobDetector
from c4bench.c4d.probing.doubts import Doubts
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Component, Diagnosis
from c4bench.model.hypothesis import Explanation
from c4bench.model.recording import (
    DeliveriesCounted,
    Evaluated,
    FailureReported,
    HopsProbed,
    JobReport,
    LinkRates,
    LinksMissing,
    LossReported,
    PathsLearnt,
    ProbeSweep,
    ProbingEnded,
    Record,
    TrafficArrival,
    TrafficCarried,
    TrainsTimed,
)
from c4bench.model.window import Window


class Detector:
    """C4D for all jobs whose windows it is fed.

    Detectors of jobs on one `fabric` share it. Rejected records are counted in `dropped`, by host and reason. One that
    is `explaining` keeps what speaks for and against each hypothesis behind its findings.
    """

    def __init__(
        self,
        fabric: SharedFabric | None = None,
        dropped: defaultdict[str, Counter[str]] | None = None,
        *,
        explaining: bool = False,
    ) -> None:
        self._explaining = explaining
        self._fabric = fabric or SharedFabric()
        self._validator = RecordValidator(dropped)
        self._store = TelemetryStore(self._validator, self._fabric.paths)
        self._jobs: dict[str, JobDetector] = {}

    @property
    def dropped(self) -> int:
        """Windows and records that were duplicated, reordered, late, torn, foreign or ran backwards."""
        return self.dropped_by_reason.total()

    @property
    def dropped_by_reason(self) -> Counter[str]:
        """The number of rejected windows and records by reason, for the health page."""
        self._store.flush()
        return sum(self._validator.dropped.values(), Counter())

    def ingest(self, record: Record) -> list[Diagnosis]:
        """Ingest the next record of a recording, live or stored; return new findings at each evaluation."""
        match record:
            case Window():
                self.ingest_window(record)
            case Evaluated():
                return self.evaluate(record.at_s) if self._validator.admit_time(record.at_s) else []
            case PathsLearnt() | LinksMissing() | LinkRates() | TrafficArrival() | TrafficCarried():
                self._fabric.ingest(record)
            case _:
                self._ingest_report(record)
        return []

    def ingest_window(self, window: Window) -> None:
        """Ingest one agent's window; never raises for what a window holds."""
        if self._validator.admit(window):
            self._store.ingest(window)

    def _ingest_report(self, record: JobReport) -> None:
        if record.job not in self._store.jobs:
            return
        job = self._job(record.job)
        match record:
            case FailureReported() if job.sits(record.comm, record.failure.rank, record.seat):
                job.ingest_failure(record.comm, record.failure, record.at_s)
            case LossReported() if job.sits(record.comm, record.loss.rank, record.seat):
                job.ingest_loss(record.comm, record.loss)
            case ProbeSweep():
                job.ingest_sweep(record)
            case HopsProbed() | DeliveriesCounted() | TrainsTimed() | ProbingEnded():
                job.doubts.ingest(record)

    def evaluate(self, now_s: float) -> list[Diagnosis]:
        """New findings at `now_s` on the master's clock; call it after each batch of windows."""
        self._store.flush()
        self._store.clocks.observe(now_s)
        for name, comms in self._store.retire().items():
            self._job(name).retire(comms)
        diagnoses: list[Diagnosis] = []
        for name in self._store.jobs:
            diagnoses += self._job(name).evaluate(now_s)
        return diagnoses

    def standing(self, job: str) -> set[Component]:
        """What has been named in `job` and has not healed; empty if the job is unknown."""
        return self._jobs[job].standing if job in self._jobs else set()

    def closes_span(self, now_s: float) -> bool:
        """Whether an evaluation now would close a span of a job's delay matrix; true where nothing is known yet."""
        return not self._store.jobs or any(self._job(name).closes_span(now_s) for name in self._store.jobs)

    def poll_benign(self) -> list[BenignSlowdown]:
        """Slowdowns without a fault that were explained since the last call."""
        return [slowdown for job in self._jobs.values() for slowdown in job.poll_benign()]

    def poll_explanations(self) -> list[Explanation]:
        """Why findings were named since the last call; empty unless it is explaining."""
        return [one for job in self._jobs.values() if job.explainer for one in job.explainer.poll()]

    def _job(self, name: str) -> JobDetector:
        if name not in self._jobs:
            self._jobs[name] = JobDetector(
                self._store.jobs[name], self._store.clocks, self._fabric, explaining=self._explaining
            )
        return self._jobs[name]

    def doubts(self, job: str) -> Doubts | None:
        """The findings about `job` that probes may make more exact; None if it is unknown."""
        return self._jobs[job].doubts if job in self._jobs else None

    def cells(self, job: str) -> Mapping[Cell, float]:
        """The newest delay matrix of `job`: seconds per byte by (source NIC, destination NIC); empty if unknown."""
        return self._jobs[job].cells if job in self._jobs else {}

    def has_baseline(self, job: str) -> bool:
        """Whether it is known what each connection of `job` that carries data costs in health."""
        return job in self._jobs and self._jobs[job].has_baseline

    def intervals_s(self, job: str) -> tuple[float, ...]:
        """The newest times between like operations of `job` (see `JobView`); empty if unknown."""
        return self._store.jobs[job].intervals_s if job in self._store.jobs else ()
