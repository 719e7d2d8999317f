"""The verdict on a run, from its directory alone."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from c4bench.decoding import DecodingError, decoding
from c4bench.errors import InconclusiveError, UnhealthyError, UsageError
from c4bench.model.measurement import Measurement, Outcome, evaluate
from c4bench.record import RunDirectory

SESSION = "the session"  # what a problem is called that is about all tests
_NOT_PASSED = (Outcome.FAIL, Outcome.INCONCLUSIVE)  # the first decides
_EXIT = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCONCLUSIVE: InconclusiveError.exit_code}
# Exit codes of pytest that only say whether tests failed.
_JUDGED = frozenset({0, 1, InconclusiveError.exit_code})
# A run that skipped a larger share of its scenarios says too little about the hosts to pass.
_SKIPPED_AT_MOST = 0.5


class Ending(msgspec.Struct, frozen=True):
    """The outcome of a scenario, apart from its measurements; `plain` is a test without hosts or measurements."""

    scenario: str
    outcome: Outcome
    reason: str = ""
    plain: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on a run. `measurements` and `timings` carry outcomes evaluated again.

    `changed` counts those whose recorded outcome differs: a value, limit or outcome was edited. `problems` went wrong
    outside every scenario: tests that could not be collected, a session that was cut short.
    """

    measurements: tuple[Measurement, ...]
    timings: tuple[Measurement, ...]
    scenarios: tuple[Ending, ...]
    changed: int
    problems: tuple[Ending, ...] = ()

    @property
    def not_passed(self) -> tuple[Ending, ...]:
        """The problems, and the scenarios that failed or were inconclusive."""
        return tuple(one for one in (*self.problems, *self.scenarios) if one.outcome in _NOT_PASSED)

    @property
    def outcome(self) -> Outcome:
        """The outcome of the run, as `evaluate_run` describes it."""
        outcomes = {measurement.outcome for measurement in (*self.measurements, *self.timings)}
        outcomes |= {ending.outcome for ending in (*self.problems, *self.scenarios)}
        for outcome in _NOT_PASSED:
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
        """Whether more than half of the scenarios were skipped; plain tests say nothing about the hosts."""
        scenarios = [ending for ending in self.scenarios if not ending.plain]
        return sum(ending.outcome is Outcome.SKIP for ending in scenarios) > _SKIPPED_AT_MOST * len(scenarios)


def evaluate_run(run_dir: Path) -> Verdict:
    """Evaluate a run directory again, without hardware. Nothing else decides on a run.

    One miss, failed test or file that cannot be collected fails the run. Otherwise the run is inconclusive if a
    measurement or test is, if its tests were cut short, if more than half of its scenarios were skipped, or if no limit
    was checked and no test passed. Raises UsageError if `run_dir` is not a run directory or is damaged.
    """
    run = RunDirectory(run_dir)
    recorded = run.measurements(), run.timings()
    measurements, timings = (tuple(_evaluate_again(measurement) for measurement in group) for group in recorded)
    before = [measurement.outcome for group in recorded for measurement in group]
    after = [measurement.outcome for measurement in (*measurements, *timings)]
    changed = sum(old is not new for old, new in zip(before, after, strict=True))
    return Verdict(measurements, timings, _endings(run), changed, _problems(run))


def conclude(run: RunDirectory, code: int) -> int:
    """The exit code for a run whose pytest has ended with `code`: the verdict's; a code that says more stays.

    A code that the records do not explain is recorded: hosts were lost, pytest has died, or a plugin has had its say.
    """
    verdict = evaluate_run(run.path)
    unexplained = verdict.outcome is Outcome.PASS or (code not in _JUDGED and run.finished)
    if code and unexplained:
        unhealthy = code == UnhealthyError.exit_code
        reason = "hosts were not healthy" if unhealthy else f"pytest ended with exit code {code}"
        run.end_session(Outcome.INCONCLUSIVE if unhealthy else Outcome.FAIL, reason)
        verdict = evaluate_run(run.path)
    return verdict.exit_code if code in _JUDGED else code


def _evaluate_again(recorded: Measurement) -> Measurement:
    # The value does not show why a measurement was inconclusive (a fault that no witness saw): keep that outcome.
    if recorded.outcome is Outcome.INCONCLUSIVE:
        return recorded
    return msgspec.structs.replace(recorded, outcome=evaluate(recorded.value, recorded.limit, recorded.plus_minus))


def _endings(run: RunDirectory) -> tuple[Ending, ...]:
    """The outcomes of all sessions of a run. A scenario that no session ran is skipped once."""
    endings = _recorded(run, "scenario")
    ran = [ending for ending in endings if ending.outcome is not Outcome.SKIP]
    skipped = {ending.scenario: ending for ending in endings if ending.outcome is Outcome.SKIP}
    for ending in ran:
        skipped.pop(ending.scenario, None)
    return (*ran, *skipped.values())


def _problems(run: RunDirectory) -> tuple[Ending, ...]:
    """What went wrong outside every scenario; of several sessions the last one has had to run to its end."""
    noted = _recorded(run, "problem")
    last = run.last_session()
    if last is not None:
        noted += [_ending(run, {"scenario": SESSION} | dict(last))]
    return tuple(problem for problem in noted if problem.outcome in _NOT_PASSED)


def _recorded(run: RunDirectory, kind: str) -> list[Ending]:
    return [_ending(run, event) for event in run.events() if event.get("kind") == kind]


def _ending(run: RunDirectory, event: Mapping[str, Any]) -> Ending:
    try:
        with decoding():
            return msgspec.convert(event, Ending)
    except DecodingError as error:
        raise UsageError(f"{run.path}/events.jsonl has a scenario without an ending ({error}); run again") from None
