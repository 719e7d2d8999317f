"""The state of a fault's target, examined for each kind of target."""

from c4bench.errors import UsageError
from c4bench.inject import accelerators, gpus, hosts, interfaces, processes, switches
from c4bench.inject.accelerators import AcceleratorTarget
from c4bench.inject.gpus import GpuTarget
from c4bench.inject.hosts import HostTarget
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.processes import ProcessTarget
from c4bench.inject.switches import SwitchTarget
from c4bench.model.fault import FaultRequest, TargetKind

Target = InterfaceTarget | SwitchTarget | HostTarget | ProcessTarget | GpuTarget | AcceleratorTarget


def examine(kind: TargetKind, request: FaultRequest) -> Target:
    """The target; its `listing` is everything that a fault may change, as text. Raises C4Error when it is missing."""
    match kind:
        case TargetKind.NIC | TargetKind.PORT:
            return interfaces.examine(request.interface)
        case TargetKind.SWITCH:
            return switches.examine(request)
        case TargetKind.HOST:
            return hosts.examine(request)
        case TargetKind.PROCESS:
            return processes.find(request)
        case TargetKind.GPU:
            return gpus.examine(request) if gpus.hardware() == "nvidia" else accelerators.examine(request)
        case TargetKind.COMPOUND:
            raise UsageError(f"{request.fault} is a compound fault; name a target for each part")
