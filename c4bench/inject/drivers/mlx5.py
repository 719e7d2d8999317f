"""Settings of a ConnectX NIC by which RDMA on a host goes wrong: traffic class, congestion control, time-out floor."""

from c4bench.errors import UnhealthyError
from c4bench.inject import connectx
from c4bench.inject.actions import Plan, Run, Write
from c4bench.inject.connectx import ACCELERATION, ENDS, FLOOR_OFF
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.registry import driver
from c4bench.model.fabric import ECN_BITS, ECN_CAPABLE
from c4bench.model.fault import FaultRequest


@driver("mlx5.traffic_class")
def traffic_class(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Give all packets of the device one DSCP, whatever their QP asks for; QPs that are connected follow at once.

    `cma_roce_tos` (default_roce_tos) is not used: it applies to programs of the connection manager alone.
    """
    before = connectx.forced_class(target.interface)
    wrong = int(request.number("dscp")) << ECN_BITS | ECN_CAPABLE
    if before == wrong:
        raise UnhealthyError(f"{request.where} has traffic class {wrong} for all packets already; ask for another dscp")
    path = str(connectx.traffic_class_file(target.interface))
    return Plan((target.claim("traffic class"),), (Write(path, f"{wrong}"),), (Write(path, f"{before}"),))


@driver("mlx5.dcqcn")
def dcqcn(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Switch congestion control off, at every priority at which it is on."""
    connectx.require_own_port(target.interface)
    files = connectx.congestion_control(target.interface, ENDS[request.choice("end")])
    if not files:
        raise UnhealthyError(f"{request.where} has DCQCN off already at its {request.choice('end')} point")
    return Plan(
        (target.claim("DCQCN"),),
        tuple(Write(str(path), "0") for path in files),
        tuple(Write(str(path), "1") for path in files),
        sudden=len(files),
    )


@driver("mlx5.ack_floor")
def ack_floor(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Take away, or put back, the floor of acknowledgement time-outs of the whole function (register ROCE_ACCL)."""
    connectx.require_own_port(target.interface)
    found, off = connectx.read_acceleration(target.interface), request.choice("floor") == "off"
    if not found.get(f"{FLOOR_OFF}_field_select"):
        raise UnhealthyError(f"the firmware of {request.where} does not let the floor of time-outs be set")
    if (found[FLOOR_OFF] == 1) == off:
        raise UnhealthyError(f"{request.where} has the floor of time-outs {request.choice('floor')} already")
    commands = [_set_floor(target, found, value) for value in (int(off), found[FLOOR_OFF])]
    return Plan((target.claim("time-out floor"),), (commands[0],), (commands[1],))


def _set_floor(target: InterfaceTarget, found: dict[str, int], value: int) -> Run:
    """Only the one field is selected, so that no other one is written."""
    selected = [f"{name}={int(name.startswith(FLOOR_OFF))}" for name in found if name.endswith("_select")]
    fields = ",".join([*selected, f"{FLOOR_OFF}={value}"])
    where = ("-d", connectx.pci_address(target.interface), "--yes", "--reg_name", ACCELERATION)
    return Run((connectx.tool("mlxreg"), *where, "--set", fields))
