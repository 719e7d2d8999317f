"""The verdict on a run, from its directory alone."""

from collections import Counter
from collections.abc import Iterable
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

    outcome: Outcome
    measurements: tuple[Measurement, ...]
    timings: tuple[Measurement, ...]
    scenarios: tuple[Ending, ...]
    changed: int

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 4 inconclusive."""
        return _EXIT[self.outcome]

    def count(self, outcome: Outcome) -> int:
        """How many measurements and timings have that outcome."""
        return Counter(measurement.outcome for measurement in (*self.measurements, *self.timings))[outcome]

    @property
    def scenario_counts(self) -> dict[str, int]:
        """How many scenarios ended how, such as `{"pass": 5, "skip": 2}`."""
        return dict(Counter(ending.outcome.value for ending in self.scenarios))

    @property
    def skips(self) -> dict[str, int]:
        """How many scenarios were skipped for each reason, the most frequent first."""
        reasons = Counter(ending.reason for ending in self.scenarios if ending.outcome is Outcome.SKIP)
        return dict(reasons.most_common())

    @property
    def mostly_skipped(self) -> bool:
        """Whether more than half of the scenarios were skipped."""
        return _mostly_skipped(self.scenarios)


def evaluate_run(run_dir: Path) -> Verdict:
    """Evaluate a run directory again, without hardware.

    One miss or failed scenario fails the run. Otherwise the run is inconclusive if a measurement or scenario is, if
    more than half of its scenarios were skipped, or if no limit was checked and no scenario passed. Raises UsageError
    if `run_dir` is not a run directory or is damaged.
    """
    run = RunDirectory(run_dir)
    recorded = run.measurements(), run.timings()
    measurements, timings = (tuple(_evaluate_again(measurement) for measurement in group) for group in recorded)
    scenarios = _endings(run)
    before = [measurement.outcome for group in recorded for measurement in group]
    after = [measurement.outcome for measurement in (*measurements, *timings)]
    changed = sum(old is not new for old, new in zip(before, after, strict=True))
    outcomes = {*after, *(ending.outcome for ending in scenarios)}
    if _mostly_skipped(scenarios):
        outcomes.add(Outcome.INCONCLUSIVE)
    return Verdict(_worst(outcomes), measurements, timings, scenarios, changed)


def _mostly_skipped(scenarios: Iterable[Ending]) -> bool:
    skipped = [ending.outcome is Outcome.SKIP for ending in scenarios]
    return sum(skipped) > _SKIPPED_AT_MOST * len(skipped)


def _evaluate_again(recorded: Measurement) -> Measurement:
    # What made a measurement inconclusive (a fault the witness did not see) is not in its value: it stays so.
    if recorded.outcome is Outcome.INCONCLUSIVE:
        return recorded
    return msgspec.structs.replace(recorded, outcome=evaluate(recorded.value, recorded.limit, recorded.plus_minus))


def _endings(run: RunDirectory) -> tuple[Ending, ...]:
    ended = [event for event in run.events() if event.get("kind") == "scenario"]
    try:
        return _without_repeated_skips(msgspec.convert(ended, list[Ending]))
    except msgspec.ValidationError as error:
        raise UsageError(f"{run.path}/events.jsonl has a scenario without an ending ({error}); run again") from None


def _without_repeated_skips(endings: list[Ending]) -> tuple[Ending, ...]:
    """Leave out a skip if the scenario ran as well, or was skipped before, in another session of the same run."""
    ran = {ending.scenario for ending in endings if ending.outcome is not Outcome.SKIP}
    skips = {ending.scenario: ending for ending in endings if ending.scenario not in ran}
    return tuple(ending for ending in endings if ending.scenario in ran and ending.outcome is not Outcome.SKIP) + tuple(
        skips.values()
    )


def _worst(outcomes: set[Outcome]) -> Outcome:
    for outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS):
        if outcome in outcomes:
            return outcome
    return Outcome.INCONCLUSIVE
