"""The master's telemetry: windows of agents go in, and diagnoses and missing agents come out at fixed times."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing

from c4bench.control.agent_liveness import AgentLiveness
from c4bench.control.detection import Detection, part_of
from c4bench.control.diagnosis_dispatch import DiagnosisDispatch
from c4bench.control.event_log import EventLog
from c4bench.control.jobs import Job
from c4bench.control.path_service import PathService
from c4bench.model.agent import WINDOWS_WITHIN
from c4bench.model.event import AgentMissing
from c4bench.model.telemetry import Window
from c4bench.verbs.ticks import Ticks

_logger = logging.getLogger(__name__)

_EVERY_S = 0.1
_PHASE = (1 + WINDOWS_WITHIN) / 2


class TelemetryLoop:
    """Passes windows to path planning and C4D, and diagnoses of C4D to `dispatch`."""

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

    async def ingest(self, host: str, window: Window) -> None:
        """Ingest a window from the agent of `host`; a window of another host is dropped."""
        if window.host != host:
            self._detection.dropped[host]["foreign window"] += 1
            return
        await self._paths.ingest(window)
        self._detection.windows[host] += 1
        self._liveness.ingest(window)
        for attempt in sorted({record.job for record in window.ranks} & set(self._jobs)):
            part = part_of(window, attempt)
            await self._jobs[attempt].note_ranks(part.ranks)
            self._detection.ingest(attempt, part)

    async def run(self, busy: Callable[[], set[str]]) -> None:
        """Evaluate every tenth of a second; `busy` are the hosts that attempts have ranks on."""
        with closing(Ticks(_EVERY_S, _PHASE)) as ticks:
            while True:
                await ticks.wait()
                now_s = time.time()
                for attempt, diagnoses in self._detection.evaluate(now_s).items():
                    await self._dispatch.publish(attempt, diagnoses, now_s)
                for event in self._liveness.evaluate(now_s, busy()):
                    _log_missing(event, now_s)
                    self._log.publish(event)


def _log_missing(event: AgentMissing, now_s: float) -> None:
    values = (event.host, now_s - event.since_s, event.ranks)
    fields = {"host": event.host, "ranks": event.ranks}
    _logger.warning("agent of %s missing for %.0f s; its ranks: %s", *values, extra=fields)
