"""Witnesses of a GPU's faults: by the vendor's tool, or for a simulated one by a rank that computes on it."""

from c4bench.inject import accelerators, gpus
from c4bench.inject.witness import figure
from c4bench.inject.witness.base import Witness
from c4bench.inject.witness.pace import ComputePace, Standstill
from c4bench.inject.witness.state import ENDED, ProcessState
from c4bench.model.fault import FaultRequest


def clock(request: FaultRequest) -> Witness:
    """A low clock."""
    return figure.gpu_clock(request) if _real() else ComputePace(accelerators.as_rank(request))


def power(request: FaultRequest) -> Witness:
    """A low power limit."""
    return figure.gpu_power(request) if _real() else ComputePace(accelerators.as_rank(request))


def standstill(request: FaultRequest) -> Witness:
    """A kernel that does not return."""
    return Standstill(accelerators.as_rank(request))


def ended(request: FaultRequest) -> Witness:
    """A rank that cannot go on."""
    return ProcessState(ENDED, accelerators.as_rank(request))


def _real() -> bool:
    return gpus.hardware() == "nvidia"
