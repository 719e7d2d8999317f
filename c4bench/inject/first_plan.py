"""Whether the target here can have a fault at all: the first plan that its driver makes, with whatever parameters."""

from collections.abc import Iterable, Iterator

import msgspec

from c4bench.errors import C4Error, UnhealthyError
from c4bench.inject import catalogue, fault_session, gpus, targets
from c4bench.inject.protocol import Planned
from c4bench.model.fault import FaultRequest, FaultSpec, Parameter, TargetKind, Value


def first_plan(spec: FaultSpec, request: FaultRequest) -> Planned:
    """A plan with the fault's default parameters or, where the driver refuses them, with others.

    A port fault that names no port is planned at each port that is up, until one can have it. A fault that needs a
    running rank is planned as far as its driver, and has no commands. Raises C4Error with the reason of the first
    attempt when there is no plan.
    """
    errors: list[C4Error] = []
    for attempt in _attempts(spec, _at_each_port(spec, request)):
        try:
            return _planned(spec, attempt)
        except C4Error as error:
            errors.append(error)
    raise errors[0] if errors else UnhealthyError(f"{request.host} has no port that is up")


def _planned(spec: FaultSpec, request: FaultRequest) -> Planned:
    fault_session.driver_for(spec, request)
    if _needs_rank(spec):
        return Planned((), (), hardware=fault_session.hardware_of(spec, request))
    return fault_session.planned(spec, request)


def _needs_rank(spec: FaultSpec) -> bool:
    """Whether a plan needs a rank: of a process, or of a GPU that ranks simulate."""
    return spec.target is TargetKind.PROCESS or (spec.target is TargetKind.GPU and gpus.hardware() == "simulated")


def _at_each_port(spec: FaultSpec, request: FaultRequest) -> list[FaultRequest]:
    if spec.target is not TargetKind.PORT or request.port is not None:
        return [request]
    return [msgspec.structs.replace(request, port=port.netdev) for port in targets.switch_ports(request)]


def _attempts(spec: FaultSpec, requests: Iterable[FaultRequest]) -> Iterator[FaultRequest]:
    """The requests with all parameters: the first set at each place, then the next."""
    for parameters in parameter_sets(spec):
        yield from (msgspec.structs.replace(request, parameters=parameters) for request in requests)


def parameter_sets(spec: FaultSpec) -> Iterator[dict[str, Value]]:
    """The parameters with which a fault may be tried: the defaults, then each other choice and the least of each."""
    usual = {name: _usual(parameter) for name, parameter in spec.parameters.items()}
    yield catalogue.values(spec, usual)
    for name, parameter in spec.parameters.items():
        least = () if parameter.minimum is None else (parameter.minimum,)
        for value in (*parameter.choices, *least):
            if value != usual[name]:
                yield catalogue.values(spec, usual | {name: value})


def _usual(parameter: Parameter) -> Value:
    """The default; else the first choice, or the least number."""
    if parameter.default is not None:
        return parameter.default
    return parameter.choices[0] if parameter.choices else (parameter.minimum or 0.0)
