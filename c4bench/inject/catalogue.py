"""The catalogue: one YAML file a fault, and the check of what is asked for against it."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from c4bench.errors import UsageError
from c4bench.model.fault import FaultRequest, FaultSpec, Parameter, TargetKind, Value
from c4bench.resources import resource

LEASE_MAX_S = 3600.0


class Catalogue:
    """Every fault, by name."""

    def __init__(self, specs: Mapping[str, FaultSpec]) -> None:
        self.specs = dict(specs)

    def find(self, name: str) -> FaultSpec:
        """The fault of that name. Raises UsageError with the near ones, or all of them."""
        if name not in self.specs:
            near = difflib.get_close_matches(name, self.specs, cutoff=0.5)
            raise UsageError(
                f"there is no fault {name!r}; {'near it' if near else 'known'}: {', '.join(near or self.specs)}"
            )
        return self.specs[name]

    def resolve(self, request: FaultRequest) -> tuple[FaultSpec, FaultRequest]:
        """The fault asked for, and the request with every default filled in. Raises UsageError where they clash."""
        spec = self.find(request.fault)
        _check_target(spec, request)
        if not 0 < request.lease_s <= LEASE_MAX_S:
            raise UsageError(f"{spec.name}: a lease of {request.lease_s:g} s is not between 0 and {LEASE_MAX_S:g} s")
        if not 0 < request.witness_s < request.lease_s:
            raise UsageError(
                f"{spec.name}: the witness looks for {request.witness_s:g} s, which is no part of the lease"
            )
        return spec, msgspec.structs.replace(request, parameters=_values(spec, request.parameters))


def load(directory: Path | None = None) -> Catalogue:
    """Read the catalogue (the project's own by default). Raises UsageError naming the file and the key."""
    paths = sorted((directory or resource("faults")).glob("*.yml"))
    return Catalogue({path.stem: _read(path) for path in paths})


def schema() -> dict[str, Any]:
    """The JSON Schema of a catalogue file, as editors and `faults/schema.json` want it."""
    found = msgspec.json.schema(FaultSpec)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A fault of the catalogue", **found}


def _read(path: Path) -> FaultSpec:
    try:
        spec = msgspec.convert(yaml.safe_load(path.read_text()), FaultSpec)
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {error}") from None
    if spec.name != path.stem:
        raise UsageError(f"{path}: names its fault {spec.name!r}; name the file {spec.name}.yml")
    return spec


def _check_target(spec: FaultSpec, request: FaultRequest) -> None:
    named = request.the_nic if spec.target is TargetKind.NIC else request.the_rank
    if spec.target is TargetKind.PROCESS and request.nic is not None:
        raise UsageError(f"{spec.name} happens to a process, not to NIC {request.nic.name}; leave the NIC out")
    if isinstance(named, tuple) or request.job is None:
        return
    raise UsageError(f"{spec.name} happens to a NIC, not to a rank of job {request.job}; leave the job out")


def _values(spec: FaultSpec, given: Mapping[str, Value]) -> dict[str, Value]:
    unknown = sorted(given.keys() - spec.parameters.keys())
    if unknown:
        known = ", ".join(spec.parameters) or "none"
        raise UsageError(f"{spec.name} has no parameter {unknown[0]!r}; it has: {known}")
    return {
        name: _value(spec.name, name, knob, given.get(name, knob.default)) for name, knob in spec.parameters.items()
    }


def _value(fault: str, name: str, knob: Parameter, value: Value | None) -> Value:
    if value is None:
        raise UsageError(f"{fault}: {name} is not given; say it, {_allowed(knob)}")
    if knob.type == "choice":
        if value in knob.choices:
            return value
    else:
        number = _number(value)
        low, high = knob.minimum, knob.maximum
        if number is not None and (low is None or number >= low) and (high is None or number <= high):
            return number
    raise UsageError(f"{fault}: {name} is {value!r}; it must be {_allowed(knob)}")


def _number(value: Value) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _allowed(knob: Parameter) -> str:
    if knob.type == "choice":
        return " or ".join(knob.choices)
    bounds = [("at least", knob.minimum), ("at most", knob.maximum)]
    return " and ".join(f"{word} {bound:g} {knob.unit}".rstrip() for word, bound in bounds if bound is not None)
