"""Two runs side by side: which scenarios and measurements ended differently, and how far values moved. Pure."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from c4bench.model.measurement import PLUS_MINUS, Measurement, Outcome
from c4bench.report.verdict import Verdict

_GOOD = (Outcome.PASS, Outcome.INFO)
# Labels that are part of the result, as an interval is.
_RESULTS = frozenset({PLUS_MINUS, "low", "high", "mean"})
Key = tuple[str, str, tuple[tuple[str, object], ...], int]


class Pair(NamedTuple):
    """A measurement in both runs; None in the one that has none of it."""

    before: Measurement | None
    after: Measurement | None

    @property
    def change(self) -> float:
        """The value's change as a share of the first; NaN where there is none, infinite from zero."""
        if self.before is None or self.after is None:
            return math.nan
        old, new = self.before.value, self.after.value
        if old == new:
            return 0.0
        return (new - old) / abs(old) if old else math.copysign(math.inf, new)

    @property
    def is_worse(self) -> bool:
        """Whether a limit that was met, or information, is now missed or inconclusive."""
        if self.before is None or self.after is None:
            return False
        return self.before.outcome in _GOOD and self.after.outcome not in _GOOD


class Comparison(NamedTuple):
    """What differs: scenarios by name with the outcomes before and after, "" for none; and pairs, the worst first."""

    scenarios: tuple[tuple[str, str, str], ...]
    pairs: tuple[Pair, ...]
    same: int

    @property
    def worse(self) -> bool:
        """Whether a scenario or a measurement that was good before is not any more."""
        failed = (Outcome.FAIL.value, Outcome.INCONCLUSIVE.value)
        return any(old == "pass" and new in failed for _, old, new in self.scenarios) or any(
            pair.is_worse for pair in self.pairs
        )


def compare(before: Verdict, after: Verdict) -> Comparison:
    """Match scenarios by name; measurements by scenario, name, labels and order. `same` counts equal measurements."""
    old, new = _keyed(before), _keyed(after)
    pairs = [Pair(old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys(), key=str)]
    different = [pair for pair in pairs if pair.change != 0.0]
    return Comparison(
        _scenarios(_endings(before, after), _endings(after, before)),
        tuple(sorted(different, key=_urgency)),
        len(pairs) - len(different),
    )


def _keyed(verdict: Verdict) -> dict[Key, Measurement]:
    """Measurements by what identifies them; those alike are numbered in the order in which they were taken."""
    keyed: dict[Key, Measurement] = {}
    for one in (*verdict.measurements, *verdict.timings):
        labels = tuple(sorted(label for label in one.labels.items() if label[0] not in _RESULTS))
        number = 0
        while (key := (one.scenario, one.name, labels, number)) in keyed:
            number += 1
        keyed[key] = one
    return keyed


def _endings(verdict: Verdict, other: Verdict) -> dict[str, str]:
    """Outcomes by scenario. A problem that only the other run has, such as a session cut short, is none here."""
    problems = {problem.scenario: Outcome.PASS.value for problem in other.problems}
    return problems | {ending.scenario: ending.outcome.value for ending in (*verdict.scenarios, *verdict.problems)}


def _scenarios(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    names: Iterable[str] = sorted(old.keys() | new.keys())
    return tuple((name, old.get(name, ""), new.get(name, "")) for name in names if old.get(name) != new.get(name))


def _urgency(pair: Pair) -> tuple[bool, float]:
    """What became worse first, then the largest changes; what only one run has comes last."""
    change = abs(pair.change)
    return not pair.is_worse, -change if not math.isnan(change) else math.inf
