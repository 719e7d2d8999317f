"""C4D at work for every running job: what is heard goes in and is kept, findings come out."""

from collections import Counter, defaultdict
from collections.abc import Mapping

import msgspec

from c4bench.c4d.detector import Detector
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.c4d.localise import Cell
from c4bench.control.jobs import Job
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.recording import Evaluated, LinksMissing, PathsLearnt, Record
from c4bench.model.telemetry import Window


class _Followed(msgspec.Struct):
    """An attempt and its detector."""

    job: Job
    detector: Detector

    def hear(self, record: Record) -> list[Diagnosis]:
        """Whatever the detector hears is on record, in the same order."""
        self.job.recording.append(record)
        return self.detector.ingest(record)


class Detection:
    """A detector for each attempt that is followed; what comes of any other is not looked at.

    `windows` and `dropped` count what came of each host, and what of that was not believed.
    """

    def __init__(self) -> None:
        self._fabric = SharedFabric()
        self._followed: dict[str, _Followed] = {}
        self.windows: Counter[str] = Counter()
        self.dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def follow(self, job: Job, now_s: float) -> None:
        """Judge this attempt's telemetry from now on."""
        self._followed[job.spec.id] = _Followed(job, Detector(self._fabric, self.dropped))
        job.recording.extend(self._fabric.snapshot(now_s, {nic.name for nic in job.spec.nics}))

    def forget(self, attempt: str) -> None:
        """The attempt is over."""
        self._followed.pop(attempt, None)

    def hear(self, attempt: str, record: Record) -> None:
        """Take in the part of a host's window that belongs to an attempt, or what one of its ranks has told."""
        if attempt in self._followed:
            self._followed[attempt].hear(record)

    def learn(self, news: PathsLearnt | LinksMissing) -> None:
        """C4P has learnt something of the fabric, which all share."""
        self._fabric.ingest(news)
        for followed in self._followed.values():
            followed.job.recording.append(news)

    def judge(self, now_s: float) -> dict[str, list[Diagnosis]]:
        """New findings by attempt."""
        found = {attempt: self._judge(followed, now_s) for attempt, followed in self._followed.items()}
        return {attempt: diagnoses for attempt, diagnoses in found.items() if diagnoses}

    def _judge(self, followed: _Followed, now_s: float) -> list[Diagnosis]:
        """What is seen of a job to come goes on record for all others; their detectors have it from the fabric."""
        found = followed.hear(Evaluated(now_s))
        for arrival in self._fabric.arrivals.poll():
            for other in self._followed.values():
                if other is not followed:
                    other.job.recording.append(arrival)
        return found

    def cells(self, attempt: str) -> Mapping[Cell, float]:
        """The newest delay matrix of an attempt, seconds per byte; empty before there is one."""
        followed = self._followed.get(attempt)
        return followed.detector.cells(attempt) if followed else {}


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
