"""Faults of NICs and ports with `ip` and `tc`. They affect every packet that the kernel carries (rxe, plain Ethernet).

Sent packets are impaired by the root qdisc of the NIC, or below its own shaper and delay. Received packets are
redirected through an intermediate device (ifb) and impaired there. All queues are deep, since go-back-N collapses on a
shallow one.
"""

import math
from collections.abc import Callable

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, Run, Schedule, together
from c4bench.inject.interfaces import INGRESS, InterfaceTarget, Shaper, words
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest
from c4bench.units import format_rate

_LIMIT_BYTES = 8 << 20
_LIMIT_PACKETS = 20_000
_BURST_MIN_BYTES = 16 << 10
# Software shapers wake late on real hosts; a burst of 0.25 ms keeps them at their rate.
_BURST_S = 0.25e-3
_FILTER_PREFERENCE = "1"
_OWN_HANDLE = "c4:"


def limited_bps(request: FaultRequest, target: InterfaceTarget) -> float:
    """The rate that a rate fault leaves, bit/s. Raises UnhealthyError for a port whose rate is unknown."""
    shaper = target.shaper()
    full_bps = request.nic.rate_bps if request.nic else shaper.rate_bps if shaper else target.rate_bps
    if not full_bps:
        raise UnhealthyError(f"the rate of {request.where} is unknown; add it to the inventory, such as rate: 100gbit")
    return request.number("fraction") * full_bps


def shaper_for(rate_bps: float) -> Shaper:
    """A shaper for an interface that has none."""
    return Shaper(rate_bps, max(_BURST_MIN_BYTES, math.ceil(rate_bps / 8 * _BURST_S)), _LIMIT_BYTES)


