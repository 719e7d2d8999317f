"""C4D at work for every running job: windows in, findings out, and a count of what was not believed of each host."""

from collections import Counter, defaultdict
from collections.abc import Mapping

import msgspec

from c4bench.c4d.company import Company
from c4bench.c4d.detector import Detector
from c4bench.c4d.job_view import Ways
from c4bench.c4d.localise import Cell
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.telemetry import Window
from c4bench.wire.messages import Fail, Lost


class Detection:
    """A detector for each attempt that is followed; what comes of any other is not looked at.

    `ways` are the links that a source port takes between two NICs, as far as they are known by now.
    """

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._company = Company()
        self._detectors: dict[str, Detector] = {}
        self.windows: Counter[str] = Counter()
        self.dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def follow(self, attempt: str) -> None:
        """Judge this attempt's telemetry from now on."""
        self._detectors[attempt] = Detector(self._ways, self.dropped, self._company)

    def forget(self, attempt: str) -> None:
        """The attempt is over."""
        self._detectors.pop(attempt, None)

    def feed(self, attempt: str, window: Window) -> None:
        """Take in the part of a host's window that belongs to an attempt."""
        detector = self._detectors.get(attempt)
        if detector is not None:
            detector.feed(window)

    def told(self, request: Fail) -> None:
        """A rank has told the others that it cannot go on."""
        detector = self._detectors.get(request.job)
        if detector is not None:
            detector.told(request.job, request.comm, request.failure)

    def lost(self, request: Lost) -> None:
        """A rank goes on without a part of the network."""
        detector = self._detectors.get(request.job)
        if detector is not None:
            detector.lost(request.job, request.comm, request.loss)

    def judge(self, now_s: float) -> dict[str, list[Diagnosis]]:
        """New findings by attempt."""
        found = {attempt: detector.judge(now_s) for attempt, detector in self._detectors.items()}
        return {attempt: diagnoses for attempt, diagnoses in found.items() if diagnoses}

    def cells(self, attempt: str) -> Mapping[Cell, float]:
        """The newest delay matrix of an attempt, seconds per byte; empty before there is one."""
        detector = self._detectors.get(attempt)
        return detector.cells(attempt) if detector else {}


def part_of(window: Window, attempt: str) -> Window:
    """The part of a host's window that belongs to one attempt."""
    comms = {record.comm for record in window.comms if record.job == attempt}
    return msgspec.structs.replace(
        window,
        comms=tuple(record for record in window.comms if record.comm in comms),
        ranks=tuple(record for record in window.ranks if record.job == attempt),
        ops=tuple(record for record in window.ops if record.comm in comms),
        conns=tuple(record for record in window.conns if record.comm in comms),
        arrivals=tuple(record for record in window.arrivals if record.comm in comms),
    )
