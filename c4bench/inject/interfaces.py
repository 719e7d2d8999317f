"""The state of a NIC or switch port: link, qdiscs, routes and neighbours, for comparison after a fault."""

import math
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec

from c4bench import namespaces
from c4bench.decoding import DecodingError, decoding
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import connectx
from c4bench.inject.actions import json_of, run
from c4bench.model.fault import Interface, SwitchPort
from c4bench.switches import linux
from c4bench.switches.linux import lines, through

_INFINIBAND = Path("/sys/class/infiniband")
_NETDEVS = Path("/sys/class/net")
# Systems of switches whose chip forwards instead of the kernel, by a path that only they have.
_CHIPS = {
    "sonic": Path("/etc/sonic/sonic_version.yml"),
    "cumulus": Path("/etc/cumulus"),
    "eos": Path("/etc/Eos-release"),
}
IFB_PREFIX = "c4ifb"
# The kernel counts and lists a shaper's burst in ticks of 64 ns at its rate.
_TICK_S = 64e-9
# One `ip -batch` process: processes are expensive in the lab, and the lines of these two can be told apart.
_TEXTS = "neighbour show dev {} nud permanent\nroute show table all\n"
# Queueing disciplines to which filters of received packets belong.
INGRESS = frozenset({"ingress", "clsact"})


class Address(msgspec.Struct, frozen=True):
    """An address of an interface, as `ip -json` has it."""

    local: str = ""
    prefixlen: int = 0
    family: str = ""
    scope: str = ""
    label: str = ""
    broadcast: str = ""
    dynamic: bool = False


class Link(msgspec.Struct, frozen=True):
    """An interface and its addresses, as `ip -json` has them; an MTU of 0 is not known."""

    mtu: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    addr_info: tuple[Address, ...] = ()


class Qdisc(msgspec.Struct, frozen=True):
    """A queueing discipline, as `tc -json` has it."""

    kind: str = "noop"
    handle: str = "0:"
    parent: str = ""
    root: bool = False
    options: dict[str, Any] = {}


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
    """The state of a NIC or port. `printed` holds the output of the tools, by section.

    `rate_bps` is the rate of a port, 0 where it is not known.
    """

    interface: Interface
    index: int
    printed: dict[str, str]
    rate_bps: float = 0.0

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

    def claim(self, part: str, netdev: str = "") -> str:
        """How faults call the `part` of it, or of another interface there, that only one of them may change."""
        where = f" in {self.netns}" if self.netns else ""
        return f"{part} of {netdev or self.interface.netdev}{where}"

    def qdiscs(self) -> list[Qdisc]:
        """Its queueing disciplines."""
        return _qdiscs(self.printed["qdisc"])

    @property
    def root(self) -> Qdisc:
        """The root queueing discipline; a NIC that is down may list none."""
        return next((qdisc for qdisc in self.qdiscs() if qdisc.root), Qdisc())

    def shaper(self) -> Shaper | None:
        """The root, if it is a token bucket that can be restored exactly; None otherwise."""
        root = self.root
        if root.kind != "tbf" or "peakrate" in root.options:
            return None
        try:
            options = _Tbf.of(root.options)
        except DecodingError:
            return None
        return Shaper(options.rate * 8.0, options.burst_bytes, options.limit)

    def below_shaper(self) -> Qdisc | None:
        """The queueing discipline that is configured below its token bucket; None where there is none."""
        parent = f"{self.root.handle}1"
        children = (qdisc for qdisc in self.qdiscs() if self.shaper() and qdisc.parent == parent)
        return next(children, None)

    def delay(self) -> Qdisc | None:
        """Its netem: the root, or right below a token bucket; None where there is none."""
        inner = self.below_shaper() or self.root
        return inner if inner.kind == "netem" else None

    def link(self) -> Link:
        """Its link and addresses."""
        return _links(self.printed["address"])[0]

    @property
    def mtu_bytes(self) -> int:
        """The MTU, IP headers included."""
        return self.link().mtu

    def addresses(self) -> list[Address]:
        """Its IPv4 addresses of global scope."""
        return [entry for entry in self.link().addr_info if entry.family == "inet" and entry.scope == "global"]

    @property
    def neighbour(self) -> str:
        """The peer's address: its routes' first gateway, the first permanent neighbour, or a next hop; "" for none."""
        hops = [hop for line in self.multipath() for hop in line.split(" nexthop ")[1:]]
        own = [words(hop) for hop in hops if device_of(hop) == self.interface.netdev]
        fixed = [words[0] for words in self.lines("neighbour") if "." in words[0]]
        first = (*_gateways(self.lines("route")), *fixed, *_gateways(own))
        return next(iter(first), "")

    def multipath(self) -> list[str]:
        """The multipath routes that use it, as arguments of `ip route`."""
        return through(lines(self.printed["multipath"]), self.interface.netdev)

    def ecmp_routes(self) -> list[str]:
        """As `multipath`. Raises UnhealthyError where there is none."""
        if not (routes := self.multipath()):
            raise UnhealthyError(
                f"{self.interface.name} is in no ECMP route of the switch's own; choose a port that `ip route` lists "
                "as one of several, of no routing daemon"
            )
        return routes

    def lines(self, section: str) -> list[list[str]]:
        """The lines of a section, each split into words."""
        return [words(line) for line in lines(self.printed[section])]


