"""The state of a NIC or switch port: link, qdiscs, routes and neighbours, for comparison after a fault."""

import json
import math
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from c4bench import namespaces
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject.actions import run
from c4bench.model.fault import Interface, SwitchPort

_INFINIBAND = Path("/sys/class/infiniband")
_SONIC = Path("/etc/sonic/sonic_version.yml")
IFB_PREFIX = "c4ifb"
# The kernel counts and lists a shaper's burst in ticks of 64 ns at its rate.
_TICK_S = 64e-9
# One `ip -batch` process: processes are expensive in the lab, and the lines of these two can be told apart.
_TEXTS = "neighbour show dev {} nud permanent\nroute show table all\n"
# These count down, or show the progress of duplicate address detection.
_VOLATILE = ("valid_life_time", "preferred_life_time", "tentative")


class Shaper(msgspec.Struct, frozen=True):
    """A token bucket filter, with the arguments of `tc` that restore it."""

    rate_bps: float
    burst_bytes: int
    limit_bytes: int

    @property
    def tc_arguments(self) -> tuple[str, ...]:
        """`tbf rate ... burst ... limit ...`."""
        return (
            "tbf",
            "rate",
            f"{self.rate_bps:.0f}bit",
            "burst",
            f"{self.burst_bytes}",
            "limit",
            f"{self.limit_bytes}",
        )


class InterfaceTarget(msgspec.Struct, frozen=True):
    """The state of a NIC or port. `printed` holds the output of the tools, by section."""

    interface: Interface
    index: int
    printed: dict[str, str]

    @property
    def netns(self) -> str | None:
        """See `netns_of`."""
        return netns_of(self.interface)

    @property
    def listing(self) -> dict[str, str]:
        """The sections, under names unique on the host; multipath routes are one section per network namespace."""
        where = f" in {self.netns}" if self.netns else ""
        own = {f"{self.interface.netdev}{where}: {sort}": text for sort, text in self.printed.items()}
        own[f"ECMP{where}"] = own.pop(f"{self.interface.netdev}{where}: multipath")
        return own

    @property
    def ifb(self) -> str:
        """The ifb device through which faults on received packets lead them."""
        return ifb_name(self.index)

    def qdiscs(self) -> list[dict[str, Any]]:
        """Its queueing disciplines, as `tc -json` has them."""
        qdiscs: list[dict[str, Any]] = json.loads(self.printed["qdisc"])
        return qdiscs

    @property
    def root(self) -> dict[str, Any]:
        """The root queueing discipline; a NIC that is down may list none."""
        return next((qdisc for qdisc in self.qdiscs() if qdisc.get("root")), {"kind": "noop", "handle": "0:"})

    def shaper(self) -> Shaper | None:
        """The root, if it is a token bucket that can be restored exactly; None otherwise."""
        options = self.root.get("options", {})
        if self.root["kind"] != "tbf" or "peakrate" in options:
            return None
        return Shaper(options["rate"] * 8.0, _burst_bytes(options), options["limit"])

    def delay(self) -> dict[str, Any] | None:
        """Its netem that is the root, or right below a root that is a token bucket; None otherwise."""
        own = (qdisc for qdisc in self.qdiscs() if qdisc["kind"] == "netem")
        below = f"{self.root['handle']}1" if self.shaper() else ""
        return next((netem for netem in own if netem.get("root") or netem.get("parent") == below), None)

    def links(self) -> list[dict[str, Any]]:
        """Its link and addresses, as `ip -json` has them: one entry."""
        links: list[dict[str, Any]] = json.loads(self.printed["address"])
        return links

    @property
    def mtu_bytes(self) -> int:
        """The MTU, IP headers included."""
        return int(self.links()[0]["mtu"])

    def addresses(self) -> list[dict[str, Any]]:
        """Its IPv4 addresses of global scope, as `ip -json` has them."""
        entries = self.links()[0].get("addr_info", ())
        return [entry for entry in entries if entry["family"] == "inet" and entry["scope"] == "global"]

    @property
    def neighbour(self) -> str:
        """The peer's address: its routes' first gateway, or the first permanent neighbour; "" for none."""
        gateways = [words[words.index("via") + 1] for words in self.lines("route") if "via" in words]
        return next(iter((*gateways, *(words[0] for words in self.lines("neighbour") if "." in words[0]))), "")

    def multipath(self) -> list[str]:
        """The multipath routes that use it, as arguments of `ip route`."""
        return _through(lines(self.printed["multipath"]), self.interface.netdev)

    def lines(self, section: str) -> list[list[str]]:
        """The lines of a section, each split into words."""
        return [words(line) for line in lines(self.printed[section])]


def lines(text: str) -> list[str]:
    """The lines that `ip` has printed; a name may contain what Unicode takes for the end of one."""
    return [line for line in text.split("\n") if line]


def words(line: str) -> list[str]:
    """The words of a line that `ip` has printed: apart by spaces and tabs, and by nothing else of Unicode's."""
    return [word for word in re.split(r"[ \t]+", line) if word]


def device_of(hop: str) -> str:
    """The interface of a route's next hop."""
    route = words(hop)
    return route[route.index("dev") + 1]


def netns_of(interface: Interface) -> str | None:
    """The network namespace to enter for it; None for this process's own, where a host's NICs always are."""
    return interface.netns if isinstance(interface, SwitchPort) else None


