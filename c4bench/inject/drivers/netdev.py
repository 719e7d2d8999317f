"""NIC faults by `ip` and `tc`: they reach every packet of a NIC whose traffic the kernel carries (rxe, plain Ethernet).

Sending is disturbed at the root of the NIC's own queueing. Receiving is disturbed by sending what arrives through an
intermediate device (ifb) and disturbing that. Queues are deep throughout: go-back-N collapses on a shallow one.
"""

import math
from itertools import chain

from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, Run
from c4bench.inject.nics import NicTarget, Shaper
from c4bench.model.fault import FaultRequest
from c4bench.units import format_rate

_LIMIT_BYTES = 8 << 20
_LIMIT_PACKETS = 20_000
_BURST_MIN_BYTES = 16 << 10
# Software shapers of real hosts wake late; a quarter of a millisecond's worth keeps them at their rate.
_BURST_S = 0.25e-3
_FILTER_PREFERENCE = "1"
_OWN_HANDLE = "c4:"


def limited_bps(request: FaultRequest) -> float:
    """The rate that a `nic.rate` request leaves, bit/s."""
    return request.number("fraction") * request.the_nic.rate_bps


def shaper_for(rate_bps: float) -> Shaper:
    """A shaper for a NIC that has none."""
    return Shaper(rate_bps, max(_BURST_MIN_BYTES, math.ceil(rate_bps / 8 * _BURST_S)), _LIMIT_BYTES)


def rate(request: FaultRequest, target: NicTarget) -> Plan:
    """Leave a share of the rate, in one direction."""
    limited, shaper = limited_bps(request), target.shaper()
    slower = Shaper(limited, shaper.burst_bytes, shaper.limit_bytes) if shaper else shaper_for(limited)
    if request.word("direction") == "rx":
        return _received(target, slower.words)
    if shaper is None:
        return _fresh_root(target, slower.words)
    if shaper.rate_bps <= limited:
        raise UnhealthyError(
            f"{request.where} is shaped to {format_rate(shaper.rate_bps)} already, no more than "
            f"{format_rate(limited)}; ask for a smaller fraction"
        )
    return Plan((_egress(target),), (_reshape(target, slower),), (_reshape(target, shaper),))


def loss(request: FaultRequest, target: NicTarget) -> Plan:
    """Drop packets at random, in one direction; the rate in force stays."""
    return _lossy(request.word("direction"), request.number("probability"), target)


def blackhole(request: FaultRequest, target: NicTarget) -> Plan:
    """Drop every packet, in one direction, with the link up."""
    return _lossy(request.word("direction"), 1.0, target)


def down(request: FaultRequest, target: NicTarget) -> Plan:  # noqa: ARG001  (the interface of a driver)
    """Set the link down, and say again afterwards what the kernel forgets with it."""
    nic = target.nic
    links = [_run(target, f"ip link set dev {nic.netdev} {state}") for state in ("down", "up")]
    return Plan((_claim(target, "link"),), (links[0],), (links[1], *_forgotten(target)))


def _lossy(direction: str, probability: float, target: NicTarget) -> Plan:
    netem = ("netem", "limit", f"{_LIMIT_PACKETS}", "loss", f"{probability:.6%}")
    if direction == "rx":
        return _received(target, netem)
    shaper = target.shaper()
    if shaper is None:
        return _fresh_root(target, netem)
    child = f"dev {target.nic.netdev} parent {target.root['handle']}1"
    # A shaper whose child is deleted has none and drops everything; told its parameters again, it makes a new one.
    undo = (_run(target, f"tc qdisc del {child}"), _reshape(target, shaper))
    return Plan((_egress(target),), (_run(target, f"tc qdisc add {child}", netem),), undo)


def _reshape(target: NicTarget, shaper: Shaper) -> Run:
    return _run(target, f"tc qdisc change dev {target.nic.netdev} root handle {target.root['handle']}", shaper.words)


