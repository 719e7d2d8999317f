"""Parse a parameter's value, such as `2ms` or `25%`, into the unit of the catalogue."""

import re
from collections.abc import Mapping

from c4bench.errors import UsageError
from c4bench.model.fault import Parameter, Value

_NUMBER = re.compile(r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z%]*)\s*")
_SCALES: Mapping[str, Mapping[str, float]] = {
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0},
    "bytes": {"B": 1.0, "bytes": 1.0, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30},
    "times": {"x": 1.0, "times": 1.0},
    "W": {"W": 1.0, "mW": 1e-3, "kW": 1e3},
    "MHz": {"MHz": 1.0, "GHz": 1e3},
    "bit/s": {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9},
}
_SHARE = {"%": 1e-2}


def value(fault: str, name: str, parameter: Parameter, requested: Value | None) -> Value:
    """`requested` (or the default) in the parameter's unit. Raises UsageError that says what is allowed."""
    if requested is None:
        requested = parameter.default
    if requested is None:
        raise UsageError(f"{fault}: {name} is not given; give {allowed(parameter)}")
    if parameter.type == "choice":
        if requested in parameter.choices:
            return requested
    else:
        number = _number(fault, name, parameter, requested)
        low, high = parameter.minimum, parameter.maximum
        if number is not None and (low is None or number >= low) and (high is None or number <= high):
            return number
    raise UsageError(f"{fault}: {name} is {requested!r}; it must be {allowed(parameter)}")


def allowed(parameter: Parameter) -> str:
    """`at least 0.001 s and at most 0.1 s`, `tx or rx`."""
    if parameter.type == "choice":
        return " or ".join(parameter.choices)
    bounds = [("at least", parameter.minimum), ("at most", parameter.maximum)]
    return " and ".join(f"{word} {bound:g} {parameter.unit}".rstrip() for word, bound in bounds if bound is not None)


def _number(fault: str, name: str, parameter: Parameter, requested: Value) -> float | None:
    if not isinstance(requested, str):
        return float(requested)
    match = _NUMBER.fullmatch(requested)
    if match is None:
        return None
    scales = _SCALES.get(parameter.unit, _SHARE if parameter.unit.startswith("of ") else {})
    if match[2] and match[2] not in scales:
        known = ", ".join(scales) or "no unit"
        raise UsageError(
            f"{fault}: {name} is {requested!r}, whose unit is wrong; use one for {parameter.unit}: {known}"
        )
    return float(match[1]) * scales.get(match[2], 1.0)
