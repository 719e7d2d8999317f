"""NVIDIA GPUs, with `nvidia-smi` and the Data Center GPU Manager (DCGM)."""

from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, Run
from c4bench.inject.gpus import GpuTarget
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest

_XID_FIELD = "230"  # DCGM_FI_DEV_XID_ERRORS


@driver("nvidia.clock")
def clock(request: FaultRequest, target: GpuTarget) -> Plan:
    """Lock the graphics clock; the revert unlocks it. No earlier lock is restored: nvidia-smi reports none."""
    requested_mhz = request.number("clock_mhz")
    if requested_mhz >= target.clock_max_mhz:
        raise UnhealthyError(f"{request.where} runs at {target.clock_max_mhz:g} MHz at most; ask for a lower clock")
    locked = _smi(target, f"--lock-gpu-clocks={requested_mhz:g},{requested_mhz:g}")
    return Plan((f"clock of GPU {target.index}",), (locked,), (_smi(target, "--reset-gpu-clocks"),))


@driver("nvidia.power")
def power(request: FaultRequest, target: GpuTarget) -> Plan:
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
