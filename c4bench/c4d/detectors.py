"""The detectors that can judge a job, by name: C4D, and those of others, which scenarios and campaigns judge alike.

A detector ingests the records of one attempt of a job in the order of arrival, as a recording has them, and finds at
each `Evaluated` what it names.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from c4bench import extensions
from c4bench.attribution.weigh import Cell
from c4bench.c4d.act.doubts import Doubts
from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.shared_fabric import SharedFabric
from c4bench.errors import RepeatedFailures, UsageError
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.recording import Record

C4D = "c4d"
Dropped = defaultdict[str, Counter[str]]


@runtime_checkable
class AttemptDetector(Protocol):
    """A detector of one attempt of a job: records in, diagnoses out. It reads no clock."""

    def ingest(self, record: Record) -> list[Diagnosis]:
        """Ingest the next record; return what is named newly."""


class Judge(AttemptDetector, Protocol):
    """A detector as a master uses it. One that `shares` reads what is known about the fabric from where all keep it."""

    shares: bool

    def poll_benign(self) -> list[BenignSlowdown]:
        """Slowdowns without a fault that were explained since the last call."""

    def doubts(self, job: str) -> Doubts | None:
        """The findings about `job` that probes may make more exact."""

    def cells(self, job: str) -> Mapping[Cell, float]:
        """The newest delay matrix of `job`."""

    def intervals_s(self, job: str) -> tuple[float, ...]:
        """The newest times between like operations of `job`."""


class _Foreign:
    """A detector of others. It asks for no probes and tells of no slowdown without a fault; its errors are reported."""

    shares = False

    def __init__(self, detector: AttemptDetector) -> None:
        self._detector, self._failures = detector, RepeatedFailures()

    def ingest(self, record: Record) -> list[Diagnosis]:
        """What it finds."""
        try:
            return list(self._detector.ingest(record))
        except Exception as failure:
            self._failures.note(f"{type(self._detector).__qualname__} did not ingest a record", failure)
            return []

    def poll_benign(self) -> list[BenignSlowdown]:
        """None."""
        return []

    def doubts(self, job: str) -> Doubts | None:  # noqa: ARG002
        """None."""
        return None

    def cells(self, job: str) -> Mapping[Cell, float]:  # noqa: ARG002
        """None."""
        return {}

    def intervals_s(self, job: str) -> tuple[float, ...]:  # noqa: ARG002
        """None."""
        return ()


MakeDetector = Callable[[], AttemptDetector]
MakeJudge = Callable[[SharedFabric, Dropped], Judge]
DETECTORS: extensions.Registry[MakeDetector] = extensions.Registry(
    extensions.DETECTORS, "a class or function () that makes a detector", lambda: {C4D: Detector}, extensions.takes(0)
)


def detector(name: str) -> AttemptDetector:
    """A new detector. Raises UsageError if there is none of that name, or what is there is none."""
    made = extensions.find(DETECTORS, "detector", name)()
    if not isinstance(made, AttemptDetector):
        raise UsageError(f"detector {name!r} has no method `ingest(record)`; correct its package, or leave it out")
    return made


def judge(name: str) -> MakeJudge:
    """What makes the judge of each attempt. Raises UsageError as `detector` does."""
    if name == C4D:
        return Detector
    detector(name)
    return lambda fabric, dropped: _Foreign(detector(name))  # noqa: ARG005  (as for C4D)
