"""The verdict on a run, from its directory alone."""

from collections import Counter
from pathlib import Path

import msgspec

from c4bench.errors import InconclusiveError, UsageError
from c4bench.model.measurement import Measurement, Outcome, evaluate
from c4bench.record import RunDirectory

_EXIT = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCONCLUSIVE: InconclusiveError.exit_code}
# A run that skipped a larger share of its scenarios says too little about the hosts to pass.
_SKIPPED_AT_MOST = 0.5


class Ending(msgspec.Struct, frozen=True):
    """The outcome of a scenario, apart from its measurements."""

    scenario: str
    outcome: Outcome
    reason: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on a run. `measurements` and `timings` carry outcomes evaluated again.

    `changed` counts those whose recorded outcome differs: a value, limit or outcome was edited.
    """

    measurements: tuple[Measurement, ...]
    timings: tuple[Measurement, ...]
    scenarios: tuple[Ending, ...]
    changed: int

    @property
    def outcome(self) -> Outcome:
        """The outcome of the run, as `evaluate_run` describes it."""
        outcomes = {measurement.outcome for measurement in (*self.measurements, *self.timings)}
        outcomes |= {ending.outcome for ending in self.scenarios}
        for outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE):
            if outcome in outcomes:
                return outcome
        return Outcome.PASS if Outcome.PASS in outcomes and not self.mostly_skipped else Outcome.INCONCLUSIVE

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 4 inconclusive."""
        return _EXIT[self.outcome]

    def count(self, outcome: Outcome) -> int:
        """How many measurements and timings have that outcome."""
        return Counter(measurement.outcome for measurement in (*self.measurements, *self.timings))[outcome]

    @property
    def scenario_counts(self) -> dict[str, int]:
        """How many scenarios had each outcome, such as `{"pass": 5, "skip": 2}`."""
        return dict(Counter(ending.outcome.value for ending in self.scenarios))

    @property
    def skips(self) -> dict[str, int]:
        """How many scenarios were skipped for each reason, the most frequent first."""
        reasons = Counter(ending.reason for ending in self.scenarios if ending.outcome is Outcome.SKIP)
        return dict(reasons.most_common())

    @property
    def mostly_skipped(self) -> bool:
        """Whether more than half of the scenarios were skipped."""
        return self.scenario_counts.get(Outcome.SKIP.value, 0) > _SKIPPED_AT_MOST * len(self.scenarios)


def evaluate_run(run_dir: Path) -> Verdict:
    """Evaluate a run directory again, without hardware.

    One miss or failed scenario fails the run. Otherwise the run is inconclusive if a measurement or scenario is, if
    more than half of its scenarios were skipped, or if no limit was checked and no scenario passed. Raises UsageError
    if `run_dir` is not a run directory or is damaged.
    """
    run = RunDirectory(run_dir)
    recorded = run.measurements(), run.timings()
    measurements, timings = (tuple(_evaluate_again(measurement) for measurement in group) for group in recorded)
    before = [measurement.outcome for group in recorded for measurement in group]
    after = [measurement.outcome for measurement in (*measurements, *timings)]
    changed = sum(old is not new for old, new in zip(before, after, strict=True))
    return Verdict(measurements, timings, _endings(run), changed)


def _evaluate_again(recorded: Measurement) -> Measurement:
    # The value does not show why a measurement was inconclusive (a fault that no witness saw): keep that outcome.
    if recorded.outcome is Outcome.INCONCLUSIVE:
        return recorded
    return msgspec.structs.replace(recorded, outcome=evaluate(recorded.value, recorded.limit, recorded.plus_minus))


def _endings(run: RunDirectory) -> tuple[Ending, ...]:
    """The outcomes of all sessions of a run. A scenario that no session ran is skipped once."""
    ended = [event for event in run.events() if event.get("kind") == "scenario"]
    try:
        endings = msgspec.convert(ended, list[Ending])
    except msgspec.ValidationError as error:
        raise UsageError(f"{run.path}/events.jsonl has a scenario without an ending ({error}); run again") from None
    ran = [ending for ending in endings if ending.outcome is not Outcome.SKIP]
    skipped = {ending.scenario: ending for ending in endings if ending.outcome is Outcome.SKIP}
    for ending in ran:
        skipped.pop(ending.scenario, None)
    return (*ran, *skipped.values())
