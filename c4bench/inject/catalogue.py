"""The catalogue of faults, one YAML file each and what others add, and the check of requests against it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from c4bench import extensions
from c4bench.decoding import DecodingError, from_yaml
from c4bench.errors import UsageError, meant
from c4bench.model.fault import FaultRequest, FaultSpec, Parameter, TargetKind, Value
from c4bench.resources import resource

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


LEASE_MAX_S = 3600.0
# What to write where a request names no target of the fault's kind.
_TARGET_MISSING = {
    TargetKind.NIC: "a NIC, and none is named; say which, such as h5/0",
    TargetKind.PORT: "a switch's port, and none is named; say which, such as leaf0/up1",
    TargetKind.PROCESS: "a process, and none is named; say whose, such as rank 2 of job train",
    TargetKind.GPU: "a GPU, and none is named; say which, such as h5/gpu0",
}


class Catalogue:
    """Every fault, by name."""

    def __init__(self, specs: Mapping[str, FaultSpec]) -> None:
        self.specs = specs

    def find(self, name: str) -> FaultSpec:
        """The fault of that name. Raises UsageError that names a similar one, or all."""
        spec = self.specs.get(name)
        if spec is None:
            near = meant(name, self.specs, f"; there are {', '.join(self.specs)}")
            raise UsageError(f"there is no fault {name!r}{near}")
        return spec

    def resolve(self, request: FaultRequest) -> tuple[FaultSpec, FaultRequest]:
        """The fault, and the request with all defaults filled in. Raises UsageError for a request that does not fit."""
        spec = self.find(request.fault)
        _check_target(spec, request)
        if not 0 < request.lease_s <= LEASE_MAX_S:
            raise UsageError(f"{spec.name}: a lease of {request.lease_s:g} s is not between 0 and {LEASE_MAX_S:g} s")
        if not 0 < request.witness_s < request.lease_s:
            raise UsageError(
                f"{spec.name}: a witness_s of {request.witness_s:g} s is not between 0 and the lease, "
                f"{request.lease_s:g} s"
            )
        return spec, msgspec.structs.replace(request, parameters=values(spec, request.parameters))


def load(directory: Path | None = None) -> Catalogue:
    """The files of a folder, by default our own and what others add. Raises UsageError naming the file and the key."""
    return Catalogue(_FAULTS if directory is None else dict(_Files(directory)))


def schema() -> dict[str, Any]:
    """The JSON Schema of a catalogue file, for editors and `faults/schema.json`."""
    rules = msgspec.json.schema(FaultSpec)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A fault of the catalogue", **rules}


def values(spec: FaultSpec, requested: Mapping[str, Value]) -> dict[str, Value]:
    """Every parameter's value, in its unit. Raises UsageError for an unknown parameter or a value out of range."""
    unknown = sorted(requested.keys() - spec.parameters.keys())
    if unknown:
        known = ", ".join(spec.parameters) or "none"
        raise UsageError(f"{spec.name} has no parameter {unknown[0]!r}; it has: {known}")
    return {name: value(spec.name, name, knob, requested.get(name)) for name, knob in spec.parameters.items()}


def read(path: Path) -> FaultSpec:
    """The fault that a file describes. Raises UsageError naming the file and the key."""
    try:
        spec = from_yaml(path.read_bytes(), FaultSpec)
    except (OSError, DecodingError) as error:
        raise UsageError(f"{path}: {error}") from None
    if spec.name != path.stem:
        raise UsageError(f"{path}: names its fault {spec.name!r}; name the file {spec.name}.yml")
    return spec


class _Files(Mapping[str, FaultSpec]):
    """The faults of a folder, each read when it is asked for: all of them take a third of an injector's start."""

    def __init__(self, directory: Path) -> None:
        self._paths = {path.stem: path for path in sorted(directory.glob("*.yml"))}
        self._read: dict[str, FaultSpec] = {}

    def __getitem__(self, name: str) -> FaultSpec:
        if name not in self._read:
            self._read[name] = read(self._paths[name])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def _is_fault(name: str, entry: object) -> bool:
    return isinstance(entry, FaultSpec) and entry.name == name


_FAULTS: extensions.Registry[FaultSpec] = extensions.Registry(
    extensions.FAULTS, "a FaultSpec of that name", lambda: _Files(resource("faults")), _is_fault
)


def _check_target(spec: FaultSpec, request: FaultRequest) -> None:
    given = {
        TargetKind.NIC: request.nic is not None,
        TargetKind.PORT: request.port is not None,
        TargetKind.PROCESS: request.job is not None and request.rank is not None,
        TargetKind.GPU: request.gpu is not None,
    }
    if spec.target is TargetKind.COMPOUND:
        raise UsageError(
            f"{spec.name} is several faults: {', '.join(part.fault for part in spec.parts)}; name a target for each"
        )
    superfluous = [kind for kind, is_given in given.items() if is_given and kind is not spec.target]
    if spec.target in given and not given[spec.target]:
        raise UsageError(f"{spec.name} happens to {_TARGET_MISSING[spec.target]}")
    if superfluous:
        raise UsageError(
            f"{spec.name} happens to a {spec.target}, not to a {superfluous[0]} such as {request.where}; leave it out"
        )
