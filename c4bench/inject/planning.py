"""Choose the driver for a fault on this host's hardware, and let it plan."""

from c4bench.errors import UnhealthyError
from c4bench.inject import gpus, interfaces, targets
from c4bench.inject.actions import Plan
from c4bench.inject.registry import DRIVERS, installed
from c4bench.model.fault import FaultRequest, FaultSpec, TargetKind


def plan(spec: FaultSpec, request: FaultRequest) -> tuple[Plan, dict[str, str]]:
    """The plan, and the listing of the target's state before it (empty for a process).

    Raises UsageError when the target does not exist, UnhealthyError when the fault has no driver for this hardware.
    """
    hardware = _hardware(spec, request)
    driver = spec.drivers.get(hardware) or spec.drivers.get("any")
    if driver is None:
        supported = ", ".join(sorted(spec.drivers)) or "nothing by itself"
        raise UnhealthyError(
            f"{spec.name} has no driver for {hardware} such as {request.where}; it can be done on: {supported}"
        )
    target = targets.examine(spec.target, request)
    return installed(DRIVERS, "driver", driver)(request, target), target.listing


def _hardware(spec: FaultSpec, request: FaultRequest) -> str:
    """The target's kind of hardware, as the keys of `drivers` in the catalogue name it."""
    match spec.target:
        case TargetKind.NIC | TargetKind.PORT:
            return interfaces.hardware(request.interface)
        case TargetKind.SWITCH:
            return "ethernet"
        case TargetKind.GPU:
            return gpus.hardware()
    return "any"
