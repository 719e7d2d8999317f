"""InfiniBand ports of ConnectX NICs, by `mlxlink`."""

import re

from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, Run, run
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest

# Speed names of four lanes, by link rate (InfiniBand 4x).
_SPEEDS = {"10G": "SDR", "40G": "QDR", "100G": "EDR", "200G": "HDR"}
_ENABLED = re.compile(r"Enabled Link Speed\s*:\s*0x[0-9a-f]+\s*\(([^)]*)\)")


@driver("infiniband.speed")
def speed(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Enable one speed only and retrain the link; revert to the speeds enabled before and retrain."""
    device = target.interface.device
    requested = _SPEEDS.get(request.choice("speed"))
    enabled = enabled_speeds(run(("mlxlink", "-d", device), None))
    if requested not in enabled:
        raise UnhealthyError(
            f"{request.where} has {', '.join(enabled)} enabled, not {request.choice('speed')}; choose an enabled speed"
        )
    commands = [
        Run(("mlxlink", "-d", device, "--speeds", ",".join(speeds), "--port_state", "TG"))
        for speeds in ([requested], enabled)
    ]
    return Plan((f"link of {device}",), (commands[0],), (commands[1],))


def enabled_speeds(text: str) -> list[str]:
    """The speeds that the port may negotiate. Raises UnhealthyError when mlxlink does not list them."""
    match = _ENABLED.search(text)
    if match is None:
        raise UnhealthyError("mlxlink lists no enabled speeds; check that this is an InfiniBand port")
    return [word.strip() for word in match[1].split(",")]
