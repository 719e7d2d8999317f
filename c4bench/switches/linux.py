"""Plain Linux: `ip` and `tc`. The kernel forwards, unless a port belongs to a chip that follows it (switchdev).

The faults themselves are those of interfaces anywhere (`c4bench.inject.drivers`), whose commands are run there.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from c4bench.decoding import DecodingError, json_in
from c4bench.errors import UnhealthyError
from c4bench.switches.facts import Port, SwitchFacts
from c4bench.switches.system import Printed, Read, System

_FILTERS = (
    "tc qdisc show | while read -r _ kind _ _ port _; do case $kind in ingress|clsact) "
    'echo "port $port"; tc -json filter show dev "$port" ingress; echo;; esac; done'
)
_SPEEDS = (
    "ip -o link | while read -r _ port _; do port=${port%%[:@]*}; "
    'echo "$port $(ethtool "$port" 2>/dev/null | grep -o "Speed: [0-9]*")"; done'
)
_OTHERS = "ls -d /etc/sonic/sonic_version.yml /etc/cumulus /etc/Eos-release 2>/dev/null || true"
_READS = {
    "addresses": Read("ip -json address show"),
    "qdiscs": Read("tc -raw -json qdisc show"),
    "filters": Read(_FILTERS),
    "neighbours": Read("ip neighbour show nud permanent"),
    "routes": Read("ip route show table all"),
    "systems": Read(_OTHERS),
    "links": Read("ip -details -s -s -json link show"),
    "speeds": Read(_SPEEDS, needed=False),
    "version": Read("cat /etc/os-release", needed=False),
}
# Routing daemons, by the names that `ip` has for them (rt_protos): they write routes again as they learn of links.
_DAEMONS = re.compile(r" proto (babel|bgp|bird|eigrp|isis|openr|ospf|rip|zebra)\b")
# These count down, or show the progress of duplicate address detection.
_VOLATILE = ("valid_life_time", "preferred_life_time", "tentative")
_VERSION = re.compile(r'^PRETTY_NAME="?([^"\n]*)', re.MULTILINE)
_SPEED = re.compile(r"^(\S+) Speed: (\d{1,9})$", re.MULTILINE)


class _Address(msgspec.Struct, frozen=True):
    local: str = ""
    prefixlen: int = 0


class _Sent(msgspec.Struct, frozen=True):
    carrier_changes: int | None = None


class _Counts(msgspec.Struct, frozen=True):
    tx: _Sent = _Sent()


class _State(msgspec.Struct, frozen=True):
    ifname: str = ""
    phys_switch_id: str = ""
    stats64: _Counts = _Counts()


class _Link(msgspec.Struct, frozen=True):
    ifname: str = ""
    ifindex: int = 0
    mtu: int = 0
    flags: tuple[str, ...] = ()
    link_type: str = ""
    addr_info: tuple[_Address, ...] = ()


def parse(printed: Printed) -> SwitchFacts:
    """The facts. Raises UnhealthyError for a switch of another system, whose chip `tc` does not reach."""
    if other := printed["systems"].split():
        raise UnhealthyError(f"it has {other[0]}: it is no plain Linux; correct c4.os in the inventory")
    speeds = dict(_SPEED.findall(printed.get("speeds", "")))
    changes = carrier_changes(printed["links"])
    version = _VERSION.search(printed.get("version", ""))
    ports = {
        link.ifname: Port(
            link.ifname,
            admin_up="UP" in link.flags,
            oper_up="LOWER_UP" in link.flags,
            speed_bps=float(speeds.get(link.ifname, "0")) * 1e6,
            mtu_bytes=link.mtu,
            addresses=tuple(f"{address.local}/{address.prefixlen}" for address in link.addr_info),
            carrier_changes=changes.get(link.ifname),
        )
        for link in _links(printed)
        if link.link_type == "ether"
    }
    return SwitchFacts("linux", version[1] if version else "", ports, printed=printed)


def _links(printed: Printed) -> tuple[_Link, ...]:
    found: tuple[_Link, ...] = _json("ip", printed["addresses"], tuple[_Link, ...])
    return found


def carrier_changes(text: str) -> dict[str, int]:
    """How often each interface has gone up or down, as `ip -s -s -json link show` says."""
    counts = {state.ifname: state.stats64.tx.carrier_changes for state in _states(text)}
    return {port: count for port, count in counts.items() if count is not None}


def _states(text: str) -> tuple[_State, ...]:
    found: tuple[_State, ...] = _json("ip", text, tuple[_State, ...])
    return found


def index_of(facts: SwitchFacts, port: str) -> int:
    """The interface index of a port; 0 where there is none."""
    return next((link.ifindex for link in _links(facts.printed) if link.ifname == port), 0)


def has_chip(facts: SwitchFacts, port: str) -> bool:
    """Whether a chip forwards for this port, and takes its settings from the kernel (Linux, switchdev)."""
    return any(state.ifname == port and state.phys_switch_id for state in _states(facts.printed["links"]))


def default_port(facts: SwitchFacts) -> str:
    """The port of the IPv4 default route, "" for none."""
    for line in lines(facts.printed["routes"]):
        if line.startswith("default via ") and " dev " in line:
            return line.partition(" dev ")[2].partition(" ")[0]
    return ""


def port_sections(facts: SwitchFacts, port: str) -> dict[str, str]:
    """`sections` of a port."""
    printed = facts.printed
    near = [line.replace(f" dev {port} ", " ") for line in lines(printed["neighbours"]) if f" dev {port} " in line]
    found = sections(
        port,
        addresses=_of_port(printed["addresses"], "ifname", port),
        qdiscs=_of_port(printed["qdiscs"], "dev", port),
        texts="\n".join([*near, printed["routes"]]),
    )
    found["filter"] = "".join(text for name, text in _filters(printed["filters"]) if name == port)
    return found


def _of_port(text: str, key: str, port: str) -> str:
    return json.dumps([item for item in _json("ip", text, list[dict[str, Any]]) if item.get(key) == port])


def _filters(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split("port ")[1:]:
        name, _, filters = part.partition("\n")
        yield name, filters.strip()


def listing(facts: SwitchFacts, port: str | None) -> dict[str, str]:
    """The sections of one port, or of all, under names unique on the switch; multipath routes are one section."""
    found: dict[str, str] = {}
    for name in facts.ports if port is None else [port]:
        own = port_sections(facts, name)
        found["ECMP"] = own.pop("multipath")
        found |= {f"{name}: {sort}": text for sort, text in own.items()}
    return found


def sections(port: str, *, addresses: str, qdiscs: str, texts: str) -> dict[str, str]:
    """A port's state, one text per section; equal texts mean an equal state.

    `addresses` and `qdiscs` are JSON of `ip address` and `tc qdisc`; `texts` are its permanent neighbours and all
    routes. The section `filter` is left empty.
    """
    found = {"address": json.dumps(_stable(_json("ip", addresses, list[Any]))), "qdisc": qdiscs, "filter": ""}
    listed = lines(texts.replace("\n\t", " "))
    neighbours = [line for line in listed if " lladdr " in line]
    found["neighbour"] = "".join(f"{line}\n" for line in neighbours)
    return found | _routes([line for line in listed if line not in neighbours], port)


def lines(text: str) -> list[str]:
    """The lines that `ip` has printed; a name may contain what Unicode takes for the end of one."""
    return [line for line in text.split("\n") if line]


def through(routes: Iterable[str], port: str) -> list[str]:
    """The routes that use a port."""
    return [line for line in routes if f" dev {port} " in f"{line} "]


def _stable(value: Any) -> Any:  # noqa: ANN401  (JSON)
    if isinstance(value, list):
        return [_stable(item) for item in value if not _assigned_by_kernel(item)]
    if isinstance(value, dict):
        return {key: _stable(item) for key, item in value.items() if key not in _VOLATILE}
    return value


def _assigned_by_kernel(item: Any) -> bool:  # noqa: ANN401
    """Whether it is a link-local address, which the kernel assigns some time after the link came up."""
    return isinstance(item, dict) and item.get("family") == "inet6" and item.get("scope") == "link"


def _routes(output: Iterable[str], port: str) -> dict[str, str]:
    """Routes by section, one a line: those through `port` alone, and all multipath routes of the host.

    Those of routing daemons are left out: they are no setting. IPv6 routes, recognised by their router preference (RFC
    4191), are listed without those the kernel derives from addresses.
    """
    # The state of a next hop is not part of the route.
    routes = [re.sub(r" (linkdown|dead)\b", "", line).strip() for line in output if not _DAEMONS.search(line)]
    version6 = {line for line in routes if " pref " in line}
    several = sorted(line for line in routes if " nexthop " in line and line not in version6)
    own = through(routes, port)
    sorts: Mapping[str, list[str]] = {
        "route": [line for line in own if line not in version6 and line not in several],
        "route6": [line for line in own if line in version6 and "proto kernel" not in line],
        "multipath": several,
    }
    return {sort: "".join(f"{line}\n" for line in of) for sort, of in sorts.items()}


def _json(tool: str, text: str, kind: Any) -> Any:  # noqa: ANN401  (a type and its value)
    try:
        return json_in(text, kind)
    except DecodingError as error:
        raise UnhealthyError(f"{tool} printed what c4bench cannot read ({error}); see what it prints here") from None


SYSTEM = System("linux", _READS, parse, listing, {})
