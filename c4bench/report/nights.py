"""Compare tonight's figures with those of earlier nights: what became worse, since when, what was not measured."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from c4bench.errors import UsageError
from c4bench.model.measurement import PLUS_MINUS, Measurement, Outcome
from c4bench.record import RunDirectory
from c4bench.record.provenance import Environment, differences
from c4bench.report.headlines import format_quantity, short
from c4bench.report.statistics import Interval, median, prediction_interval
from c4bench.report.verdict import evaluate_run

NIGHT = "night"
# The chance of a false alarm on the whole page: per figure, some of hundreds of figures would be alarms every night.
_FALSE_ALARM = 0.05
NIGHTS_AT_LEAST = 3
# Smallest relative change to report, however significant.
_RELATIVE_MIN = 0.01
_SMALLER_IS_BETTER = {"s", "s/s", "B"}

Key = tuple[str, str, tuple[tuple[str, str], ...]]


class Change(msgspec.Struct, frozen=True):
    """A figure that has changed in the night `since`; `kind` is `worse`, `better` or `changed`.

    The `nights` before that predicted `low` to `high`. `against` is `nights` or `baseline`.
    """

    scenario: str
    name: str
    labels: dict[str, str]
    unit: str
    kind: str
    value: float
    low: float
    high: float
    since: str
    nights: int
    against: str

    def __str__(self) -> str:
        """One line."""
        label = f" ({', '.join(f'{key} {value}' for key, value in self.labels.items())})" if self.labels else ""
        expected = f"{format_quantity(self.low, self.unit)} to {format_quantity(self.high, self.unit)}"
        expectation = (
            f"expected {expected} after {self.nights} nights" if self.against == "nights" else f"baseline {expected}"
        )
        figure = f"{short(self.scenario)}: {self.name}{label} = {format_quantity(self.value, self.unit)}"
        return f"{figure}, {expectation}, since {self.since}"


class Comparison(msgspec.Struct, frozen=True):
    """Tonight's page: how many figures were `compared` and which changed; `lost` were measured last night, not tonight.

    `not_run` are the scenarios that ran last night and did not run tonight. `apart` names the nights that were left
    out, and what in their environment differs from tonight's.
    """

    night: str
    nights: int
    compared: int
    changes: tuple[Change, ...]
    lost: tuple[str, ...]
    apart: tuple[str, ...] = ()
    not_run: tuple[str, ...] = ()

    def of(self, kind: str) -> tuple[Change, ...]:
        """The changes of a kind."""
        return tuple(change for change in self.changes if change.kind == kind)


class NightFigures(msgspec.Struct, frozen=True):
    """A run's figures by scenario, name and labels, each the median of its repeats; and which scenarios ran."""

    name: str
    figures: dict[Key, Measurement]
    environment: Environment = Environment()
    ran: frozenset[str] = frozenset()


def read(path: Path) -> NightFigures:
    """Read a night's run directory. Raises UsageError if it is not a run directory or is damaged."""
    run, verdict = RunDirectory(path), evaluate_run(path)
    taken: dict[Key, list[Measurement]] = {}
    for measurement in (*verdict.measurements, *verdict.timings):
        if math.isfinite(measurement.value):
            taken.setdefault(_key(measurement), []).append(measurement)
    figures = {key: _median_of(repeats) for key, repeats in taken.items()}
    ran = frozenset(ending.scenario for ending in verdict.scenarios if ending.outcome is not Outcome.SKIP)
    return NightFigures(path.name, figures, run.provenance().environment, ran)


def nights(root: Path) -> list[Path]:
    """The nights' run directories in `root`, oldest first: their names begin with the time."""
    return sorted(path for path in root.glob(f"*-{NIGHT}*") if path.is_dir() and not path.is_symlink())


def compare(tonight: NightFigures, before: Sequence[NightFigures], baseline: NightFigures | None = None) -> Comparison:
    """Compare tonight's figures with those of the nights before, oldest first, and with the baseline.

    Nights of another environment are left out: their differences may not come from the code.
    """
    last, ran = (before[-1].figures, before[-1].ran) if before else ({}, frozenset())
    apart = _apart(tonight, [*before, baseline] if baseline else before)
    before = [night for night in before if night.name not in apart]
    baseline = None if baseline and baseline.name in apart else baseline
    confidence = 1 - _FALSE_ALARM / max(1, len(tonight.figures))
    changes = []
    compared = 0
    for key, now in tonight.figures.items():
        past = [(night.name, night.figures[key].value) for night in before if key in night.figures]
        compared += len(past) >= NIGHTS_AT_LEAST
        change = _since(now, tonight.name, past, confidence) or _from_baseline(now, past, baseline, key, confidence)
        changes += [change] if change else []
    lost = sorted({f"{short(key[0])}: {key[1]}" for key in last.keys() - tonight.figures.keys()})
    not_run = tuple(sorted(ran - tonight.ran))
    return Comparison(tonight.name, len(before), compared, tuple(changes), tuple(lost), _reasons(apart), not_run)


