"""NVIDIA GPUs, by `nvidia-smi` and the data centre GPU manager."""

from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, Run
from c4bench.inject.gpus import GpuTarget
from c4bench.model.fault import FaultRequest

_XID_FIELD = "230"  # DCGM_FI_DEV_XID_ERRORS


def clock(request: FaultRequest, target: GpuTarget) -> Plan:
    """Lock the graphics clock. The tool does not tell an earlier lock: what comes back is no lock."""
    wanted = request.number("clock_mhz")
    if wanted >= target.clock_max_mhz:
        raise UnhealthyError(f"{request.where} runs at {target.clock_max_mhz:g} MHz at most; ask for a lower clock")
    locked = _smi(target, f"--lock-gpu-clocks={wanted:g},{wanted:g}")
    return Plan((f"clock of GPU {target.index}",), (locked,), (_smi(target, "--reset-gpu-clocks"),))


def power(request: FaultRequest, target: GpuTarget) -> Plan:
    """Lower the power limit, then set it to what it was."""
    wanted = request.number("limit_w")
    if not target.least_w <= wanted < target.limit_w:
        raise UnhealthyError(
            f"{request.where} may draw {target.limit_w:g} W now and can be held to {target.least_w:g} W at least; "
            f"{wanted:g} W is not between"
        )
    told = [_smi(target, f"--power-limit={limit:g}") for limit in (wanted, target.limit_w)]
    return Plan((f"power of GPU {target.index}",), (told[0],), (told[1],))


def xid(request: FaultRequest, target: GpuTarget) -> Plan:
    """Put an error into the manager's books; an event is not taken back."""
    value = f"{request.number('xid'):g}"
    words = ("dcgmi", "test", "--inject", "--gpuid", f"{target.index}", "-f", _XID_FIELD, "-v", value)
    return Plan((f"events of GPU {target.index}",), (Run(words),), ())


def _smi(target: GpuTarget, option: str) -> Run:
    return Run(("nvidia-smi", "-i", f"{target.index}", option))
