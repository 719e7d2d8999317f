"""Faults of GPUs: of NVIDIA's with `nvidia-smi` and the Data Center GPU Manager (DCGM), and of the simulated one.

A fault of the simulated accelerator applies to every rank that computes on it.
"""

import os
import time
from collections.abc import Mapping

from c4bench.collective.gpu_links import GpuKnob, GpuLinksFile
from c4bench.errors import UnhealthyError
from c4bench.inject import gpus, processes
from c4bench.inject.actions import Plan, Run, SetGpuLink, SetKnob
from c4bench.inject.gpus import AcceleratorTarget, GpuTarget
from c4bench.inject.processes import compute_factor
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest
from c4bench.workload.controls import Knob

_XID_FIELD = "230"  # DCGM_FI_DEV_XID_ERRORS


@driver("nvidia.clock")
def nvidia_clock(request: FaultRequest, target: GpuTarget) -> Plan:
    """Lock the graphics clock; the revert unlocks it. No earlier lock is restored: nvidia-smi reports none."""
    requested_mhz = request.number("clock_mhz")
    if requested_mhz >= target.clock_max_mhz:
        raise UnhealthyError(f"{request.where} runs at {target.clock_max_mhz:g} MHz at most; ask for a lower clock")
    locked = _smi(target, f"--lock-gpu-clocks={requested_mhz:g},{requested_mhz:g}")
    return Plan((f"clock of GPU {target.index}",), (locked,), (_smi(target, "--reset-gpu-clocks"),))


@driver("nvidia.power")
def nvidia_power(request: FaultRequest, target: GpuTarget) -> Plan:
    """Lower the power limit; the revert restores it."""
    requested_w = request.number("limit_w")
    if not target.least_w <= requested_w < target.limit_w:
        raise UnhealthyError(
            f"{request.where} has a limit of {target.limit_w:g} W and supports {target.least_w:g} W at least; "
            f"{requested_w:g} W is not between them"
        )
    commands = [_smi(target, f"--power-limit={limit:g}") for limit in (requested_w, target.limit_w)]
    return Plan((f"power of GPU {target.index}",), (commands[0],), (commands[1],))


@driver("nvidia.xid")
def xid(request: FaultRequest, target: GpuTarget) -> Plan:
    """Inject an XID error into DCGM; an event cannot be reverted."""
    value = f"{request.number('xid'):g}"
    argv = ("dcgmi", "test", "--inject", "--gpuid", f"{target.index}", "-f", _XID_FIELD, "-v", value)
    return Plan((f"events of GPU {target.index}",), (Run(argv),), ())


def _smi(target: GpuTarget, option: str) -> Run:
    return Run(("nvidia-smi", "-i", f"{target.index}", option))


@driver("accelerator.clock")
def simulated_clock(request: FaultRequest, target: AcceleratorTarget) -> Plan:
    """Lower the clock: computing takes longer by the ratio to the highest clock."""
    if request.number("clock_mhz") >= gpus.SIMULATED_CLOCK_MHZ:
        raise UnhealthyError(f"{request.where} runs at {gpus.SIMULATED_CLOCK_MHZ:g} MHz at most; ask for a lower clock")
    return _slow_ranks(request, target)


@driver("accelerator.power")
def simulated_power(request: FaultRequest, target: AcceleratorTarget) -> Plan:
    """Cap the power: computing takes longer, as at the clock that draws no more than the limit."""
    if request.number("limit_w") >= gpus.SIMULATED_POWER_W:
        raise UnhealthyError(f"{request.where} draws {gpus.SIMULATED_POWER_W:g} W at most; ask for less")
    return _slow_ranks(request, target)


@driver("accelerator.hang")
def hang(request: FaultRequest, target: AcceleratorTarget) -> Plan:
    """A kernel does not return. The rank ends the hang by itself when the lease ends, even if the injector dies."""
    return _set_knob(target, "running", "stuck_until_s", time.monotonic() + request.lease_s)


@driver("accelerator.error")
def error(request: FaultRequest, target: AcceleratorTarget) -> Plan:
    """The next kernel ends with an error, and its rank cannot continue."""
    return _set_knob(target, "life", "device_error", request.number("xid"))


@driver("accelerator.link_rate")
def link_rate(request: FaultRequest, target: AcceleratorTarget) -> Plan:
    """Have a GPU's link to the others of its host carry a fraction of its rate."""
    ends: dict[str, tuple[GpuKnob, ...]] = {
        "tx": ("send_fraction",),
        "rx": ("receive_fraction",),
        "both": ("send_fraction", "receive_fraction"),
    }
    return _set_links(target, dict.fromkeys(ends[request.choice("direction")], request.number("fraction")))


@driver("accelerator.link_down")
def link_down(request: FaultRequest, target: AcceleratorTarget) -> Plan:  # noqa: ARG001  (the interface of a driver)
    """Have a GPU's link carry nothing; what ranks send over it waits."""
    return _set_links(target, {"down": 1.0})


def _set_links(target: AcceleratorTarget, values: Mapping[GpuKnob, float]) -> Plan:
    gpu = target.index
    descriptor, path = processes.open_gpu_links()
    try:
        found = {knob: GpuLinksFile(descriptor, path).read(gpu, knob) for knob in values}
    finally:
        os.close(descriptor)
    return Plan(
        tuple(f"{knob} of the link of GPU {gpu}" for knob in values),
        tuple(SetGpuLink(gpu, knob, value) for knob, value in values.items()),
        tuple(SetGpuLink(gpu, knob, was) for knob, was in found.items()),
        sudden=len(values),
    )


def _slow_ranks(request: FaultRequest, target: AcceleratorTarget) -> Plan:
    factor = gpus.slowdown(request)
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
