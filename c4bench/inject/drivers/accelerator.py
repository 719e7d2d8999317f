"""The simulated accelerator: a fault applies to every rank that computes on it."""

import time

from c4bench.errors import UnhealthyError
from c4bench.inject import accelerators
from c4bench.inject.accelerators import AcceleratorTarget
from c4bench.inject.actions import Plan, SetKnob
from c4bench.inject.processes import compute_factor
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest
from c4bench.workload.controls import Knob


@driver("accelerator.clock")
def clock(request: FaultRequest, target: AcceleratorTarget) -> Plan:
    """Lower the clock: computing takes longer by the ratio to the highest clock."""
    if request.number("clock_mhz") >= accelerators.CLOCK_MHZ:
        raise UnhealthyError(f"{request.where} runs at {accelerators.CLOCK_MHZ:g} MHz at most; ask for a lower clock")
    return _slow_ranks(request, target)


@driver("accelerator.power")
def power(request: FaultRequest, target: AcceleratorTarget) -> Plan:
    """Cap the power: computing takes longer, as at the clock that draws no more than the limit."""
    if request.number("limit_w") >= accelerators.POWER_W:
        raise UnhealthyError(f"{request.where} draws {accelerators.POWER_W:g} W at most; ask for less")
    return _slow_ranks(request, target)


@driver("accelerator.hang")
def hang(request: FaultRequest, target: AcceleratorTarget) -> Plan:
    """A kernel does not return. The rank ends the hang by itself when the lease ends, even if the injector dies."""
    return _set_knob(target, "running", "stuck_until_s", time.monotonic() + request.lease_s)


@driver("accelerator.error")
def error(request: FaultRequest, target: AcceleratorTarget) -> Plan:
    """The next kernel ends with an error, and its rank cannot continue."""
    return _set_knob(target, "life", "device_error", request.number("xid"))


def _slow_ranks(request: FaultRequest, target: AcceleratorTarget) -> Plan:
    factor = accelerators.slowdown(request)
    paths = [rank.controls for rank in target.ranks]
    factors = [compute_factor(rank) for rank in target.ranks]
    return Plan(
        tuple(f"pace of process {rank.pid}" for rank in target.ranks),
        tuple(SetKnob(str(path), "compute_factor", was * factor) for path, was in zip(paths, factors, strict=True)),
        tuple(SetKnob(str(path), "compute_factor", was) for path, was in zip(paths, factors, strict=True)),
        sudden=len(paths),
    )


def _set_knob(target: AcceleratorTarget, what: str, knob: Knob, value: float) -> Plan:
    paths = [str(rank.controls) for rank in target.ranks]
    return Plan(
        tuple(f"{what} of process {rank.pid}" for rank in target.ranks),
        tuple(SetKnob(path, knob, value) for path in paths),
        tuple(SetKnob(path, knob, 0.0) for path in paths),
        sudden=len(paths),
    )
