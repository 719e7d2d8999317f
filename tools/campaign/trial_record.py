"""A trial of a campaign as one line of `campaign.jsonl`: what was injected, what became of the job, what was named."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UsageError
from c4bench.model.diagnosis import Cause, Component, Diagnosis, Syndrome
from tools.campaign.step_time import StepLoss

FILE = "campaign.jsonl"
# What is to blame in a trial without a fault.
NOTHING = Component("nothing", "")


class NamedFinding(msgspec.Struct, frozen=True):
    """What one diagnosis named, when (s, master's clock), and whether probes had left this of its suspects."""

    syndrome: Syndrome
    component: Component
    alternatives: tuple[Component, ...]
    confidence: float
    alarmed_s: float
    named_s: float
    cause: Cause | None = None
    probed: bool = False

    @property
    def suspects(self) -> tuple[Component, ...]:
        """The component and its alternatives."""
        return (self.component, *self.alternatives)


class TrialRecord(msgspec.Struct, frozen=True):
    """One trial. Times are seconds on the master's clock.

    `expected` is the syndrome and `target` the component of the fault, `addresses` those by which a link or switch may
    be named. `began_s` is when the fault was there or, of a hang, first held up an operation; findings count until
    `until_s`. The fault cost the job `step_loss` of its step time, as a share, or `stopped` it.

    A trial without a fault expects None, and its target is `NOTHING`. Of several faults at once the first is the trial,
    and the others, which are `beside` it, have no findings of their own. `profile` says what the trial was drawn from.
    """

    name: str
    fault: str
    expected: Syndrome | None
    target: Component
    addresses: tuple[str, ...]
    parameters: dict[str, float | str]
    onset_s: float
    began_s: float
    until_s: float
    step_loss: float
    stopped: bool
    findings: tuple[NamedFinding, ...]
    beside: tuple["TrialRecord", ...] = ()
    load: float = 0.0

    @property
    def faults(self) -> tuple["TrialRecord", ...]:
        """The faults of the trial, each as a trial of its own."""
        return () if self.target == NOTHING else (self, *self.beside)

    @property
    def matters(self) -> bool:
        """Whether the fault cost the job more than a healthy one loses."""
        return self.target != NOTHING and StepLoss(self.step_loss, self.stopped).matters


class _Refused(msgspec.Struct, frozen=True):
    refused: str = ""


def named_findings(diagnoses: Iterable[Diagnosis]) -> tuple[NamedFinding, ...]:
    """What a trial keeps of diagnoses."""
    return tuple(
        NamedFinding(d.syndrome, d.component, d.alternatives, d.confidence, d.alarmed_s, d.named_s, d.cause, d.probed)
        for d in diagnoses
    )


def read_trials(run: Path) -> tuple[TrialRecord, ...]:
    """The trials of a run directory in order, without those that could not be tried.

    Raises UsageError if there are none to read, or a line is not one of a trial.
    """
    path = run / FILE
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give the run directory of a campaign") from None
    return tuple(
        _trial(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if not _refused(line, path)
    )


def _trial(line: bytes, where: str) -> TrialRecord:
    try:
        return from_json(line, TrialRecord)
    except DecodingError as error:
        raise UsageError(f"{where}: {error}; run the campaign again in a new run directory") from None


def _refused(line: bytes, path: Path) -> bool:
    try:
        return bool(from_json(line, _Refused).refused)
    except DecodingError as error:
        raise UsageError(f"{path}: {error}; give the run directory of a campaign") from None
