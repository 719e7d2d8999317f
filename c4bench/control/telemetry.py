"""The master's telemetry: windows of agents go in, and diagnoses and missing agents come out at fixed times."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial

import msgspec

from c4bench.attribution.localise import Cell
from c4bench.c4d.detector import Detector
from c4bench.c4d.detectors import Judge, MakeJudge
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.c4d.probing.doubts import Doubts
from c4bench.control.agent_liveness import AgentLiveness
from c4bench.control.archiving import Archiving
from c4bench.control.diagnosis_dispatch import DiagnosisDispatch, log_benign
from c4bench.control.evaluation_times import EvaluationTimes
from c4bench.control.event_log import EventLog
from c4bench.control.garbage import collect_in_pause
from c4bench.control.jobs import Job
from c4bench.control.path_service import PathService
from c4bench.control.periodic import Periodic
from c4bench.control.window_inbox import WindowInbox
from c4bench.control.window_parts import WindowParts
from c4bench.errors import RepeatedFailures
from c4bench.model.agent import WINDOWS_WITHIN
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import AgentMissing, SlowdownExplained
from c4bench.model.recording import Evaluated, PlannerRecord, Record
from c4bench.model.window import Window
from c4bench.verbs.ticks import Ticks

_logger = logging.getLogger(__name__)

_EVERY_S = 0.1
_PHASE = (1 + WINDOWS_WITHIN) / 2
# An evaluation that comes later than this (s) shows a master that has no time.
_LATE_S = 0.5


def _raised(message: str, failure: Exception) -> None:  # noqa: ARG001  (as `on_failure` is called)
    raise failure


class _Followed(msgspec.Struct):
    """An attempt that is followed since `since_s`, its detector, and errors in evaluating it."""

    job: Job
    detector: Judge
    since_s: float
    archiving: Archiving | None
    failures: RepeatedFailures

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


class Detection:
    """A detector for each followed attempt; records of other attempts are ignored.

    `windows` and `dropped` count the windows of each host, and the rejected records by reason. `window_bytes` are those
    of all messages with windows that came. `window_ends_s` is when each host's newest window ends, on the host's clock.
    `left_out` counts, by reason, what came over a bus and could not be used.
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
        self.windows: Counter[str] = Counter()
        self.window_bytes: Counter[str] = Counter()
        self.window_ends_s: dict[str, float] = {}
        self.dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.left_out: Counter[str] = Counter()

    def obstacle(self) -> str:
        """Why nothing is judged; "" if nothing prevents it."""
        return ""

    def drop(self, host: str, reason: str) -> None:
        """Count a window of a host that is not ingested."""
        self.dropped[host][reason] += 1

    def follow(self, job: Job, now_s: float) -> None:
        """Evaluate this attempt's telemetry from now on."""
        detector, failures = self._judge(self._fabric, self.dropped), RepeatedFailures(self._on_failure)
        followed = _Followed(job, detector, now_s, self._archiving, failures)
        self._followed[job.spec.id] = followed
        for record in self._fabric.snapshot(now_s, {nic.name for nic in job.spec.nics}):
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

    def cells(self, attempt: str) -> Mapping[Cell, float]:
        """The newest delay matrix of an attempt, seconds per byte; empty before the first."""
        followed = self._followed.get(attempt)
        return followed.detector.cells(attempt) if followed else {}

    def intervals_s(self, attempt: str) -> tuple[float, ...]:
        """The newest times between like operations of an attempt, seconds, oldest first; empty before the first."""
        followed = self._followed.get(attempt)
        return followed.detector.intervals_s(attempt) if followed else ()


class TelemetryLoop:
    """Passes windows to path planning and C4D, and diagnoses of C4D to `dispatch`.

    `evaluated_s` is the master's time of the newest evaluation, None before the first; `evaluations` says how long
    all have taken.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        paths: PathService,
        liveness: AgentLiveness,
        detection: Detection,
        dispatch: DiagnosisDispatch,
        log: EventLog,
    ) -> None:
        self._jobs, self._paths, self._liveness = jobs, paths, liveness
        self._detection, self._dispatch, self._log = detection, dispatch, log
        self._parts = WindowParts(jobs)
        self._inbox = WindowInbox(self.ingest, lambda host: self.drop(host, "overload"))
        self.evaluated_s: float | None = None
        self.evaluations = EvaluationTimes()

    def drop(self, host: str, reason: str) -> None:
        """Count a window of a host that is not ingested."""
        self._detection.drop(host, reason)

    def count_bytes(self, host: str, size_bytes: int) -> None:
        """Count a message with a window of a host, whatever becomes of it."""
        self._detection.window_bytes[host] += size_bytes

    def receive(self, window: Window) -> None:
        """A window has come from its host's agent; it is ingested while `run` runs."""
        self._inbox.put(window)

    async def ingest(self, window: Window) -> None:
        """Ingest a window from its host's agent."""
        host = window.host
        window, foreign = self._parts.own(window)
        if foreign:
            self._detection.dropped[host]["foreign rank"] += foreign
        await self._paths.ingest(window)
        self._detection.windows[host] += 1
        self._detection.window_ends_s[host] = window.end_s
        self._liveness.ingest(window)
        for attempt, part in self._parts.parts(window).items():
            await self._jobs[attempt].note_ranks(part.ranks)
            self._detection.ingest(attempt, part)

    async def run(self, busy: Callable[[], set[str]]) -> None:
        """Ingest windows and evaluate every tenth of a second; `busy` are the hosts that attempts have ranks on."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._inbox.run())
            tasks.create_task(self._evaluate(busy))

    async def _evaluate(self, busy: Callable[[], set[str]]) -> None:
        """Evaluate every tenth of a second.

        An evaluation that takes longer leaves as much time to ingest windows before the next one.
        """
        periodic = Periodic("evaluating telemetry")
        with closing(Ticks(_EVERY_S, _PHASE)) as ticks:
            while True:
                await ticks.wait()
                began_s = time.monotonic()
                await periodic.round(partial(self._evaluate_once, busy))
                collect_in_pause()
                took_s = time.monotonic() - began_s
                if took_s > _EVERY_S:
                    await asyncio.sleep(took_s)

    async def _evaluate_once(self, busy: Callable[[], set[str]]) -> None:
        now_s = time.time()
        self._excuse_delay(now_s)
        began_s = time.monotonic()
        found = self._detection.evaluate(now_s)
        self.evaluations = self.evaluations.plus(time.monotonic() - began_s)
        for attempt, diagnoses in found.items():
            await self._dispatch.publish(attempt, diagnoses, now_s)
        for slowdown in self._detection.poll_benign():
            log_benign(slowdown)
            self._log.publish(SlowdownExplained(now_s, slowdown))
        for event in self._liveness.evaluate(now_s, busy()):
            _log_missing(event, now_s)
            self._log.publish(event)
        self.evaluated_s = now_s

    def _excuse_delay(self, now_s: float) -> None:
        """Where this master is late by far, agents that could not reconnect meanwhile are not missing because of it."""
        if self.evaluated_s is not None and (late_s := now_s - self.evaluated_s - _EVERY_S) > _LATE_S:
            self._liveness.extend(late_s)


def _log_missing(event: AgentMissing, now_s: float) -> None:
    values = (event.host, now_s - event.since_s, event.ranks)
    fields = {"host": event.host, "ranks": event.ranks}
    _logger.warning("agent of %s missing for %.0f s; its ranks: %s", *values, extra=fields)
