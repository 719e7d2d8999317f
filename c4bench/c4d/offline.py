"""Judge recorded telemetry: the same detector, with the windows' own times for a clock."""

import math
from collections.abc import Iterable

from c4bench.c4d.detector import Detector
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.telemetry import Window


def detect(windows: Iterable[Window], detector: Detector | None = None) -> list[Diagnosis]:
    """Every finding in `windows`, which are given in the order of arrival.

    The master's clock is that of the host furthest ahead: it stands at the latest end of any window so far. The
    detector is asked each time that clock moves, so the windows of one round are judged together. Give a `detector`
    to read its counters and matrices afterwards.
    """
    judge = detector or Detector()
    found: list[Diagnosis] = []
    now_s: float | None = None
    for window in windows:
        if now_s is not None and window.end_s > now_s:
            found += judge.judge(now_s)
        judge.feed(window)
        if math.isfinite(window.end_s):
            now_s = window.end_s if now_s is None else max(now_s, window.end_s)
    return found if now_s is None else found + judge.judge(now_s)
