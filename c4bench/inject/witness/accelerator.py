"""Witnesses of GPU faults: nvidia-smi, or for a simulated GPU a rank that computes on it."""

from c4bench.inject import accelerators, gpus
from c4bench.inject.registry import witness
from c4bench.inject.witness import figure, state
from c4bench.inject.witness.base import Witness
from c4bench.inject.witness.pace import ComputePace, Standstill
from c4bench.model.fault import FaultRequest


@witness("gpu_clock")
def clock(request: FaultRequest) -> Witness:
    """Witness of a low clock."""
    return figure.gpu_clock(request) if _real() else ComputePace(accelerators.as_rank(request))


@witness("gpu_power")
def power(request: FaultRequest) -> Witness:
    """Witness of a low power limit."""
    return figure.gpu_power(request) if _real() else ComputePace(accelerators.as_rank(request))


@witness("gpu_standstill")
def standstill(request: FaultRequest) -> Witness:
    """Witness of a kernel that does not return."""
    return Standstill(accelerators.as_rank(request))


@witness("gpu_ended")
def ended(request: FaultRequest) -> Witness:
    """Witness of a rank that ended on an error."""
    return state.ended(accelerators.as_rank(request))


def _real() -> bool:
    return gpus.hardware() == "nvidia"
