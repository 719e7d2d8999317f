"""Run the detector on a recording: it ingests the same records and evaluates at the same times as the live one."""

import math
from collections.abc import Iterable, Iterator

from c4bench.c4d.detector import Detector
from c4bench.c4d.detectors import AttemptDetector
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.recording import Evaluated, Record
from c4bench.model.window import Window

# A window further ahead of all others than this (s) shows a clock that was set, not time that passed.
_LEAP_S = 10.0


class _Clock:
    """The master's clock as windows show it: each host's own, counted from where the others were at its first."""

    def __init__(self) -> None:
        self.now_s: float | None = None
        self._ahead_s: dict[str, float] = {}

    def reads(self, window: Window) -> float:
        """The time at which `window` came in; never earlier than before."""
        if not math.isfinite(window.end_s):
            return 0.0 if self.now_s is None else self.now_s
        if self.now_s is None:
            self.now_s = window.end_s
        ahead_s = self._ahead_s.setdefault(window.host, self._lead_s(window.end_s))
        if abs(window.end_s - ahead_s - self.now_s) > _LEAP_S:
            ahead_s = self._ahead_s[window.host] = window.end_s - self.now_s
        return max(self.now_s, window.end_s - ahead_s)

    def _lead_s(self, end_s: float) -> float:
        """How far a host's clock is ahead at its first window; a cadence or two is no clock's doing."""
        assert self.now_s is not None
        lead_s = end_s - self.now_s
        return lead_s if abs(lead_s) > _LEAP_S else 0.0


def detect(records: Iterable[Record], detector: AttemptDetector | None = None) -> list[Diagnosis]:
    """Every finding in `records`, which are given in the order of arrival.

    Evaluates when the live detector did. Recordings that do not hold these times are evaluated each time the clock
    moves, so the windows of one round are evaluated together. Give a `detector` to read its counters and matrices
    afterwards.
    """
    target, kept = detector or Detector(), list(records)
    timed = any(isinstance(record, Evaluated) for record in kept)
    return [diagnosis for record in (kept if timed else _timed(kept)) for diagnosis in target.ingest(record)]


def _timed(records: Iterable[Record]) -> Iterator[Record]:
    """The records, with the times between them at which to judge."""
    clock = _Clock()
    for record in records:
        if isinstance(record, Window):
            came_s = clock.reads(record)
            if clock.now_s is not None and came_s > clock.now_s:
                yield Evaluated(clock.now_s)
                clock.now_s = came_s
        yield record
    if clock.now_s is not None:
        yield Evaluated(clock.now_s)