def _fresh_root(target: NicTarget, words: tuple[str, ...]) -> Plan:
    """A root in place of the kernel's default one, which comes back by itself when ours goes."""
    root = target.root
    # A root of our own is another fault's; the claims say which, and better than this could.
    if root["handle"] not in {"0:", _OWN_HANDLE}:
        raise UnhealthyError(
            f"{target.nic.name} has its own root qdisc {root['kind']}, which could not be put back exactly; "
            f"remove it first: tc qdisc del dev {target.nic.netdev} root"
        )
    add = _run(target, f"tc qdisc add dev {target.nic.netdev} root handle {_OWN_HANDLE}", words)
    return Plan((_egress(target),), (add,), (_run(target, f"tc qdisc del dev {target.nic.netdev} root"),))


def _received(target: NicTarget, words: tuple[str, ...]) -> Plan:
    """Everything received passes an intermediate device with `words` as its root, before any protocol sees it."""
    netdev, ifb = target.nic.netdev, target.ifb
    hook = any(qdisc["kind"] in {"ingress", "clsact"} for qdisc in target.qdiscs())
    matched = f"dev {netdev} ingress pref {_FILTER_PREFERENCE} protocol all matchall"
    if f'"pref":{_FILTER_PREFERENCE},' in target.listing.get("filter", ""):
        raise UnhealthyError(
            f"{target.nic.name} has an ingress filter of preference {_FILTER_PREFERENCE} already; give it another"
        )
    make = [
        _run(target, f"ip link add name {ifb} type ifb"),
        _run(target, f"ip link set dev {ifb} addrgenmode none up"),
        _run(target, f"tc qdisc add dev {ifb} root", words),
        *([] if hook else [_run(target, f"tc qdisc add dev {netdev} ingress")]),
        _run(target, f"tc filter add {matched} action mirred egress redirect dev {ifb}"),
    ]
    undo = [
        _run(target, f"tc filter del {matched}" if hook else f"tc qdisc del dev {netdev} ingress"),
        _run(target, f"ip link del dev {ifb}"),
    ]
    return Plan((_claim(target, "ingress"),), tuple(make), tuple(undo))


def _forgotten(target: NicTarget) -> list[Run]:
    """What a link takes along when it goes down and does not bring back: IPv6 addresses, routes, fixed neighbours."""
    dev = f"dev {target.nic.netdev}"
    neighbours = [[word for word in line if word != "PERMANENT"] for line in target.lines("neighbour")]
    return [
        *(_run(target, f"ip -6 address replace {address} {dev} nodad") for address in _global_addresses(target)),
        *(_run(target, "ip -4 route replace", (*route, *dev.split())) for route in _own(target.lines("route"))),
        *(_run(target, "ip -6 route replace", (*route, *dev.split())) for route in _own(target.lines("route6"))),
        *(_run(target, "ip neighbour replace", (*words, *dev.split(), "nud", "permanent")) for words in neighbours),
    ]


def _global_addresses(target: NicTarget) -> list[str]:
    """Static IPv6 addresses; the link-local one comes back by itself, and so does what routers advertise."""
    found = chain.from_iterable(link.get("addr_info", ()) for link in target.links())
    return [
        f"{entry['local']}/{entry['prefixlen']}"
        for entry in found
        if entry["family"] == "inet6" and entry["scope"] == "global" and not entry.get("dynamic")
    ]


def _own(routes: list[list[str]]) -> list[list[str]]:
    """Routes that somebody configured, without the remarks about their state."""
    kept = [words for words in routes if not any(" ".join(words).find(f"proto {by}") >= 0 for by in ("kernel", "ra"))]
    return [[word for word in words if word not in {"linkdown", "dead"}] for words in kept]


def _egress(target: NicTarget) -> str:
    return _claim(target, "egress")


def _claim(target: NicTarget, part: str) -> str:
    where = f" in {target.nic.netns}" if target.nic.netns else ""
    return f"{part} of {target.nic.netdev}{where}"


def _run(target: NicTarget, command: str, words: tuple[str, ...] = ()) -> Run:
    return Run((*command.split(), *words), target.nic.netns)
