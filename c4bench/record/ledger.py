"""Record measurements: each is compared with its limit and written at once."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from c4bench.errors import UsageError
from c4bench.model.measurement import PLUS_MINUS, Clock, Measurement, evaluate
from c4bench.record.encoding import finite
from c4bench.record.run import RunDirectory, slug

_LIMITS = ("at_least", "at_most", "equals", PLUS_MINUS)
_NEAR = 0.8  # of all letters


class Ledger:
    """The measurements of one scenario of a run."""

    def __init__(self, run: RunDirectory, scenario: str) -> None:
        self._run = run
        self._scenario = scenario
        self._taken: list[Measurement] = []

    @property
    def taken(self) -> tuple[Measurement, ...]:
        """The measurements recorded so far, in order."""
        return tuple(self._taken)

    def measure(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        equals: float | None = None,
        clock: Clock = Clock.VIRTUAL,
        plus_minus: float = 0.0,
        **labels: str | int | float,
    ) -> Measurement:
        """Record `value` and its outcome against its limit; a value that is not finite is inconclusive.

        `plus_minus` is the error of the value, such as between two hosts' clocks; a limit is missed only beyond it.

        A missed limit raises nothing. Raises UsageError for two limits, and for a label that is a misspelt limit.
        """
        _check_labels(labels)
        number, limit = finite(value), _limit(at_least, at_most, equals)
        outcome = evaluate(number, limit, plus_minus)
        labels = labels | ({PLUS_MINUS: plus_minus} if plus_minus else {})
        measurement = Measurement(self._scenario, name, number, unit, limit, outcome, clock, labels)
        self._run.append(measurement)
        self._taken.append(measurement)
        return measurement

    def save(self, name: str, artefact: Any) -> None:  # noqa: ANN401  (any struct msgspec can encode)
        """Save this scenario's own artefact of that name, beside those of the run's other scenarios."""
        self._run.save(f"{name}/{slug(self._scenario)}", artefact)


def _check_labels(labels: Iterable[str]) -> None:
    """A label that is nearly the name of a limit was to be one; without it the measurement would judge nothing."""
    for label in labels:
        if near := get_close_matches(label, _LIMITS, n=1, cutoff=_NEAR):
            raise UsageError(f"{label!r} is no limit of a measurement; did you mean {near[0]}?")


def _limit(at_least: float | None, at_most: float | None, equals: float | None) -> str:
    bounds = [(sign, bound) for sign, bound in ((">=", at_least), ("<=", at_most), ("==", equals)) if bound is not None]
    if len(bounds) > 1:
        raise UsageError("a measurement has one limit; give one of at_least, at_most, equals")
    return "".join(f"{sign} {float(bound)!r}".removesuffix(".0") for sign, bound in bounds)
