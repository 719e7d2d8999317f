"""Faults of switches: all ports down, forwarding faults, and ports of SONiC.

A forwarding fault loses or misroutes packets while links, queues and counters are healthy. SONiC's ports are set with
the switch's own commands, because the ASIC does not follow the kernel's interface.
"""

from c4bench.decoding import whole_number
from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, Run, run, together
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
def misrouted(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Leave this port as the only next hop of every ECMP route that uses it."""
    netdev, netns = target.interface.netdev, target.netns
    routes = [line.split(" nexthop ") for line in target.multipath()]
    if not routes:
        raise UnhealthyError(
            f"{request.where} is in no ECMP route; choose a port that `ip route` on the switch lists as one of several"
        )
    apply, revert, devices = [], [], set()
    for destination, *hops in routes:
        only = next(hop for hop in hops if f"dev {netdev} " in hop)
        apply.append(Run(("ip", "-4", "route", "replace", *words(destination), *_unweighted(only)), netns))
        every = [word for hop in hops for word in ("nexthop", *words(hop))]
        revert.append(Run(("ip", "-4", "route", "replace", *words(destination), *every), netns))
        devices |= {device_of(hop) for hop in hops}
    # A link change rewrites the same routes.
    claims = tuple(target.claim("link", device) for device in sorted(devices))
    return Plan(claims, tuple(apply), tuple(revert), sudden=len(apply))


def _unweighted(hop: str) -> list[str]:
    return words(hop.partition(" weight ")[0])


_SPEEDS_MBPS = (10_000, 25_000, 40_000, 50_000, 100_000, 200_000, 400_000, 800_000)


@driver("sonic.down")
def sonic_down(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Shut the port down; the revert starts it."""
    port = target.interface.netdev
    row = sonic_status(run(("show", "interfaces", "status", port), None), port)
    if row["Admin"] != "up":
        raise UnhealthyError(f"{request.where} is shut down already; choose a port that is up")
    return Plan((f"link of {port}",), (_config("shutdown", port),), (_config("startup", port),))


@driver("sonic.speed")
def sonic_speed(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Set the fastest speed at or below the requested share; both ends must support it."""
    port = target.interface.netdev
    row = sonic_status(run(("show", "interfaces", "status", port), None), port)
    current_mbps = whole_number(row["Speed"].removesuffix("G")) * 1000
    slower = [sonic_speed for sonic_speed in _SPEEDS_MBPS if sonic_speed <= current_mbps * request.number("fraction")]
    if not slower or request.choice("direction") != "both":
        raise UnhealthyError(
            f"{request.where} runs at {current_mbps} Mb/s and has no such lower speed, or not in one direction; "
            "use direction both and another fraction"
        )
    return Plan(
        (f"link of {port}",), (_config("speed", port, f"{slower[-1]}"),), (_config("speed", port, f"{current_mbps}"),)
    )


def sonic_status(text: str, port: str) -> dict[str, str]:
    """The port's row by column. The dashes below the names give the columns' widths."""
    lines = text.splitlines()
    rule = next((index for index, line in enumerate(lines) if line.strip().startswith("---")), 0)
    for line in lines[rule + 1 :]:
        if rule and line.split()[:1] == [port]:
            return _cells(lines[rule - 1], lines[rule], line)
    raise UnhealthyError(f"the switch has no port {port}; see `show interfaces status`")


def _cells(names: str, rule: str, row: str) -> dict[str, str]:
    cells, start = {}, 0
    for dashes in rule.split():
        start = rule.index(dashes, start)
        end = start + len(dashes)
        cells[names[start:end].strip()] = row[start:end].strip()
        start = end
    return cells


def _config(*words: str) -> Run:
    return Run(("config", "interface", *words))
