"""Measurements for people: which head the report, how values are formatted, and what a name is in plain words."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec
import yaml

from c4bench.cost.ack_timeout import elsewhere
from c4bench.model.measurement import PLUS_MINUS, Measurement, Outcome
from c4bench.resources import resource
from c4bench.units import format_rate, format_size, format_time

# The labels of a time of rxe that waits for the retries of a QP with these attributes, and for no longer than that.
QP_TIMEOUT, QP_RETRY_CNT, QP_PATIENCE_S = "qp_timeout", "qp_retry_cnt", "qp_patience_s"
_MOST = 12
_TEST = re.compile(r"::|\.py-")
_RANK = {Outcome.FAIL: 0, Outcome.INCONCLUSIVE: 1, Outcome.PASS: 2, Outcome.INFO: 3, Outcome.SKIP: 4}
_FORMATS: dict[str, Callable[[float], str]] = {
    "s": format_time,
    "bit/s": format_rate,
    "B": lambda value: format_size(round(value)),
}


class Headline(NamedTuple):
    """The worst of `shared_by` measurements of one name and limit: the one that misses it most, or is nearest to it."""

    measurement: Measurement
    shared_by: int


def headlines(measurements: Iterable[Measurement]) -> list[Headline]:
    """The worst of each name and limit: all that missed, then others in the order taken, until the page is full."""
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for measurement in measurements:
        if measurement.limit:
            groups.setdefault((measurement.scenario, measurement.name, measurement.limit), []).append(measurement)
    worst = [Headline(min(group, key=_urgency), len(group)) for group in groups.values()]
    worst.sort(key=lambda headline: _RANK[headline.measurement.outcome])
    missed = sum(headline.measurement.outcome is not Outcome.PASS for headline in worst)
    return worst[: max(_MOST, missed)]


def margin(measurement: Measurement) -> float:
    """How far inside its limit a value is, as a share of the limit; negative when it missed. NaN without a number."""
    sign, bound = measurement.limit.split()
    limit = float(bound)
    inside = (measurement.value - limit) if sign[0] == ">" else (limit - measurement.value)
    return (-abs(inside) if sign == "==" else inside) / (abs(limit) or 1.0)


def format_value(measurement: Measurement) -> str:
    """Format the value with its unit and error, and what hardware would make of it where that is known."""
    if math.isnan(measurement.value):
        return "no value"
    error = f" ± {format_quantity(measurement.plus_minus, measurement.unit)}" if measurement.plus_minus else ""
    return format_quantity(measurement.value, measurement.unit) + error + _on_hardware(measurement)


def _on_hardware(measurement: Measurement) -> str:
    """What a time that waits for a QP's retries would be on other NICs, by `cost.ack_timeout`; "" for any other."""
    timeout, retries = (measurement.labels.get(name) for name in (QP_TIMEOUT, QP_RETRY_CNT))
    if measurement.unit != "s" or not isinstance(timeout, int) or not isinstance(retries, int):
        return ""
    patience_s = float(measurement.labels.get(QP_PATIENCE_S, math.inf))
    known = elsewhere(measurement.value, timeout, retries, patience_s)
    times = (f"{format_time(time_s)} on {nic}" for nic, time_s in known.items())
    return f"; by model {', '.join(times)}"


def format_limit(measurement: Measurement) -> str:
    """Format the limit with its unit; empty without a limit."""
    if not measurement.limit:
        return ""
    sign, bound = measurement.limit.split()
    symbol = {">=": "≥", "<=": "≤", "==": "="}.get(sign, sign)
    return f"{symbol} {format_quantity(float(bound), measurement.unit)}"


def format_labels(measurement: Measurement) -> str:
    """The labels in one line, such as `case ECMP · hosts 8`."""
    hidden = {PLUS_MINUS, QP_TIMEOUT, QP_RETRY_CNT, QP_PATIENCE_S}
    labels = sorted((name, value) for name, value in measurement.labels.items() if name not in hidden)
    return " · ".join(f"{name} {value}" for name, value in labels)


def sentence(measurement: Measurement) -> str:
    """Format a measurement as one line: `link.goodput_fraction = 0.9989 (≥ 0.99)  bytes 1048576 · rate 1e10`."""
    limit, labels = format_limit(measurement), format_labels(measurement)
    suffix = f"{f' ({limit})' if limit else ''}{f'  {labels}' if labels else ''}"
    return f"{measurement.name} = {format_value(measurement)}{suffix}"


def short(scenario: str) -> str:
    """A scenario's short name: `even[8]` of `tests/scenarios/c4p/test_x.py::test_even[8]` or of its artefact's name."""
    return _TEST.split(scenario)[-1].removeprefix("test_").replace("_", " ")


def by_scenario(measurements: Iterable[Measurement]) -> list[tuple[str, Sequence[Measurement]]]:
    """Measurements grouped by scenario, both in the order taken."""
    groups: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(measurement.scenario, []).append(measurement)
    return list(groups.items())


def format_quantity(value: float, unit: str) -> str:
    """A value and its unit, scaled where the unit is an SI base unit; unit `1` is a bare number."""
    if unit in _FORMATS and value:
        return _FORMATS[unit](value)
    return f"{value:.4g}" if unit in {"1", ""} else f"{value:.4g} {unit}"


def _urgency(measurement: Measurement) -> tuple[int, float]:
    return _RANK[measurement.outcome], margin(measurement)


@cache
def plain_names() -> Mapping[str, str]:
    """The plain words by measurement name."""
    text = resource("reports", "templates", "measurements.yml").read_text()
    return msgspec.convert(yaml.safe_load(text), dict[str, str])


def plain(name: str) -> str:
    """A measurement in plain words; "" for one that is not in the list, such as a user's own."""
    return plain_names().get(name, "")