def hardware(interface: Interface) -> str:
    """What carries the traffic: `rxe`, `ethernet` (no RDMA), `sonic`, `ib` (InfiniBand), or a driver as `mlx5_core`.

    Raises UnhealthyError when the host has no such RDMA device.
    """
    if not interface.device:
        return "sonic" if _SONIC.exists() and isinstance(interface, SwitchPort) else "ethernet"
    device = _INFINIBAND / interface.device
    if not device.exists():
        raise UnhealthyError(f"{interface.name}: this host has no RDMA device {interface.device}; see `rdma link`")
    if (device / "parent").exists():
        return "rxe"
    if (device / "ports/1/link_layer").read_text().strip() == "InfiniBand":
        return "ib"
    return (device / "device" / "driver").resolve().name


def index_of(interface: Interface) -> int:
    """The interface index. Raises UsageError when the interface, or a switch's namespace, is not on this host."""
    netns = netns_of(interface)
    try:
        with namespaces.network(netns):
            return socket.if_nametoindex(interface.netdev)
    except OSError:
        where = f" in {netns}" if netns else ""
        raise UsageError(
            f"{interface.name}: this host has no interface {interface.netdev}{where}; see `ip link`"
        ) from None


def ifb_name(index: int) -> str:
    """Unique by interface, and short enough for any NIC's name."""
    return f"{IFB_PREFIX}{index}"


def examine(interface: Interface) -> InterfaceTarget:
    """The state of the NIC that a fault may change. Raises UsageError when it does not exist."""
    return InterfaceTarget(interface, index_of(interface), listing(interface))


def listing(interface: Interface) -> dict[str, str]:
    """Everything a fault may change, one text per section; equal texts mean an equal state."""
    netdev, netns = interface.netdev, netns_of(interface)
    sections = {
        "address": json.dumps(_stable(json.loads(run(("ip", "-json", "address", "show", "dev", netdev), netns)))),
        "qdisc": run(("tc", "-raw", "-json", "qdisc", "show", "dev", netdev), netns),
        "filter": "",
    }
    texts = lines(run(("ip", "-batch", "-"), netns, _TEXTS.format(netdev)).replace("\n\t", " "))
    neighbours = [line for line in texts if " lladdr " in line]
    sections["neighbour"] = "".join(f"{line}\n" for line in neighbours)
    sections |= _routes([line for line in texts if line not in neighbours], netdev)
    if any(qdisc["kind"] in {"ingress", "clsact"} for qdisc in json.loads(sections["qdisc"])):
        sections["filter"] = run(("tc", "-json", "filter", "show", "dev", netdev, "ingress"), netns)
    return sections


def join_listings(targets: Iterable[InterfaceTarget]) -> dict[str, str]:
    """The listings of several, in one."""
    return {section: text for target in targets for section, text in target.listing.items()}


def difference(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    """The differences, a line each: `- ` missing, `+ ` left over, `~ ` reordered."""
    changes = []
    for section in sorted(before.keys() | after.keys()):
        old, new = (lines(side.get(section, "")) for side in (before, after))
        if old != new:
            changes += [f"- {section}: {line}" for line in old if line not in new]
            changes += [f"+ {section}: {line}" for line in new if line not in old]
            changes += [f"~ {section}: in another order"] if sorted(old) == sorted(new) else []
    return tuple(changes)


def _stable(value: Any) -> Any:  # noqa: ANN401  (JSON)
    if isinstance(value, list):
        return [_stable(item) for item in value if not _assigned_by_kernel(item)]
    if isinstance(value, dict):
        return {key: _stable(item) for key, item in value.items() if key not in _VOLATILE}
    return value


def _assigned_by_kernel(item: Any) -> bool:  # noqa: ANN401
    """Whether it is a link-local address, which the kernel assigns some time after the link came up."""
    return isinstance(item, dict) and item.get("family") == "inet6" and item.get("scope") == "link"


def _routes(output: Iterable[str], netdev: str) -> dict[str, str]:
    """Routes by section, one a line: those through `netdev` alone, and all multipath routes of the host.

    IPv6 routes, recognised by their router preference (RFC 4191), are listed without those the kernel derives from
    addresses.
    """
    # The state of a next hop is not part of the route.
    lines = [re.sub(r" (linkdown|dead)\b", "", line).strip() for line in output]
    version6 = {line for line in lines if " pref " in line}
    several = sorted(line for line in lines if " nexthop " in line and line not in version6)
    through = _through(lines, netdev)
    sorts = {
        "route": [line for line in through if line not in version6 and line not in several],
        "route6": [line for line in through if line in version6 and "proto kernel" not in line],
        "multipath": several,
    }
    return {sort: "".join(f"{line}\n" for line in of) for sort, of in sorts.items()}


def _through(routes: Iterable[str], netdev: str) -> list[str]:
    return [line for line in routes if f" dev {netdev} " in f"{line} "]


def _burst_bytes(options: dict[str, Any]) -> int:
    """A burst that the kernel lists with the same number of ticks: whole KiB where possible."""
    ticks, rate = int(options["burst_raw"], 16), int(options["rate"])
    low, high = math.ceil(ticks * _TICK_S * rate), math.ceil((ticks + 1) * _TICK_S * rate) - 1
    whole = high // 1024 * 1024
    return whole if whole >= low else (low + high) // 2
