"""What `mlnx_qos` sets in a ConnectX NIC: the rate of its traffic classes, and the field that it trusts.

All of it is done by the hardware, so it applies to RDMA. `devlink port function rate` limits virtual functions only, in
switchdev mode, and `dcb maxrate` of iproute2 before 6.18 takes bytes for bits, so neither is used.
"""

import math
import shutil

from c4bench.errors import UnhealthyError
from c4bench.inject import connectx
from c4bench.inject.actions import Plan, Run
from c4bench.inject.connectx import CLASSES, Qos
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest

# What it prints, with exit code 0, when the kernel has refused a limit.
_REFUSED = "Rate limit is not supported"
_ROUNDING = 1e-6


@driver("mlnx_qos.class_rate")
def class_rate(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Limit one traffic class. The tool sets all eight limits at once, so all eight are restored."""
    return _limited(request, target, (int(request.number("traffic_class")),))


@driver("mlnx_qos.rate")
def rate(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Limit every traffic class that has no lower limit, each to the same rate: the data's class gets no more."""
    if request.choice("direction") != "tx":
        raise UnhealthyError(
            f"{request.where} limits only what it sends; use direction tx, nic.speed, or link.rate at the switch's port"
        )
    return _limited(request, target, tuple(range(CLASSES)))


def _limited(request: FaultRequest, target: InterfaceTarget, classes: tuple[int, ...]) -> Plan:
    dev, found = target.interface.netdev, _found(target)
    limit = _whole_gbps(request)
    if odd := [rate for rate in found.limits_gbps if not rate.is_integer()]:
        raise UnhealthyError(
            f"{request.where} has a limit of {odd[0]:g} Gbit/s, which cannot be restored: mlnx_qos sets whole ones"
        )
    before = [int(old) for old in found.limits_gbps]
    limited = [limit if number in classes and not 0 < old <= limit else old for number, old in enumerate(before)]
    if limited == before:
        raise UnhealthyError(
            f"{request.where} limits class {classes[0]} to {before[classes[0]]} Gbit/s already, no more than {limit}; "
            "ask for a smaller fraction"
        )
    commands = [_mlnx_qos(dev, "-r", ",".join(map(str, rates)), refusal=_REFUSED) for rates in (limited, before)]
    return Plan((f"traffic classes of {dev}",), (commands[0],), (commands[1],))


def _whole_gbps(request: FaultRequest) -> int:
    """The requested share of the NIC's rate in the tool's unit, rounded down."""
    if request.nic is None or not request.nic.rate_bps:
        raise UnhealthyError(f"the inventory has no rate of {request.where}; add it, such as rate: 100gbit")
    limit = math.floor(request.number("fraction") * request.nic.rate_bps / 1e9 + _ROUNDING)
    if limit < 1:
        raise UnhealthyError(
            f"mlnx_qos limits to 1 Gbit/s at least, {1e9 / request.nic.rate_bps:.2%} of {request.where}; "
            "ask for a larger fraction"
        )
    return limit


@driver("mlnx_qos.trust")
def trust(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Trust the priority of the VLAN tag, which routed packets do not have, instead of the DSCP.

    Without `mlnx_qos` it is done by `dcb` of iproute2: the kernel's own driver trusts DSCPs while any has a priority.
    """
    if not shutil.which("mlnx_qos") and shutil.which("dcb"):
        return _trust_by_dcb(request, target)
    dev, found = target.interface.netdev, _found(target)
    if found.trust != "dscp":
        trusted = f"trusts {found.trust} already" if found.trust else "does not say what it trusts"
        raise UnhealthyError(f"{request.where} {trusted}; set it to DSCP first: mlnx_qos -i {dev} --trust dscp")
    again = [_mlnx_qos(dev, "--dscp2prio", argument) for argument in connectx.corrections(found.priorities)]
    return Plan((f"trust of {dev}",), (_mlnx_qos(dev, "--trust", "pcp"),), (_mlnx_qos(dev, "--trust", "dscp"), *again))


def _trust_by_dcb(request: FaultRequest, target: InterfaceTarget) -> Plan:
    connectx.require_own_port(target.interface)
    dev = target.interface.netdev
    pairs = connectx.read_dcb_dscp(dev)
    if not pairs:
        raise UnhealthyError(
            f"{request.where} has no priority for any DSCP, so it does not trust it; set some: dcb app"
        )
    mapped = [f"{dscp}:{priority}" for dscp, priority in pairs]
    none = Run(("dcb", "app", "flush", "dev", dev, "dscp-prio"))
    return Plan((f"trust of {dev}",), (none,), (Run(("dcb", "app", "replace", "dev", dev, "dscp-prio", *mapped)),))


def _found(target: InterfaceTarget) -> Qos:
    """The settings now. Raises UnhealthyError where this host does not decide about them."""
    connectx.require_own_port(target.interface)
    found = connectx.read_qos(target.interface.netdev)
    if found.by_firmware:
        raise UnhealthyError(
            f"the firmware of {target.interface.name} negotiates queues with the switch (DCBX), which would undo this; "
            f"see `mlnx_qos -i {target.interface.netdev} --dcbx os`"
        )
    return found


def _mlnx_qos(dev: str, *options: str, refusal: str = "") -> Run:
    return Run(("mlnx_qos", "-i", dev, *options), refusal=refusal)
