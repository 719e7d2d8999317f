"""What `ethtool` sets on the link of an Ethernet NIC: its speed and its forward error correction."""

from c4bench.errors import UnhealthyError
from c4bench.inject import connectx
from c4bench.inject.actions import Plan, Run
from c4bench.inject.connectx import Link
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest


@driver("ethtool.speed")
def speed(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Fix the link at one speed; revert to negotiation, or to the fixed speed before."""
    connectx.require_own_port(target.interface)
    dev = target.interface.netdev
    link = connectx.read_link(dev)
    requested_mbps = int(request.choice("speed").removesuffix("G")) * 1000
    if not link.speed_mbps:
        raise UnhealthyError("ethtool reports no speed; check that the link is up")
    if requested_mbps >= link.speed_mbps:
        raise UnhealthyError(
            f"{request.where} runs at {link.speed_mbps} Mb/s, no more than {requested_mbps}; ask for a lower speed"
        )
    if not any(mode.startswith(f"{requested_mbps}base") for mode in link.supported):
        raise UnhealthyError(f"{request.where} does not support {requested_mbps} Mb/s; see `ethtool {dev}`")
    slower = Run(("ethtool", "-s", dev, "speed", f"{requested_mbps}", "autoneg", "off"))
    return Plan((f"link of {dev}",), (slower,), (Run(("ethtool", "-s", dev, *_restore(request, link))),))


def _restore(request: FaultRequest, link: Link) -> tuple[str, ...]:
    if not link.negotiates:
        return ("speed", f"{link.speed_mbps}", "autoneg", "off")
    if link.advertised != link.supported:
        raise UnhealthyError(
            f"{request.where} advertises fewer link modes than it supports, which cannot be restored exactly; "
            "advertise all of them"
        )
    return ("autoneg", "on")


@driver("ethtool.fec")
def fec(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Fix another forward error correction than the link uses; revert to what was configured."""
    connectx.require_own_port(target.interface)
    dev, requested = target.interface.netdev, request.choice("encoding")
    found, link = connectx.read_fec(dev), connectx.read_link(dev)
    if requested == found.active:
        raise UnhealthyError(f"{request.where} uses FEC {requested} already; ask for another")
    if requested not in link.supported_fec:
        listed = ", ".join(link.supported_fec) or "none that ethtool reports"
        raise UnhealthyError(f"{request.where} does not support FEC {requested}; it supports: {listed}")
    if not found.configured:
        raise UnhealthyError(
            f"ethtool does not say what FEC is configured on {request.where}, so it cannot be restored"
        )
    other = Run(("ethtool", "--set-fec", dev, "encoding", requested))
    return Plan((f"link of {dev}",), (other,), (Run(("ethtool", "--set-fec", dev, "encoding", *found.configured)),))
