"""A measurement as a line of a file."""

import math

import msgspec

from c4bench.model.measurement import Clock, Measurement, Outcome


class MeasurementLine(msgspec.Struct, frozen=True):
    """One line of `measurements.jsonl` or `timings.jsonl`; a value that is not a number is null."""

    scenario: str
    name: str
    value: float | None
    unit: str
    limit: str
    outcome: Outcome
    clock: Clock
    labels: dict[str, str | int | float]

    def measurement(self) -> Measurement:
        """The measurement that was written, with NaN for null."""
        value = math.nan if self.value is None else self.value
        return Measurement(
            self.scenario, self.name, value, self.unit, self.limit, self.outcome, self.clock, self.labels
        )
