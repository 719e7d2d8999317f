"""What agents tell goes in, and every tenth of a second what it means comes out: findings, and who is missing."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing

from c4bench.control.agent_liveness import AgentLiveness
from c4bench.control.detection import Detection, part_of
from c4bench.control.event_log import EventLog
from c4bench.control.jobs import Job
from c4bench.control.path_service import PathService
from c4bench.model.agent import WINDOWS_WITHIN
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import Diagnosed
from c4bench.model.telemetry import Window
from c4bench.verbs.ticks import Ticks

_logger = logging.getLogger(__name__)

_EVERY_S = 0.1
_PHASE = (1 + WINDOWS_WITHIN) / 2


class TelemetryLoop:
    """Windows of `jobs` to C4D and C4P, their findings to the log, to C4P and to whoever acts on them."""

    def __init__(
        self, jobs: Mapping[str, Job], detection: Detection, routing: PathService, roll: AgentLiveness, log: EventLog
    ) -> None:
        self._jobs, self._detection, self._routing, self._roll, self._log = jobs, detection, routing, roll, log

    async def hear(self, window: Window) -> None:
        """Take in what a host's agent has seen."""
        await self._routing.hear(window)
        self._detection.windows[window.host] += 1
        self._roll.saw(window)
        for attempt in sorted({record.job for record in window.ranks} & set(self._jobs)):
            part = part_of(window, attempt)
            await self._jobs[attempt].note_ranks(part.ranks)
            self._detection.hear(attempt, part)

    async def run(self, busy: Callable[[], set[str]], act: Callable[[str, list[Diagnosis]], None]) -> None:
        """Judge for ever; `act` hears the new findings of an attempt, `busy` are the hosts that are to be there."""
        with closing(Ticks(_EVERY_S, _PHASE)) as ticks:
            while True:
                await ticks.wait()
                now_s = time.time()
                for attempt, found in self._detection.judge(now_s).items():
                    for diagnosis in found:
                        _log_diagnosis(diagnosis)
                        self._log.tell(Diagnosed(now_s, diagnosis))
                        await self._routing.apply_diagnosis(diagnosis)
                    act(attempt, found)
                for event in self._roll.judge(now_s, busy()):
                    said = "agent of %s missing for %.0f s; its ranks: %s"
                    fields = {"host": event.host, "ranks": event.ranks}
                    _logger.warning(said, event.host, now_s - event.since_s, event.ranks, extra=fields)
                    self._log.tell(event)


def _log_diagnosis(found: Diagnosis) -> None:
    cause = f", {found.cause}" if found.cause else ""
    others = f"; or {', '.join(map(str, found.alternatives))}" if found.alternatives else ""
    said = (found.job, found.syndrome, found.component, cause, found.confidence, others)
    fields = {"attempt": found.job, "syndrome": found.syndrome, "component": found.component, "cause": found.cause}
    _logger.warning("%s: %s: %s%s, confidence %.2f%s", *said, extra=fields)
