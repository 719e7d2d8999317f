"""Drivers by name: each turns a request and the target as found into a plan, and touches nothing.

To add one: write the function in the module of its kind, and list it here under the name that the catalogue uses.
"""

from collections.abc import Callable, Mapping

from c4bench.errors import UnhealthyError
from c4bench.inject import nics, processes
from c4bench.inject.actions import Plan
from c4bench.inject.drivers import netdev, process
from c4bench.inject.nics import NicTarget
from c4bench.inject.processes import ProcessTarget
from c4bench.model.fault import FaultRequest, FaultSpec, TargetKind

NIC_DRIVERS: Mapping[str, Callable[[FaultRequest, NicTarget], Plan]] = {
    "netdev.rate": netdev.rate,
    "netdev.loss": netdev.loss,
    "netdev.blackhole": netdev.blackhole,
    "netdev.down": netdev.down,
}
PROCESS_DRIVERS: Mapping[str, Callable[[FaultRequest, ProcessTarget], Plan]] = {
    "process.kill": process.kill,
    "process.stop": process.stop,
    "process.slow": process.slow,
}


def plan(spec: FaultSpec, request: FaultRequest) -> tuple[Plan, dict[str, str]]:
    """What to do to this host, and the listing of what it may disturb as it is now (empty for a process).

    Raises UsageError when the target is not there, UnhealthyError when the fault has no driver for this hardware.
    """
    if spec.target is TargetKind.PROCESS:
        return PROCESS_DRIVERS[spec.drivers["any"]](request, processes.find(request)), {}
    kind = nics.hardware(request.the_nic)
    driver = spec.drivers.get(kind) or spec.drivers.get("any")
    if driver is None:
        raise UnhealthyError(f"{spec.name} has no driver for {kind} NICs such as {request.where}; {_choice(spec)}")
    target = nics.examine(request.the_nic)
    return NIC_DRIVERS[driver](request, target), target.listing


def _choice(spec: FaultSpec) -> str:
    return f"it can be done on: {', '.join(sorted(spec.drivers))}"
