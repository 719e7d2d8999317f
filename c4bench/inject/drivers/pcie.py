"""The speed of a NIC's PCIe link, by the registers of the upstream port (PCI Express Base Specification 7.5.3)."""

from c4bench.decoding import decoding
from c4bench.errors import UnhealthyError
from c4bench.inject import connectx
from c4bench.inject.actions import Plan, Run
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest

# Link Control 2, whose low four bits are the target speed, and Link Control, whose bit 5 retrains the link.
_TARGET, _SPEED_BITS = "CAP_EXP+30.w", 0xF
_RETRAIN = "CAP_EXP+10.w=20:20"


@driver("pcie.speed")
def pcie_speed(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Lower the target speed and retrain the link; the revert does the same with the speed before."""
    connectx.require_own_port(target.interface)
    above = (connectx.SYSFS / "infiniband" / target.interface.device / "device").resolve().parent.name
    printed = connectx.ask("setpci", "-s", above, _TARGET).strip()
    with decoding():
        current = int(printed, 16)
    requested = int(request.number("generation"))
    if requested >= current & _SPEED_BITS:
        raise UnhealthyError(f"{request.where} runs at generation {current & _SPEED_BITS} at most; ask for a lower one")
    commands = [
        (
            Run(("setpci", "-s", above, f"{_TARGET}={value & _SPEED_BITS:x}:{_SPEED_BITS:x}")),
            Run(("setpci", "-s", above, _RETRAIN)),
        )
        for value in (requested, current)
    ]
    return Plan((f"PCIe link of {above}",), commands[0], commands[1])