@driver("netdev.rate")
def rate(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Limit the rate to a share of it."""
    limited, shaper = limited_bps(request, target), target.shaper()
    slower = Shaper(limited, shaper.burst_bytes, shaper.limit_bytes) if shaper else shaper_for(limited)
    return _by_direction(
        request, lambda: _shape_egress(request, target, slower), lambda: _impair_ingress(target, slower.tc_arguments)
    )


@driver("netdev.loss")
def loss(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Drop packets at random, at an unchanged rate."""
    return _netem(request, target, "loss", _percent(request.number("probability")))


@driver("netdev.blackhole")
def blackhole(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Drop every packet, with the link up."""
    return _netem(request, target, "loss", _percent(1.0))


def blackhole_both(target: InterfaceTarget) -> Plan:
    """Drop every packet, sent and received."""
    netem = ("netem", "limit", f"{_LIMIT_PACKETS}", "loss", _percent(1.0))
    return together(_impair_ingress(target, netem), _netem_egress(target, netem))


@driver("netdev.corrupt")
def corrupt(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Flip one bit of packets at random."""
    return _netem(request, target, "corrupt", _percent(request.number("probability")))


@driver("netdev.delay")
def delay(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Delay every packet, with jitter if asked for."""
    jitter_s = request.number("jitter_s")
    return _netem(request, target, "delay", _time(request.number("delay_s")), *([_time(jitter_s)] if jitter_s else []))


@driver("netdev.reorder")
def reorder(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Delay all packets except a random share, which overtakes."""
    share = _percent(request.number("probability"))
    return _netem(request, target, "delay", _time(request.number("delay_s")), "reorder", share)


@driver("netdev.down")
def down(request: FaultRequest, target: InterfaceTarget) -> Plan:  # noqa: ARG001  (the interface of a driver)
    """Set the link down; the revert restores the routes and addresses that the kernel drops with it."""
    links = [_run(target, "ip", "link", "set", "dev", target.interface.netdev, state) for state in ("down", "up")]
    return Plan((target.claim("link"),), (links[0],), (links[1], *_restore_after_link_down(target)))


@driver("netdev.flap")
def flap(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Set the link down and up repeatedly."""
    return msgspec.structs.replace(down(request, target), rhythm=schedule(request))


def schedule(request: FaultRequest) -> Schedule:
    """The schedule of an intermittent fault."""
    return Schedule(request.number("period_s"), request.number("duty"), int(request.number("count")))


@driver("netdev.gid")
def gid(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Remove the address; the revert restores it and the routes that went with it."""
    dev, addresses = target.interface.netdev, target.addresses()
    if len(addresses) != 1:
        raise UnhealthyError(f"{request.where} has {len(addresses)} IPv4 addresses; this fault can restore exactly one")
    address = f"{addresses[0].local}/{addresses[0].prefixlen}"
    label = addresses[0].label or dev
    wide = ("broadcast", addresses[0].broadcast) if addresses[0].broadcast else ()
    again = _run(target, "ip", "-4", "address", "replace", address, "dev", dev, "label", label, *wide)
    lost = _run(target, "ip", "-4", "address", "del", address, "dev", dev)
    # A link change meanwhile would drop, or restore, other routes.
    return Plan((target.claim("address"), target.claim("link")), (lost,), (again, *_restore_after_link_down(target)))


@driver("netdev.mtu")
def mtu(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """A smaller MTU."""
    requested, current = int(request.number("mtu_bytes")), target.mtu_bytes
    if requested >= current:
        raise UnhealthyError(
            f"{request.where} has an MTU of {current} bytes, no more than {requested}; ask for a smaller one"
        )
    dev = target.interface.netdev
    sizes = [_run(target, "ip", "link", "set", "dev", dev, "mtu", f"{size}") for size in (requested, current)]
    return Plan((target.claim("MTU"),), (sizes[0],), (sizes[1],))


def _by_direction(request: FaultRequest, sent: Callable[[], Plan], received: Callable[[], Plan]) -> Plan:
    match request.choice("direction"):
        case "tx":
            return sent()
        case "rx":
            return received()
    return together(received(), sent())


def _netem(request: FaultRequest, target: InterfaceTarget, *netem_options: str) -> Plan:
    netem = ("netem", "limit", f"{_LIMIT_PACKETS}", *netem_options)
    return _by_direction(request, lambda: _netem_egress(target, netem), lambda: _impair_ingress(target, netem))


def _shape_egress(request: FaultRequest, target: InterfaceTarget, slower: Shaper) -> Plan:
    shaper = target.shaper()
    if shaper is None:
        return _replace_root(target, slower.tc_arguments)
    if shaper.rate_bps <= slower.rate_bps:
        raise UnhealthyError(
            f"{request.where} is shaped to {format_rate(shaper.rate_bps)} already, no more than "
            f"{format_rate(slower.rate_bps)}; ask for a smaller fraction"
        )
    return Plan((target.claim("egress"),), (_reshape(target, slower),), (_reshape(target, shaper),))


def _netem_egress(target: InterfaceTarget, netem: tuple[str, ...]) -> Plan:
    delay, shaper = target.delay(), target.shaper()
    if delay is not None and delay.handle != _OWN_HANDLE:
        # A long link's delay stays as it is: packets come to the fault after it.
        place = ("dev", target.interface.netdev, "parent", f"{delay.handle}1")
        add, delete = _run(target, "tc", "qdisc", "add", *place, *netem), _run(target, "tc", "qdisc", "del", *place)
        return Plan((target.claim("egress"),), (add,), (delete,))
    if shaper is None:
        return _replace_root(target, netem)
    child = ("dev", target.interface.netdev, "parent", f"{target.root.handle}1")
    if below := target.below_shaper():
        raise UnhealthyError(
            f"{target.interface.name} has its own {below.kind} below its shaper, which cannot be restored exactly; "
            f"remove it first: tc qdisc del {' '.join(child)}"
        )
    # A shaper without a child qdisc drops everything; setting its parameters again creates one.
    undo = (_run(target, "tc", "qdisc", "del", *child), _reshape(target, shaper))
    return Plan((target.claim("egress"),), (_run(target, "tc", "qdisc", "add", *child, *netem),), undo)


def _percent(share: float) -> str:
    return f"{share:.6%}"


def _time(time_s: float) -> str:
    return f"{time_s * 1e6:.0f}us"


def _reshape(target: InterfaceTarget, shaper: Shaper) -> Run:
    root = ("dev", target.interface.netdev, "root", "handle", target.root.handle)
    return _run(target, "tc", "qdisc", "change", *root, *shaper.tc_arguments)


def _replace_root(target: InterfaceTarget, qdisc: tuple[str, ...]) -> Plan:
    """Add a root qdisc. The kernel restores its default one when ours is deleted."""
    root = target.root
    # A root with our handle belongs to another fault; its claims give the better error.
    if root.handle not in {"0:", _OWN_HANDLE}:
        raise UnhealthyError(
            f"{target.interface.name} has its own root qdisc {root.kind}, which cannot be restored exactly; "
            f"remove it first: tc qdisc del dev {target.interface.netdev} root"
        )
    place = ("dev", target.interface.netdev, "root")
    add = _run(target, "tc", "qdisc", "add", *place, "handle", _OWN_HANDLE, *qdisc)
    return Plan((target.claim("egress"),), (add,), (_run(target, "tc", "qdisc", "del", *place),))


def _impair_ingress(target: InterfaceTarget, qdisc: tuple[str, ...]) -> Plan:
    """Redirect every received packet through an ifb device with the root `qdisc`, before any protocol sees it."""
    netdev, ifb = target.interface.netdev, target.ifb
    hook = any(qdisc.kind in INGRESS for qdisc in target.qdiscs())
    matched = ("dev", netdev, "ingress", "pref", _FILTER_PREFERENCE, "protocol", "all", "matchall")
    if f'"pref":{_FILTER_PREFERENCE},' in target.printed.get("filter", ""):
        raise UnhealthyError(
            f"{target.interface.name} has an ingress filter of preference {_FILTER_PREFERENCE}; change its preference"
        )
    make = [
        _run(target, "ip", "link", "add", "name", ifb, "type", "ifb"),
        _run(target, "ip", "link", "set", "dev", ifb, "addrgenmode", "none", "up"),
        _run(target, "tc", "qdisc", "add", "dev", ifb, "root", *qdisc),
        *([] if hook else [_run(target, "tc", "qdisc", "add", "dev", netdev, "ingress")]),
        _run(target, "tc", "filter", "add", *matched, "action", "mirred", "egress", "redirect", "dev", ifb),
    ]
    undo = [
        _run(target, "tc", "filter", "del", *matched)
        if hook
        else _run(target, "tc", "qdisc", "del", "dev", netdev, "ingress"),
        _run(target, "ip", "link", "del", "dev", ifb),
    ]
    return Plan((target.claim("ingress"),), tuple(make), tuple(undo))


def _restore_after_link_down(target: InterfaceTarget) -> list[Run]:
    """Restore what the kernel drops when a link goes down: IPv6 addresses, routes, permanent neighbours."""
    dev = ("dev", target.interface.netdev)
    neighbours = [[word for word in line if word != "PERMANENT"] for line in target.lines("neighbour")]
    routes = [
        *(("-4", route) for route in _configured_routes(target.lines("route"))),
        *(("-6", route) for route in _configured_routes(target.lines("route6"))),
        *(("-4", words(route)) for route in target.multipath()),
    ]
    return [
        *(_run(target, "ip", "-6", "address", "replace", ip, *dev, "nodad") for ip in _global_addresses(target)),
        *(_run(target, "ip", version, "route", "replace", *route) for version, route in routes),
        *(_run(target, "ip", "neighbour", "replace", *line, *dev, "nud", "permanent") for line in neighbours),
    ]


def _global_addresses(target: InterfaceTarget) -> list[str]:
    """Static IPv6 addresses; link-local and advertised ones come back by themselves."""
    return [
        f"{entry.local}/{entry.prefixlen}"
        for entry in target.link().addr_info
        if entry.family == "inet6" and entry.scope == "global" and not entry.dynamic
    ]


def _configured_routes(routes: list[list[str]]) -> list[list[str]]:
    """Configured routes, without the flags of their state."""
    kept = [words for words in routes if not any(" ".join(words).find(f"proto {by}") >= 0 for by in ("kernel", "ra"))]
    return [[word for word in words if word not in {"linkdown", "dead"}] for words in kept]


def _run(target: InterfaceTarget, *argv: str) -> Run:
    return Run(argv, target.netns)
