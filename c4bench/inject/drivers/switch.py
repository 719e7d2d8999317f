"""Faults of switches whose kernel forwards: all ports down, and forwarding faults.

A forwarding fault loses or misroutes packets while links, queues and counters are healthy.
"""

from collections.abc import Callable

from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, Run, together
from c4bench.inject.drivers import netdev
from c4bench.inject.interfaces import INGRESS, InterfaceTarget, device_of, words
from c4bench.inject.registry import driver
from c4bench.inject.targets import SwitchTarget
from c4bench.model.fault import FaultRequest


@driver("switch.down")
def switch_down(request: FaultRequest, target: SwitchTarget) -> Plan:
    """Set every port down; the revert sets all up, then restores their routes."""
    if not target.ports:
        raise UnhealthyError(f"{request.host} has no port that is up; choose another switch")
    plans = [netdev.down(request, port) for port in target.ports]
    both = together(*plans)
    links = tuple(plan.revert[0] for plan in plans)
    return Plan(both.claims, both.apply, (*links, *(a for a in both.revert if a not in links)), both.sudden)


# A locally administered MAC address that no port has.
_UNUSED_MAC = "02:c4:de:ad:00:00"
_PREFERENCE = "7"
_ROCE_PORT = "4791"
# The base transport header's first byte (IBTA 9.2): acknowledgement of a reliable connection.
_ACKNOWLEDGE = "0x11"
# Offset after an IPv4 header without options and the UDP header, bytes.
_OPCODE_OFFSET = "28"


@driver("forwarding.ecmp_member")
def ecmp_member(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Give the port's next hop a MAC address that no device has."""
    netdev, netns, hop = target.interface.netdev, target.netns, target.neighbour
    if not hop:
        raise UnhealthyError(f"{request.where} has no next hop; name a port that a route uses")
    fixed = next((line for line in target.lines("neighbour") if line[0] == hop), None)
    wrong = Run(("ip", "neighbour", "replace", hop, "lladdr", _UNUSED_MAC, "dev", netdev, "nud", "permanent"), netns)
    if fixed:
        words = (*[word for word in fixed if word != "PERMANENT"], "dev", netdev, "nud", "permanent")
        right = Run(("ip", "neighbour", "replace", *words), netns)
    else:  # the kernel resolves it again
        right = Run(("ip", "neighbour", "del", hop, "dev", netdev), netns)
    return Plan((target.claim("neighbour"), target.claim("link")), (wrong,), (right,))


@driver("forwarding.acks_lost")
def acks_lost(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Drop only the acknowledgements that leave by the port."""
    netdev, netns = target.interface.netdev, target.netns
    if any(qdisc.kind in INGRESS for qdisc in target.qdiscs()):
        raise UnhealthyError(
            f"{request.where} has its own filters; remove them first: tc qdisc del dev {netdev} clsact"
        )
    match = (
        *("protocol", "ip", "pref", _PREFERENCE, "u32"),
        *("match", "ip", "dport", _ROCE_PORT, "0xffff"),
        *("match", "u8", _ACKNOWLEDGE, "0xff", "at", _OPCODE_OFFSET),
    )
    apply = (
        Run(("tc", "qdisc", "add", "dev", netdev, "clsact"), netns),
        Run(("tc", "filter", "add", "dev", netdev, "egress", *match, "action", "drop"), netns),
    )
    return Plan((target.claim("ingress"),), apply, (Run(("tc", "qdisc", "del", "dev", netdev, "clsact"), netns),))


@driver("forwarding.misrouted")
def misrouted(request: FaultRequest, target: InterfaceTarget) -> Plan:  # noqa: ARG001  (the interface of a driver)
    """Leave this port as the only next hop of every ECMP route that uses it."""
    return _routed(target, lambda hops: [_unweighted(next(hop for hop in hops if _leaves_by(target, hop)))])


@driver("forwarding.ecmp_out")
def ecmp_out(request: FaultRequest, target: InterfaceTarget) -> Plan:  # noqa: ARG001  (the interface of a driver)
    """Take this port out of every ECMP route that uses it."""
    return _routed(target, lambda hops: _others(target, hops))


def _routed(target: InterfaceTarget, kept: Callable[[list[str]], list[list[str]]]) -> Plan:
    """Every ECMP route that uses the port with the next hops that are `kept`: one, or several after `nexthop`."""
    netns = target.netns
    routes = [line.split(" nexthop ") for line in target.ecmp_routes()]
    apply, revert, devices = [], [], set()
    for destination, *hops in routes:
        left = [word for hop in kept(hops) for word in hop]
        apply.append(Run(("ip", "-4", "route", "replace", *words(destination), *left), netns))
        every = [word for hop in hops for word in ("nexthop", *words(hop))]
        revert.append(Run(("ip", "-4", "route", "replace", *words(destination), *every), netns))
        devices |= {device_of(hop) for hop in hops}
    # A link change rewrites the same routes.
    claims = tuple(target.claim("link", device) for device in sorted(devices))
    return Plan(claims, tuple(apply), tuple(revert), sudden=len(apply))


def _leaves_by(target: InterfaceTarget, hop: str) -> bool:
    return f"dev {target.interface.netdev} " in hop


def _others(target: InterfaceTarget, hops: list[str]) -> list[list[str]]:
    left = [hop for hop in hops if not _leaves_by(target, hop)]
    return [_unweighted(left[0])] if len(left) == 1 else [["nexthop", *words(hop)] for hop in left]


def _unweighted(hop: str) -> list[str]:
    return words(hop.partition(" weight ")[0])
