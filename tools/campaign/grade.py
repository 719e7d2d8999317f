"""The grade of each fault of a trial: was it named alone, among others, wrongly, or not at all, and when."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from c4bench.model.diagnosis import Cause, Syndrome
from tools.campaign.measurable import Measurable
from tools.campaign.trial_record import NamedFinding, TrialRecord
from tools.campaign.truth import Truth


class Answer(StrEnum):
    """What the findings of a trial come to."""

    RESOLVED = "resolved"
    AMONG = "among"
    WRONG = "wrong"
    SILENT = "silent"
    NOT_DUE = "not_due"


class Stated(msgspec.Struct, frozen=True):
    """The confidence of a finding, what it is about, and whether its component is right, whatever its alternatives.

    `probed` as in `NamedFinding`.
    """

    cause: Cause | None
    kind: str
    probed: bool
    alternatives: int
    confidence: float
    right: bool


class Grade(msgspec.Struct, frozen=True):
    """The grade of one fault, or of a trial without one.

    `resolved`: some finding names the fault's component, with nothing else than what no measurement could tell from it.
    `among`: the component is one of `candidates`, the fewest that a finding has. `wrong`: there are findings, and none
    of them has it, or another fault of the trial. `silent`: no finding though the fault cost the job step time;
    `not_due`: none, and it did not. `healthy` is how many healthy components findings without alternatives name. Times
    are seconds from when the fault was there: to the alarm and the name of the first finding that is about it, and to
    the one that resolves it. `stated` has one entry for each finding. What is about no fault of the trial counts in the
    grade of its first one. `faults` is how many the trial had, `load` as in `TrialRecord`.
    """

    trial: str
    fault: str
    faults: int
    load: float
    answer: Answer
    candidates: int
    healthy: int
    alarm_s: float | None
    name_s: float | None
    resolve_s: float | None
    stated: tuple[Stated, ...]

    @property
    def due(self) -> bool:
        """Whether an answer was due, or given."""
        return self.answer is not Answer.NOT_DUE


class _Judged:
    """One fault of a trial, and what the findings of the trial say of it."""

    def __init__(self, fault: TrialRecord, findings: Iterable[NamedFinding], fabric: Measurable) -> None:
        self.fault = fault
        self.truth = Truth(fault, fabric)
        syndromes = {fault.expected} if fault.stopped else {fault.expected, Syndrome.COMMUNICATION_SLOW}
        self.about = [one for one in findings if one.syndrome in syndromes and self.has(one)]
        self.resolving = [one for one in self.about if all(map(self.truth.equivalent, one.suspects))]

    def has(self, finding: NamedFinding) -> bool:
        """Whether the fault's component is one of those that a finding has."""
        return any(self.truth.same(one) or self.truth.equivalent(one) for one in finding.suspects)

    def right(self, finding: NamedFinding) -> bool:
        """Whether it is the one that the finding names, whatever its alternatives."""
        return self.truth.same(finding.component) or self.truth.equivalent(finding.component)


def grades(trial: TrialRecord, fabric: Measurable) -> tuple[Grade, ...]:
    """Grade each fault of a trial by its findings, up to its end; one grade without a fault."""
    findings = [finding for finding in trial.findings if finding.named_s <= trial.until_s]
    judged = [_Judged(fault, findings, fabric) for fault in trial.faults or (trial,)]
    stray = [finding for finding in findings if not any(finding in one.about for one in judged)]
    return tuple(_grade(trial, one, stray, judged) for one in judged)


def _grade(trial: TrialRecord, one: _Judged, stray: Sequence[NamedFinding], judged: Sequence[_Judged]) -> Grade:
    """The grade of one of a trial's faults, all of which are `judged`; `stray` findings are about none of them."""
    fault, about = one.fault, one.about
    own = [*about, *(stray if one is judged[0] else ())]
    sure = [finding for finding in own if not finding.alternatives and not one.has(finding)]
    healthy = [finding for finding in sure if not any(each.truth.concerned(finding.component) for each in judged)]
    return Grade(
        trial.name,
        fault.fault,
        len(trial.faults),
        trial.load,
        _answer(one, stray),
        min((len(finding.suspects) for finding in about), default=0),
        len(healthy),
        about[0].alarmed_s - fault.began_s if about else None,
        about[0].named_s - fault.began_s if about else None,
        one.resolving[0].named_s - fault.began_s if one.resolving else None,
        tuple(_stated(finding, judged) for finding in own),
    )


def _stated(finding: NamedFinding, judged: Sequence[_Judged]) -> Stated:
    right = any(each.right(finding) for each in judged)
    kind, others = finding.component.kind, len(finding.alternatives)
    return Stated(finding.cause, kind, finding.probed, others, finding.confidence, right)


def _answer(one: _Judged, stray: Sequence[NamedFinding]) -> Answer:
    if one.about:
        return Answer.RESOLVED if one.resolving else Answer.AMONG
    if stray:
        return Answer.WRONG
    return Answer.SILENT if one.fault.matters else Answer.NOT_DUE
