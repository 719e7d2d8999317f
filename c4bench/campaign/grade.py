"""The grade of a trial: was the fault named alone, among others, wrongly, or not at all, and when."""

from enum import StrEnum

import msgspec

from c4bench.campaign.measurable import Measurable
from c4bench.campaign.trial_record import NamedFinding, TrialRecord
from c4bench.campaign.truth import Truth
from c4bench.model.diagnosis import Cause, Syndrome


class Answer(StrEnum):
    """What the findings of a trial come to."""

    RESOLVED = "resolved"
    AMONG = "among"
    WRONG = "wrong"
    SILENT = "silent"
    NOT_DUE = "not_due"


class Stated(msgspec.Struct, frozen=True):
    """The confidence of a finding, what it is about, and whether its component is right, whatever its alternatives."""

    cause: Cause | None
    kind: str
    alternatives: int
    confidence: float
    right: bool


class Grade(msgspec.Struct, frozen=True):
    """The grade of one trial.

    `resolved`: some finding names the fault's component, with nothing else than what no measurement could tell from it.
    `among`: the component is one of `candidates`, the fewest that a finding has. `wrong`: there are findings, and none
    of them has it. `silent`: no finding though the fault cost the job step time; `not_due`: none, and it did not.
    `healthy` is how many healthy components findings without alternatives name. Times are seconds from when the fault
    was there: to the alarm and the name of the first finding that is about it, and to the one that resolves it.
    `stated` has one entry for each finding.
    """

    trial: str
    fault: str
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


def grade(trial: TrialRecord, fabric: Measurable) -> Grade:
    """Grade the findings of a trial, up to its end."""
    truth = Truth(trial, fabric)
    syndromes = {trial.expected} if trial.stopped else {trial.expected, Syndrome.COMMUNICATION_SLOW}
    findings = [finding for finding in trial.findings if finding.named_s <= trial.until_s]
    about = [finding for finding in findings if finding.syndrome in syndromes and _about(finding, truth)]
    resolving = [finding for finding in about if all(map(truth.equivalent, finding.candidates))]
    sure = [finding for finding in findings if not finding.alternatives and not _about(finding, truth)]
    return Grade(
        trial.name,
        trial.fault,
        _answer(trial, findings, about, resolving),
        min((len(finding.candidates) for finding in about), default=0),
        sum(not truth.concerned(finding.component) for finding in sure),
        about[0].alarmed_s - trial.began_s if about else None,
        about[0].named_s - trial.began_s if about else None,
        resolving[0].named_s - trial.began_s if resolving else None,
        tuple(_stated(finding, truth) for finding in findings),
    )


def _about(finding: NamedFinding, truth: Truth) -> bool:
    return any(truth.same(candidate) or truth.equivalent(candidate) for candidate in finding.candidates)


def _stated(finding: NamedFinding, truth: Truth) -> Stated:
    right = truth.same(finding.component) or truth.equivalent(finding.component)
    return Stated(finding.cause, finding.component.kind, len(finding.alternatives), finding.confidence, right)


def _answer(
    trial: TrialRecord, findings: list[NamedFinding], about: list[NamedFinding], resolving: list[NamedFinding]
) -> Answer:
    if about:
        return Answer.RESOLVED if resolving else Answer.AMONG
    if findings:
        return Answer.WRONG
    return Answer.SILENT if trial.matters else Answer.NOT_DUE
