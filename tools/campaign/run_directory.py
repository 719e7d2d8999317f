"""Grade the campaigns of run directories: as they were named live, or judged again by the present code."""

from pathlib import Path

import msgspec

from c4bench.c4d import detectors
from c4bench.c4d.detectors import C4D
from c4bench.c4d.offline import detect
from c4bench.errors import UsageError
from c4bench.record import RunDirectory
from c4bench.record.artefacts import Fabric
from c4bench.record.run import slug
from c4bench.record.telemetry import read_telemetry
from tools.campaign.grade import Grade, grades
from tools.campaign.measurable import Measurable
from tools.campaign.trial_record import TrialRecord, named_findings, read_trials


def graded(run: RunDirectory, *, again: bool, detector: str = C4D) -> list[Grade]:
    """The grades of a run's faults in the order of its trials; with `again` a detector judges their recordings first.

    Raises UsageError if the directory holds no campaign, or a recording is missing.
    """
    trials, fabric = read_trials(run.path), run.load("campaign_fabric", Fabric)
    if fabric is None:
        raise UsageError(
            f"{run.path}: no artefacts/campaign_fabric.json; run the campaign again in a new run directory"
        )
    measurable = Measurable(fabric)
    judged = (judged_again(run.path, trial, detector) if again else trial for trial in trials)
    return [grade for trial in judged for grade in grades(trial, measurable)]


def judged_again(run: Path, trial: TrialRecord, detector: str = C4D) -> TrialRecord:
    """The trial with what a detector names on its recording."""
    records, _ = read_telemetry(run / "telemetry" / f"{slug(trial.name)}.jsonl")
    return msgspec.structs.replace(trial, findings=named_findings(detect(records, detectors.detector(detector))))
