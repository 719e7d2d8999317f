"""The path of a diagnosis to all that use it: log, event log and its followers, path planning, steering, probes."""

import logging
from collections.abc import Callable, Mapping, Sequence

from c4bench.control.event_log import EventLog
from c4bench.control.path_service import PathService
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import Diagnosed

_logger = logging.getLogger(__name__)

# Begins to act on an attempt's new diagnoses.
Consumer = Callable[[str, Sequence[Diagnosis]], None]


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