def _apart(tonight: NightFigures, others: Iterable[NightFigures]) -> dict[str, str]:
    """The nights that cannot be compared with tonight, and what differs in their environment."""
    differing = {night.name: differences(night.environment, tonight.environment) for night in others}
    return {name: what for name, what in differing.items() if what}


def _reasons(apart: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each difference: the last night that has it, and how many more have it."""
    alike: dict[str, list[str]] = {}
    for name, what in apart.items():
        alike.setdefault(what, []).append(name)
    more = {what: f" and {len(names) - 1} more" if len(names) > 1 else "" for what, names in alike.items()}
    return tuple(f"{max(names)}{more[what]}: {what}" for what, names in alike.items())


def prune(root: Path, keep: int, spare: Iterable[Path]) -> list[Path]:
    """The nights to remove, oldest first, so that `keep` are left; those in `spare` always stay."""
    if keep < 1:
        raise UsageError("at least one night has to be kept; give --keep 1 or more")
    kept = {path.resolve() for path in spare}
    return [path for path in nights(root)[:-keep] if path.resolve() not in kept]


def _since(now: Measurement, tonight: str, past: Sequence[tuple[str, float]], confidence: float) -> Change | None:
    """The change in the earliest night since which all figures lie outside what the nights before it predict."""
    series = [*past, (tonight, now.value)]
    for first in range(NIGHTS_AT_LEAST, len(series)):
        expected = _expected([value for _, value in series[:first]], confidence)
        sides = {_side(value, expected) for _, value in series[first:]}
        if len(sides) == 1 and 0 not in sides:
            return _change(now, expected, sides.pop(), series[first][0], first, "nights")
    return None


def _from_baseline(
    now: Measurement, past: Sequence[tuple[str, float]], baseline: NightFigures | None, key: Key, confidence: float
) -> Change | None:
    """Detect a slow decline: a figure further from the baseline than any two nights differ."""
    then = baseline.figures.get(key) if baseline else None
    if baseline is None or then is None or len(past) < NIGHTS_AT_LEAST:
        return None
    spread = prediction_interval([value for _, value in past], confidence)
    reach = max((spread.high - spread.low) / 2 * math.sqrt(2), _RELATIVE_MIN * abs(then.value))
    expected = Interval(then.value, then.value - reach, then.value + reach)
    side = _side(now.value, expected)
    return _change(now, expected, side, baseline.name, len(past), "baseline") if side else None


def _expected(values: Sequence[float], confidence: float) -> Interval:
    interval = prediction_interval(values, confidence)
    least = _RELATIVE_MIN * abs(interval.mean)
    return Interval(interval.mean, min(interval.low, interval.mean - least), max(interval.high, interval.mean + least))


def _side(value: float, expected: Interval) -> int:
    """1 above the expected interval, -1 below it, 0 inside."""
    return (value > expected.high) - (value < expected.low)


def _change(now: Measurement, expected: Interval, side: int, since: str, before: int, against: str) -> Change:
    return Change(
        scenario=now.scenario,
        name=now.name,
        labels=dict(_key(now)[2]),
        unit=now.unit,
        kind=_kind(now, side),
        value=now.value,
        low=expected.low,
        high=expected.high,
        since=since,
        nights=before,
        against=against,
    )


def _kind(now: Measurement, side: int) -> str:
    sign = now.limit[:1]
    if sign in {"<", ">"}:
        return "worse" if (side > 0) == (sign == "<") else "better"
    if now.limit:  # it had to be exactly so
        return "worse"
    if now.unit in _SMALLER_IS_BETTER:
        return "worse" if side > 0 else "better"
    return "changed"


def _key(measurement: Measurement) -> Key:
    """Identifies a figure. Labels that are fractions are left out: they are measured, and differ every night."""
    whole = {
        key: str(value)
        for key, value in measurement.labels.items()
        if key != PLUS_MINUS and (not isinstance(value, float) or value.is_integer())
    }
    return measurement.scenario, measurement.name, tuple(sorted(whole.items()))


def _median_of(repeats: Sequence[Measurement]) -> Measurement:
    return msgspec.structs.replace(repeats[-1], value=median([measurement.value for measurement in repeats]))