def _gateways(routes: Iterable[list[str]]) -> list[str]:
    return [words[words.index("via") + 1] for words in routes if "via" in words]


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
    """What carries the traffic: `rxe`, `ib` (InfiniBand), or a driver such as `mlx5_core`; without RDMA `ethernet`.

    Of a switch's port `ethernet` where the kernel forwards, and what `switch_system` says where a chip does, or
    `switchdev` for a chip that follows the kernel. Raises UnhealthyError when the host has no such RDMA device.
    """
    if isinstance(interface, SwitchPort):
        return "switchdev" if _follows_kernel(interface) else switch_system()
    if not interface.device:
        return "ethernet"
    device = _INFINIBAND / interface.device
    if not device.exists():
        raise UnhealthyError(f"{interface.name}: this host has no RDMA device {interface.device}; see `rdma link`")
    if (device / "parent").exists():
        return "rxe"
    if (device / "ports/1/link_layer").read_text().strip() == "InfiniBand":
        return "ib"
    return (device / "device" / "driver").resolve().name


def switch_system() -> str:
    """`sonic`, `cumulus` or `eos`, whose switching chip the kernel's `tc` does not reach; `ethernet` for any other."""
    return next((name for name, path in _CHIPS.items() if path.exists()), "ethernet")


def _follows_kernel(port: SwitchPort) -> bool:
    """Whether a chip forwards for this port, and takes its settings from the kernel (Linux, switchdev)."""
    try:
        return port.netns is None and bool((_NETDEVS / port.netdev / "phys_switch_id").read_text().strip())
    except OSError:  # the kernel's answer for a port of no chip
        return False


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
    sections = linux.sections(
        netdev,
        addresses=run(("ip", "-json", "address", "show", "dev", netdev), netns),
        qdiscs=run(("tc", "-raw", "-json", "qdisc", "show", "dev", netdev), netns),
        texts=run(("ip", "-batch", "-"), netns, _TEXTS.format(netdev)),
    )
    _links(sections["address"])
    if any(qdisc.kind in INGRESS for qdisc in _qdiscs(sections["qdisc"])):
        sections["filter"] = run(("tc", "-json", "filter", "show", "dev", netdev, "ingress"), netns)
    return sections | connectx.settings(interface)


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


def _qdiscs(text: str) -> list[Qdisc]:
    return json_of("tc", text, list[Qdisc])


def _links(text: str) -> list[Link]:
    """The one interface. Raises UnhealthyError where there is none."""
    return json_of("ip", text, Annotated[list[Link], msgspec.Meta(min_length=1)])  # type: ignore[arg-type]


class _Tbf(msgspec.Struct, frozen=True):
    """The options of a token bucket, of which the kernel counts the burst in ticks."""

    rate: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
    burst_raw: Annotated[str, msgspec.Meta(pattern="^(0x)?[0-9a-f]{1,8}$")]
    limit: Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self:
        """The options, decoded. Raises DecodingError."""
        with decoding():
            return msgspec.convert(options, cls)

    @property
    def burst_bytes(self) -> int:
        """A burst that the kernel lists with the same number of ticks: whole KiB where possible."""
        ticks = int(self.burst_raw, 16)
        low, high = math.ceil(ticks * _TICK_S * self.rate), math.ceil((ticks + 1) * _TICK_S * self.rate) - 1
        whole = high // 1024 * 1024
        return whole if whole >= low else (low + high) // 2
