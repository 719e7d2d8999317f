"""The verdict on a run, from its directory alone."""

from collections import Counter
from pathlib import Path

import msgspec

from c4bench.errors import InconclusiveError, UsageError
from c4bench.model.measurement import Measurement, Outcome, evaluate
from c4bench.record import RunDirectory

_EXIT = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCONCLUSIVE: InconclusiveError.exit_code}


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


def evaluate_run(run_dir: Path) -> Verdict:
    """Evaluate a run directory again, without hardware.

    One miss or failed scenario fails the run; else one inconclusive makes it inconclusive; a run in which nothing was
    held against a limit and no scenario ended well has proven nothing and is inconclusive too. Raises UsageError for
    what is not a run directory, or is damaged.
    """
    run = RunDirectory(run_dir)
    recorded = run.measurements(), run.timings()
    measurements, timings = (tuple(_evaluate_again(measurement) for measurement in group) for group in recorded)
    scenarios = _endings(run)
    before = [measurement.outcome for group in recorded for measurement in group]
    after = [measurement.outcome for measurement in (*measurements, *timings)]
    changed = sum(old is not new for old, new in zip(before, after, strict=True))
    worst = _worst({*after, *(ending.outcome for ending in scenarios)})
    return Verdict(worst, measurements, timings, scenarios, changed)


def _evaluate_again(recorded: Measurement) -> Measurement:
    # What made a measurement inconclusive (a fault the witness did not see) is not in its value: it stays so.
    if recorded.outcome is Outcome.INCONCLUSIVE:
        return recorded
    return msgspec.structs.replace(recorded, outcome=evaluate(recorded.value, recorded.limit, recorded.plus_minus))


def _endings(run: RunDirectory) -> tuple[Ending, ...]:
    ended = [event for event in run.events() if event.get("kind") == "scenario"]
    try:
        return tuple(msgspec.convert(ended, list[Ending]))
    except msgspec.ValidationError as error:
        raise UsageError(f"{run.path}/events.jsonl has a scenario without an ending ({error}); run again") from None


def _worst(outcomes: set[Outcome]) -> Outcome:
    for outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS):
        if outcome in outcomes:
            return outcome
    return Outcome.INCONCLUSIVE
