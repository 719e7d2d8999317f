"""The detector of all jobs: records in, in the order of arrival, and diagnoses out."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from c4bench.attribution.weigh import Cell
from c4bench.c4d.act.doubts import Doubts
from c4bench.c4d.act.job_detector import JobDetector
from c4bench.c4d.observe.batch import Batch
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.nic_counters import NicView
from c4bench.c4d.observe.record_validator import RecordValidator
from c4bench.c4d.observe.shared_fabric import KnownPaths, SharedFabric
from c4bench.c4d.thresholds import KEPT
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
    ProbingBegan,
    ProbingEnded,
    Record,
    TrafficArrival,
    TrafficCarried,
    TrainsTimed,
)
from c4bench.model.telemetry import CommRecord, RankRecord
from c4bench.model.window import Window


class TelemetryStore:
    """All jobs, and the clocks and NICs of their hosts.

    Communicators, processes and NICs are filed at once; operations and connections, which are many, wait for `flush`.
    """

    def __init__(self, validator: RecordValidator, paths: KnownPaths | None = None) -> None:
        self._paths = KnownPaths() if paths is None else paths
        self.jobs: dict[str, JobView] = {}
        self.devices: dict[str, NicView] = {}
        self.clocks = HostClocks()
        self._validator = validator
        self._job_of: dict[str, JobView] = {}
        self._on_host: dict[str, dict[str, tuple[int, ...]]] = {}
        # The communicators and processes each host listed last: filing them again would change nothing.
        self._listed: dict[str, tuple[CommRecord | None, ...]] = {}
        self._processes: dict[str, tuple[RankRecord, ...]] = {}
        self._waiting: dict[str, Window] = {}
        # Communicators that all their members have closed, the oldest first.
        self._closed: dict[str, None] = {}

    def ingest(self, window: Window) -> None:
        """File an admitted window."""
        if window.host in self._waiting:
            self.flush()
        self._waiting[window.host] = window
        self.clocks.arrived(window.host, window.start_s, window.end_s)
        if window.names.comms != self._listed.get(window.host):
            self._ingest_comms(window)
        if window.ranks != self._processes.get(window.host) or any(job.exits for job in self.jobs.values()):
            self._ingest_processes(window)
        self._ingest_nics(window)

    def flush(self) -> None:
        """File the operations and connections of all waiting windows."""
        if self._waiting:
            batch = Batch(tuple(self._waiting.values()))
            for job in self.jobs.values():
                job.ingest(batch, self._validator)
        self._waiting.clear()

    def retire(self) -> dict[str, list[str]]:
        """Forget the oldest closed communicators where there are too many; return them by job, which has to as well.

        What a fault was like may be asked for a while after it.
        """
        retired: dict[str, list[str]] = {}
        while len(self._closed) > KEPT:
            name = next(iter(self._closed))
            del self._closed[name]
            job = self._job_of.pop(name)
            for host in set(job.comms[name].hosts.values()):
                del self._on_host[host][name]
                self._listed.pop(host, None)
            retired.setdefault(job.job, []).append(name)
        return retired

    def _ingest_comms(self, window: Window) -> None:
        for record in window.comms:
            if record.comm not in self._job_of and self._validator.admit_comm(record, window.host):
                self._add_comm(record)
        listed = {record.comm for record in window.comms}
        self._note_closed(window, listed)
        if listed == self._on_host.get(window.host, {}).keys():
            self._listed[window.host] = window.names.comms

    def _add_comm(self, record: CommRecord) -> None:
        self._job_of[record.comm] = self._job(record.job)
        self._job_of[record.comm].add_comm(record)
        members: dict[str, list[int]] = {}
        for member in record.members:
            members.setdefault(member.host, []).append(member.rank)
        for host, own in members.items():
            self._on_host.setdefault(host, {})[record.comm] = tuple(own)
            self._listed.pop(host, None)

    def _note_closed(self, window: Window, listed: Collection[str]) -> None:
        """Note communicators that a host no longer lists: its members on that host have closed them.

        So has a process that ended without an error, whatever its last record says. One that failed has not.
        """
        for name, here in self._on_host.get(window.host, {}).items():
            job = self._job_of[name]
            comm = job.comms[name]
            if comm.closed:
                comm.closed.difference_update(here)
            if name not in listed:
                well = {rank.rank for rank in window.ranks if rank.job == job.job and _has_closed(rank)}
                comm.closed.update(member for member in here if comm.ranks[member] in well)
            if len(comm.closed) == len(comm.ranks):
                self._closed.setdefault(name)
            else:
                self._closed.pop(name, None)

    def _ingest_processes(self, window: Window) -> None:
        admitted = [rank for rank in window.ranks if self._validator.admit_rank(rank, window.host)]
        for rank in admitted:
            self._job(rank.job).ingest_process(rank, window.end_s)
        if len(admitted) == len(window.ranks):
            self._processes[window.host] = window.ranks

    def _ingest_nics(self, window: Window) -> None:
        for nic in window.nics:
            if self._validator.admit_nic(nic, window.host):
                self.devices.setdefault(nic.nic, NicView(window.host)).ingest(nic, window.end_s)

    def _job(self, name: str) -> JobView:
        if name not in self.jobs:
            self.jobs[name] = JobView(name, self._paths, self.devices)
        return self.jobs[name]


def _has_closed(rank: RankRecord) -> bool:
    """Whether a rank that no longer lists a communicator has closed it, rather than failed inside."""
    return rank.state == "running" or (rank.state == "exited" and rank.exit_code in {0, None})


class Detector:
    """C4D for all jobs whose windows it is fed.

    Detectors of jobs on one `fabric` share it. Rejected records are counted in `dropped`, by host and reason. One that
    is `explaining` keeps what was weighed for each of its findings.
    """

    shares = True

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
            case ProbingBegan() | HopsProbed() | DeliveriesCounted() | TrainsTimed() | ProbingEnded():
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
        found = [one for job in self._jobs.values() for one in job.explanations]
        for job in self._jobs.values():
            job.explanations.clear()
        return found

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
