"""The master's telemetry: windows of agents go in, and diagnoses and missing agents come out at fixed times.

Windows wait to be ingested: at most one of each host, so that a master that falls behind stays current. Receiving costs
little and is never held up by ingesting and evaluating. A newer window of a host replaces the one that waits, and what
that held is in it, because counters are cumulative. Only operations may be lost. Garbage is collected in pauses, and
not in the middle of a round of windows.
"""

import asyncio
import gc
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial

import msgspec

from c4bench.control.agents import AgentLiveness
from c4bench.control.detection.detection import Detection
from c4bench.control.detection.windows import WindowParts
from c4bench.control.jobs.job import Job
from c4bench.control.paths.service import PathService
from c4bench.control.state.event_log import EventLog
from c4bench.errors import Periodic, report_bug
from c4bench.model.agent import WINDOWS_WITHIN
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import AgentMissing, Diagnosed, SlowdownExplained
from c4bench.model.window import Window
from c4bench.verbs.ticks import Ticks

_logger = logging.getLogger(__name__)

_EVERY_S = 0.1
_PHASE = (1 + WINDOWS_WITHIN) / 2
# An evaluation that comes later than this (s) shows a master that has no time.
_LATE_S = 0.5
# So long windows are ingested at a time (s), before others have their turn: connections, requests and evaluation.
_TURN_S = 0.02
# Upper bounds (s) of the durations that are counted together. Telemetry is evaluated ten times a second.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
# A window that is kept has a few new containers. With Python's 700 a collection would come with every few hundred of
# them, and every hundredth of these would visit all that the master holds.
_THRESHOLDS = (50_000, 20, 100)
# From so many new containers on there is a collection in a pause, long before one comes by itself.
_DUE = _THRESHOLDS[0] // 2

# Begins to act on an attempt's new diagnoses.
Consumer = Callable[[str, Sequence[Diagnosis]], None]


def collect_in_pause() -> None:
    """Collect what is due, where nothing waits for the master; the older generations as rarely as by themselves."""
    new, middle, old = gc.get_count()
    if new > _DUE:
        gc.collect(2 if old > _THRESHOLDS[2] else 1 if middle > _THRESHOLDS[1] else 0)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Leave what exists now out of all collections, and have few of them, until the end.

    What the process had frozen before stays so, with what exists now.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()


class EvaluationTimes(msgspec.Struct, frozen=True):
    """`counts` evaluations took as long as each of `BOUNDS_S` at most and longer than the one before.

    The last of them took longer than all bounds. `sum_s` is what all took together (s).
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0

    def plus(self, took_s: float) -> "EvaluationTimes":
        """With one more evaluation, which took so long (s)."""
        place = bisect_left(BOUNDS_S, took_s)
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return EvaluationTimes(counts, self.sum_s + took_s)


class WindowInbox:
    """Passes windows to `ingest` in order of arrival; `replaced` gets the host of each that is not ingested."""

    def __init__(self, ingest: Callable[[Window], Awaitable[None]], replaced: Callable[[str], None]) -> None:
        self._ingest, self._replaced = ingest, replaced
        self._waiting: dict[str, Window] = {}
        self._filled = asyncio.Event()

    def put(self, window: Window) -> None:
        """Add a host's newest window; it takes the place of one that waits."""
        if window.host in self._waiting:
            self._replaced(window.host)
        self._waiting[window.host] = window
        self._filled.set()

    async def run(self) -> None:
        """Ingest windows until cancelled."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            until_s = time.monotonic() + _TURN_S
            while self._waiting:
                host = next(iter(self._waiting))
                await self._pass_on(self._waiting.pop(host))
                if time.monotonic() > until_s:
                    await asyncio.sleep(0)
                    until_s = time.monotonic() + _TURN_S

    async def _pass_on(self, window: Window) -> None:
        """Ingest a window; an error in doing so is reported, and other windows follow."""
        try:
            await self._ingest(window)
        except Exception as failure:
            message = f"a window of {window.host} was not ingested: {type(failure).__name__}: {failure}"
            report_bug(message, failure)


class DiagnosisDispatch:
    """Publishes each diagnosis to `log` and `paths`, then an attempt's new diagnoses together to the `consumers`."""

    def __init__(self, log: EventLog, paths: PathService, consumers: Sequence[Consumer]) -> None:
        self._log, self._paths, self._consumers = log, paths, consumers

    async def publish(self, attempt: str, diagnoses: Sequence[Diagnosis], now_s: float) -> None:
        """Publish an attempt's new diagnoses."""
        for diagnosis in diagnoses:
            _log_diagnosis(diagnosis, self._paths.named.names)
            self._log.publish(Diagnosed(now_s, diagnosis))
            await self._paths.apply_diagnosis(diagnosis)
        for consume in self._consumers:
            consume(attempt, diagnoses)


def log_benign(slowdown: BenignSlowdown) -> None:
    """Log why a job is slower without a fault."""
    values = slowdown.job, slowdown.reason, slowdown.component, "; ".join(slowdown.evidence)
    fields = {"attempt": slowdown.job, "component": slowdown.component, "reason": slowdown.reason}
    _logger.info("%s: no fault but %s, %s is slower: %s", *values, extra=fields)


def _log_diagnosis(diagnosis: Diagnosis, links: Mapping[str, str]) -> None:
    """Log a diagnosis for people, by the names of `links`; the fields have addresses."""
    cause = f", {diagnosis.cause}" if diagnosis.cause else ""
    named, *alternatives = (suspect.named(links) for suspect in diagnosis.suspects)
    others = f"; or {', '.join(alternatives)}" if alternatives else ""
    values = (diagnosis.job, diagnosis.syndrome, named, cause, diagnosis.confidence, others)
    fields = {
        "attempt": diagnosis.job,
        "syndrome": diagnosis.syndrome,
        "component": diagnosis.component,
        "cause": diagnosis.cause,
    }
    _logger.warning("%s: %s: %s%s, confidence %.2f%s", *values, extra=fields)


class TelemetryLoop:
    """Passes windows to path planning and C4D, and diagnoses of C4D to `dispatch`.

    `ask` probes for an attempt whose findings are doubtful.

    `windows` counts the windows of each host that were ingested; `window_bytes` are those of all messages with windows
    that came, and `window_ends_s` is when each host's newest window ends, on the host's clock. `evaluated_s` is the
    master's time of the newest evaluation, None before the first; `evaluations` says how long all have taken.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        paths: PathService,
        liveness: AgentLiveness,
        detection: Detection,
        dispatch: DiagnosisDispatch,
        ask: Callable[[str], None],
        log: EventLog,
    ) -> None:
        self._jobs, self._paths, self._liveness = jobs, paths, liveness
        self._detection, self._dispatch, self._ask, self._log = detection, dispatch, ask, log
        self._parts = WindowParts(jobs)
        self._inbox = WindowInbox(self.ingest, lambda host: self.drop(host, "overload"))
        self.windows: Counter[str] = Counter()
        self.window_bytes: Counter[str] = Counter()
        self.window_ends_s: dict[str, float] = {}
        self.evaluated_s: float | None = None
        self.evaluations = EvaluationTimes()

    def drop(self, host: str, reason: str) -> None:
        """Count a window of a host that is not ingested."""
        self._detection.dropped[host][reason] += 1

    def count_bytes(self, host: str, size_bytes: int) -> None:
        """Count a message with a window of a host, whatever becomes of it."""
        self.window_bytes[host] += size_bytes

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
        self.windows[host] += 1
        self.window_ends_s[host] = window.end_s
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
        for attempt in self._detection.doubtful():
            self._ask(attempt)
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
