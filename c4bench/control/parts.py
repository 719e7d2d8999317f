"""The parts of a master, and how they are composed: each is given what it needs, from the bottom up."""

import time
from collections.abc import Callable
from functools import partial

import msgspec

from c4bench.c4d.detector import Detector
from c4bench.c4d.detectors import MakeJudge
from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.control.agents import AgentConnections, AgentLiveness
from c4bench.control.authorisation import Authorisation
from c4bench.control.detection.detection import Detection, LocalDetection
from c4bench.control.detection.probing import DoubtProber, ProbeSweeper
from c4bench.control.detection.ras_reports import RasReports
from c4bench.control.detection.telemetry import DiagnosisDispatch, TelemetryLoop
from c4bench.control.jobs.attached import AttachedJobs
from c4bench.control.jobs.attempts import JobAttempts, JobService
from c4bench.control.jobs.job import Job
from c4bench.control.jobs.probe_jobs import ProbeJobs
from c4bench.control.jobs.rendezvous import Meetings, RendezvousService
from c4bench.control.pages.health import MasterHealth
from c4bench.control.paths.learning import PlannedFabric
from c4bench.control.paths.service import PathService
from c4bench.control.sessions import AgentSessions, RankRequests
from c4bench.control.state.archiving import Archiving
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.registry import JobRegistry
from c4bench.control.state.store import Store
from c4bench.control.steering import FleetState, HostRecheck, Steering
from c4bench.errors import report_bug
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import Diagnosed
from c4bench.model.recording import PlannerRecord
from c4bench.record.archive import Archive


class Parts(msgspec.Struct, frozen=True):
    """The parts of a master that its server runs, and that pages and tests read."""

    store: Store
    archiving: Archiving | None
    log: EventLog
    registry: JobRegistry
    agents: AgentConnections
    liveness: AgentLiveness
    rendezvous: RendezvousService
    meetings: Meetings
    attempts: JobAttempts
    jobs: JobService
    paths: PathService
    detection: Detection
    telemetry: TelemetryLoop
    steering: Steering
    recheck: HostRecheck
    sessions: AgentSessions
    health: MasterHealth


def compose(
    store: Store | None = None,
    fabric: PlannedFabric | None = None,
    archive: Archive | None = None,
    detection: Detection | None = None,
    judge: MakeJudge = Detector,
) -> Parts:
    """The parts of a master.

    With a `store` that is kept they continue where an earlier master was, and adopt the jobs that they find running.
    Without one they end such jobs, because whoever started them is gone. With a `fabric` they plan its flows from the
    start. With an `archive` they write to it what C4D ingests and finds. `detection` takes the place of a
    detector in this process, which `judge` makes for each attempt.
    """
    jobs: dict[str, Job] = {}
    store = store or Store(None)
    agents, log = AgentConnections(), EventLog(store)
    archiving = Archiving(archive) if archive else None
    detection = detection or LocalDetection(archiving, report_bug, judge)
    paths = _paths(jobs, agents, store, fabric, detection.ingest_fabric)
    liveness = AgentLiveness(store.state.roll, time.time())
    registry = JobRegistry(store, adopt=store.durable)
    rendezvous, meetings = RendezvousService(store), Meetings(jobs)
    attempts = JobAttempts(
        jobs, agents, store, registry, rendezvous, meetings, detection.follow, detection.forget, paths.forget
    )
    probes = ProbeJobs(registry, attempts)

    fleet = FleetState(registry, agents, attempts, paths)
    steering = Steering(registry, agents, attempts, fleet, probes, paths, log)
    sweeper, prober = ProbeSweeper(registry, detection, probes), DoubtProber(registry, detection, paths)
    service = JobService(jobs, registry, attempts, log, (steering.release, sweeper.release, prober.release))

    dispatch = DiagnosisDispatch(log, paths, (steering.consider, sweeper.consider))
    telemetry = TelemetryLoop(jobs, paths, liveness, detection, dispatch, prober.ask, log)

    authorisation = Authorisation(jobs, paths.live_flow, paths.nic)
    requests = RankRequests(jobs, rendezvous, meetings, detection, paths, authorisation)
    attached = AttachedJobs(jobs, registry, attempts, agents, paths)
    ras = RasReports(partial(_publish, log), store.save_ras)
    return Parts(
        store=store,
        archiving=archiving,
        log=log,
        registry=registry,
        agents=agents,
        liveness=liveness,
        rendezvous=rendezvous,
        meetings=meetings,
        attempts=attempts,
        jobs=service,
        paths=paths,
        detection=detection,
        telemetry=telemetry,
        steering=steering,
        recheck=HostRecheck(registry, fleet, probes, log),
        sessions=AgentSessions(
            agents, liveness, registry, attempts, telemetry, requests, authorisation, log, ras, attached
        ),
        health=MasterHealth(agents, liveness, registry, log, paths, detection, telemetry),
    )


def _paths(
    jobs: dict[str, Job],
    agents: AgentConnections,
    store: Store,
    fabric: PlannedFabric | None,
    publish: Callable[[PlannerRecord], None],
) -> PathService:
    """Path planning, with the paths that an earlier master has saved."""

    def keep(known: PathKnowledge) -> None:
        if store.durable:
            store.save_paths(known.to_json())

    paths = PathService(jobs, agents.peer, keep=keep, publish=publish)
    if (saved := store.paths()) is not None:
        paths.controller.recall(PathKnowledge.from_json(saved), time.time())
    if fabric is not None:
        paths.plan(fabric)
    return paths


def _publish(log: EventLog, time_s: float, diagnosis: Diagnosis) -> None:
    log.publish(Diagnosed(time_s, diagnosis))
