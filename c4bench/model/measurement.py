"""Measurements with a name, a unit and a limit; evaluation is separate from measuring."""

import math
import operator
import re
from collections.abc import Callable
from enum import StrEnum

import msgspec

from c4bench.errors import UsageError

_LIMIT = re.compile(r"(>=|<=|==|>|<) (\S+)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


class Outcome(StrEnum):
    """How a measurement stands against its limit, or how a scenario ended.

    `info` is a measurement without a limit; `skip` is a scenario that did not run.
    """

    PASS = "pass"  # noqa: S105  (the word, not a password)
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    INFO = "info"
    SKIP = "skip"


class Clock(StrEnum):
    """Which clock a figure was taken on: the lab's, the machine's, or none because it was counted."""

    VIRTUAL = "virtual"
    MACHINE = "machine"
    NONE = "none"


PLUS_MINUS = "plus_minus"


class Measurement(msgspec.Struct, frozen=True):
    """One line of `measurements.jsonl` or `timings.jsonl`.

    The label `plus_minus`, where there is one, is how much the value may be wrong by: clocks of two hosts are not one.
    """

    scenario: str
    name: str
    value: float
    unit: str
    limit: str
    outcome: Outcome
    clock: Clock
    labels: dict[str, str | int | float] = {}

    @property
    def plus_minus(self) -> float:
        """How much the value may be wrong by."""
        label = self.labels.get(PLUS_MINUS, 0.0)
        try:
            return float(label)
        except ValueError:
            raise UsageError(f"{self.name}: plus_minus {label!r} is no number; run again") from None


def evaluate(value: float, limit: str, plus_minus: float = 0.0) -> Outcome:
    """Compare `value` with a limit such as `">= 0.97"`; an empty limit is `info`, a NaN value is inconclusive.

    A limit is missed only where every value from `value` - `plus_minus` to `value` + `plus_minus` misses it.
    """
    if math.isnan(value):
        return Outcome.INCONCLUSIVE
    if not limit:
        return Outcome.INFO
    match = _LIMIT.fullmatch(limit)
    try:
        bound = float(match[2]) if match else math.nan
    except ValueError:
        bound = math.nan
    if match is None or math.isnan(bound):
        raise UsageError(f"limit {limit!r} is not a comparison; write one such as '>= 0.97'")
    low, high = value - plus_minus, value + plus_minus
    possible = (low, min(max(bound, low), high), high) if plus_minus else (value,)
    return Outcome.PASS if any(_COMPARE[match[1]](candidate, bound) for candidate in possible) else Outcome.FAIL
