"""Drivers by name: each turns a request and the target as found into a plan, and touches nothing.

To add one: write the function in the module of its kind, and list it here under the name that the catalogue uses.
"""

from collections.abc import Callable, Mapping
from typing import Any

from c4bench.errors import UnhealthyError
from c4bench.inject import gpus, interfaces, targets
from c4bench.inject.actions import Plan
from c4bench.inject.drivers import (
    accelerator,
    forwarding,
    host,
    infiniband,
    mlx5,
    netdev,
    nvidia,
    pcie,
    process,
    sonic,
    switch,
)
from c4bench.model.fault import FaultRequest, FaultSpec, TargetKind

# The second argument is the target of that kind (see `targets`).
DRIVERS: Mapping[str, Callable[[FaultRequest, Any], Plan]] = {
    "accelerator.clock": accelerator.clock,
    "accelerator.error": accelerator.error,
    "accelerator.hang": accelerator.hang,
    "accelerator.power": accelerator.power,
    "netdev.blackhole": netdev.blackhole,
    "netdev.corrupt": netdev.corrupt,
    "netdev.delay": netdev.delay,
    "netdev.down": netdev.down,
    "netdev.flap": netdev.flap,
    "netdev.gid": netdev.gid,
    "netdev.loss": netdev.loss,
    "netdev.mtu": netdev.mtu,
    "netdev.rate": netdev.rate,
    "netdev.reorder": netdev.reorder,
    "forwarding.acks_lost": forwarding.acks_lost,
    "forwarding.ecmp_member": forwarding.ecmp_member,
    "forwarding.misrouted": forwarding.misrouted,
    "host.clock_step": host.clock_step,
    "host.crash": host.crash,
    "host.data_cut": host.data_cut,
    "host.disk_full": host.disk_full,
    "host.management_cut": host.management_cut,
    "host.memory": host.memory,
    "host.reboot": host.reboot,
    "process.exit": process.exit_rank,
    "process.hang": process.hang,
    "process.intermittent": process.intermittent,
    "process.kill": process.kill,
    "process.memory": process.memory,
    "process.segfault": process.segfault,
    "process.slow": process.slow,
    "process.stop": process.stop,
    "switch.down": switch.down,
    "infiniband.speed": infiniband.speed,
    "mlx5.qos": mlx5.qos,
    "mlx5.speed": mlx5.speed,
    "nvidia.clock": nvidia.clock,
    "nvidia.power": nvidia.power,
    "nvidia.xid": nvidia.xid,
    "pcie.speed": pcie.speed,
    "sonic.down": sonic.down,
    "sonic.speed": sonic.speed,
}


def plan(spec: FaultSpec, request: FaultRequest) -> tuple[Plan, dict[str, str]]:
    """What to do to this host, and the listing of what it may disturb as it is now (empty for a process).

    Raises UsageError when the target is not there, UnhealthyError when the fault has no driver for this hardware.
    """
    kind = _hardware(spec, request)
    driver = spec.drivers.get(kind) or spec.drivers.get("any")
    if driver is None:
        choice = ", ".join(sorted(spec.drivers)) or "nothing by itself"
        raise UnhealthyError(
            f"{spec.name} has no driver for {kind} such as {request.where}; it can be done on: {choice}"
        )
    target = targets.examine(spec.target, request)
    return DRIVERS[driver](request, target), target.listing


def _hardware(spec: FaultSpec, request: FaultRequest) -> str:
    """The word for what the target is made of, as the catalogue uses it."""
    match spec.target:
        case TargetKind.NIC | TargetKind.PORT:
            return interfaces.hardware(request.interface)
        case TargetKind.SWITCH:
            return "ethernet"
        case TargetKind.GPU:
            return gpus.hardware()
    return "any"
