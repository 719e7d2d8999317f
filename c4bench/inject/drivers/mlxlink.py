"""What `mlxlink` does to the port of a ConnectX NIC, Ethernet or InfiniBand: off and on, and its speed on InfiniBand.

The port itself goes down, so the switch sees it, and nothing of RDMA passes. `ip link set down` asks the same of the
port's register, but firmware that keeps links up (KEEP_ETH_LINK_UP_P1 of mlxconfig, as shipped) leaves the port up: the
kernel reports the RDMA port down, and the switch sees no change.
"""

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.inject import connectx
from c4bench.inject.actions import Plan, Run, together
from c4bench.inject.drivers import netdev
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.registry import driver
from c4bench.inject.targets import HostTarget
from c4bench.model.fault import FaultRequest

# Speed names of four lanes, by link rate (InfiniBand 4x).
_SPEEDS = {"10G": "SDR", "40G": "QDR", "100G": "EDR", "200G": "HDR"}


@driver("mlxlink.off")
def off(request: FaultRequest, target: InterfaceTarget) -> Plan:  # noqa: ARG001  (the interface of a driver)
    """Switch the port off; the revert switches it on. Addresses and routes stay, as with a cable that is pulled."""
    return _off(target)


def _off(target: InterfaceTarget) -> Plan:
    connectx.require_own_port(target.interface)
    state = connectx.port_state(connectx.read_mlxlink(target.interface))
    if state.lower() != "active":
        raise UnhealthyError(f"the port of {target.interface.name} is {state}, not Active; choose one that is up")
    return Plan((target.claim("link"),), (_port_state(target, "DN"),), (_port_state(target, "UP"),))


@driver("mlxlink.flap")
def flap(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Switch the port off and on repeatedly; once is what mlxlink calls a toggle."""
    return msgspec.structs.replace(_off(target), rhythm=netdev.schedule(request))


@driver("mlxlink.data_cut")
def data_cut(request: FaultRequest, target: HostTarget) -> Plan:
    """Switch off the ports of all NICs: no tool drops RDMA packets with the links up."""
    if not target.nics:
        raise UnhealthyError(f"{request.host} has no NICs in the inventory (c4.nics is empty)")
    return together(*(_off(nic) for nic in target.nics))


@driver("mlxlink.speed")
def infiniband_speed(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Enable one speed only and retrain the link; revert to the speeds enabled before and retrain."""
    connectx.require_own_port(target.interface)
    requested = _SPEEDS.get(request.choice("speed"))
    enabled = connectx.enabled_speeds(connectx.read_mlxlink(target.interface))
    if requested not in enabled:
        raise UnhealthyError(
            f"{request.where} has {', '.join(enabled)} enabled, not {request.choice('speed')}; choose an enabled speed"
        )
    commands = [
        _mlxlink(target, "--speeds", ",".join(speeds), "--port_state", "TG") for speeds in ([requested], enabled)
    ]
    return Plan((target.claim("link"),), (commands[0],), (commands[1],))


def _port_state(target: InterfaceTarget, state: str) -> Run:
    return _mlxlink(target, "--port_state", state)


def _mlxlink(target: InterfaceTarget, *options: str) -> Run:
    return Run((connectx.tool("mlxlink"), "-d", connectx.pci_address(target.interface), *options))
