"""NVUE (`nv`) of NVIDIA's Cumulus Linux 5: its configuration as a tree, and `nv set`, `nv unset`, `nv config`.

Written from its command reference and recorded output; never run on hardware. A change is one revision that is applied
whole or not at all; profiles that ports share are copied for the port. What is applied is not saved: automatic saving
is switched off in the same revision, so after a restart of the switch its saved configuration holds.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from c4bench.decoding import DecodingError, json_in
from c4bench.errors import UnhealthyError
from c4bench.model.fault import FaultRequest, Misconfiguration
from c4bench.switches.facts import AclTable, Ecn, Port, PortQos, SwitchFacts
from c4bench.switches.system import Change, Printed, Read, System, cycle_of, port_of, up_port
from c4bench.switches.tables import numbers

Tree = Mapping[str, Any]
Path = tuple[str, ...]
_READS = {
    "configuration": Read("nv config show -o json"),
    "interfaces": Read("nv show interface -o json"),
    "version": Read("cat /etc/lsb-release", needed=False),
}
_VERSION = re.compile(r"^DISTRIB_RELEASE=\"?([\w.]+)", re.MULTILINE)
_RANGE = re.compile(r"(\D(?:.*\D)?)(\d{1,4})-(?:\D+)?(\d{1,4})")
_MOST_PORTS = 1024
_DEFAULT = "default-global"
_ON = {"on", "enable", "enabled", True}
_DSCPS, _PRIORITIES = 64, 8
# What `nv set qos roce mode lossless` (or lossy) makes of the default profiles.
_ROCE = {
    "mapping": {_DEFAULT: {"trust": "both", "dscp": {str(n): {"switch-priority": n // 8} for n in range(_DSCPS)}}},
    "congestion-control": {
        _DEFAULT: {"traffic-class": {"0,3": {"ecn": "enable", "min-threshold": 150_000, "max-threshold": 1_500_000}}}
    },
    "egress-queue-mapping": {
        _DEFAULT: {"switch-priority": {str(n): {"traffic-class": n if n in {3, 6} else 0} for n in range(_PRIORITIES)}}
    },
}
_ROCE_PFC = {"pfc": {_DEFAULT: {"switch-priority": {"3": {}}, "tx": "enable", "rx": "enable"}}}
_TRUSTS = {"l3": "dscp", "both": "dscp", "l2": "pcp", "port": "none"}
_SPEEDS = ((800, "800G"), (400, "400G"), (200, "200G"), (100, "100G"), (50, "50G"), (25, "25G"), (10, "10G"))
_BITS = {"M": 1e6, "G": 1e9, "T": 1e12}
_ROCE_PORT = "4791"
_OWN = "c4bench"
_APPLY_S = 90  # what `nv config apply` may take: it reloads the switch's daemons
_SIDES = {"rx": ("inbound",), "tx": ("outbound",), "both": ("inbound", "outbound")}
_FIXES = {
    Misconfiguration.PFC_OFF: "nv set qos pfc PROFILE switch-priority {priority}; "
    "nv set interface {port} qos pfc profile PROFILE; nv config apply",
    Misconfiguration.ECN_OFF: "nv set qos congestion-control PROFILE traffic-class {priority} ecn enable; "
    "nv set interface {port} qos congestion-control profile PROFILE; nv config apply",
    Misconfiguration.ECN_THRESHOLDS: "nv set qos congestion-control PROFILE traffic-class {priority} min-threshold "
    "{low}, max-threshold {high}, probability {percent}; nv config apply",
    Misconfiguration.DSCP_MAP: "nv set qos mapping PROFILE trust l3; "
    "nv set qos mapping PROFILE dscp {dscp} switch-priority {priority}; nv config apply",
    Misconfiguration.MTU: "nv set interface {port} link mtu {mtu}; nv config apply",
    Misconfiguration.WATCHDOG_OFF: "nv set interface {port} qos pfc-watchdog state enable; nv config apply",
    Misconfiguration.ADAPTIVE_ROUTING: "nv unset interface {port} router adaptive-routing; nv config apply",
}


def parse(printed: Printed) -> SwitchFacts:
    """The facts. Raises UnhealthyError for output that is not NVUE's."""
    facts = configured(printed["configuration"])
    interfaces = _object("nv show interface", printed["interfaces"])
    ports = {name: _port(name, own) for name, own in interfaces.items() if _is_port(name, own)}
    if not ports:
        raise UnhealthyError("`nv show interface` lists no port of the switch (swp); is this Cumulus Linux 5?")
    tree, version = tree_of(printed["configuration"]), _VERSION.search(printed.get("version", ""))
    return msgspec.structs.replace(
        facts,
        version=version[1] if version else "",
        ports=ports,
        qos={name: _qos(tree, name) for name in ports},
        printed=printed,
    )


def configured(text: str) -> SwitchFacts:
    """What the configuration alone says: a port that is not set down counts as up. Raises UnhealthyError."""
    tree = tree_of(text)
    names = sorted({name for key in _at(tree, "interface") for name in names_of(key) if name.startswith("swp")})
    return SwitchFacts(
        "nvue",
        "",
        {name: _configured_port(tree, name) for name in names},
        {name: _qos(tree, name) for name in names},
        tuple(_acl_tables(tree)),
        adaptive_routing=_is_on(_at(tree, "router", "adaptive-routing")),
        neighbours=_neighbours(tree),
    )


def tree_of(text: str) -> dict[str, Any]:
    """The tree of settings in `nv config show -o json`. Raises UnhealthyError."""
    try:
        found = json_in(text, list[dict[str, Any]])
    except DecodingError as error:
        raise UnhealthyError(f"`nv config show -o json` printed no configuration ({error})") from None
    tree: dict[str, Any] = next((one["set"] for one in found if isinstance(one.get("set"), dict)), {})
    if not tree:
        raise UnhealthyError("`nv config show -o json` has nothing that is set; is this NVUE?")
    return tree


def _object(command: str, text: str) -> dict[str, dict[str, Any]]:
    try:
        found = json_in(text, dict[str, Any])
    except DecodingError as error:
        raise UnhealthyError(f"`{command} -o json` printed no JSON as expected ({error})") from None
    return {name: own for name, own in found.items() if isinstance(own, dict)}


def _at(tree: object, *path: str) -> Any:  # noqa: ANN401  (a tree of settings)
    """What is at a path of the tree, {} for nothing."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return {} if tree is None else tree


def names_of(key: str) -> tuple[str, ...]:
    """The interfaces that a key names: `swp1-3,swp5s0-1` are five."""
    found: list[str] = []
    for part in key.split(","):
        match = _RANGE.fullmatch(part)
        if match and int(match[3]) - int(match[2]) < _MOST_PORTS:
            found += [f"{match[1]}{number}" for number in range(int(match[2]), int(match[3]) + 1)]
        else:
            found.append(part)
    return tuple(found)


def _interface(tree: Tree, name: str) -> dict[str, Any]:
    """The settings of an interface, from all keys that name it."""
    joined: dict[str, Any] = {}
    for key, own in _at(tree, "interface").items():
        if name in names_of(key) and isinstance(own, Mapping):
            joined = _merged(joined, own)
    return joined


def _merged(one: Tree, other: Tree) -> dict[str, Any]:
    """Both trees; the leaves of the second hold."""
    joined = dict(one)
    for key, value in other.items():
        below = joined.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        joined[key] = _merged(below, value) if both else value  # type: ignore[arg-type]
    return joined


def _is_port(name: str, own: Tree) -> bool:
    return own.get("type") == "swp" or name.startswith("swp")


def _port(name: str, own: Tree) -> Port:
    """A port of `nv show interface`; older versions have the state as the key of an object."""
    link = _at(own, "link")
    oper, admin = (_state(_at(link, key)) for key in ("oper-status", "admin-status"))
    oper = oper or _state(_at(link, "state"))
    rate, mtu, addresses = _bps(_at(link, "speed")), _whole(_at(link, "mtu")), tuple(_at(own, "ip", "address"))
    return Port(name, (admin or oper) == "up", oper == "up", rate, mtu, addresses)


def _configured_port(tree: Tree, name: str) -> Port:
    link = _at(_interface(tree, name), "link")
    up = _state(_at(link, "state")) != "down"
    return Port(name, up, up, _bps(_at(link, "speed")), _whole(_at(link, "mtu")))


def _state(value: object) -> str:
    """`up` or `down`, also as `{"up": {}}`; "" for nothing."""
    return next(iter(value), "") if isinstance(value, Mapping) else str(value)


def _bps(value: object) -> float:
    match = re.fullmatch(r"(\d{1,4}(?:\.\d)?)([MGT])", str(value))
    return float(match[1]) * _BITS[match[2]] if match else 0.0


def _whole(value: object) -> int:
    text = str(value)
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else 0


def _is_on(value: Tree) -> bool | None:
    """Whether what has the key `enable` or `state` is on, None without either."""
    said = value.get("state", value.get("enable")) if isinstance(value, Mapping) else None
    return None if said is None else said in _ON


def _profiles(tree: Tree) -> dict[str, Any]:
    """The profiles of QoS, with those that RoCE's mode makes."""
    qos = _at(tree, "qos")
    roce = _at(qos, "roce")
    if not roce or _is_on(roce) is False:
        return dict(qos)
    preset = _ROCE if _at(roce, "mode") == "lossy" else _ROCE | _ROCE_PFC
    return _merged(preset, qos)


def _profile(tree: Tree, port: str, kind: str) -> tuple[str, dict[str, Any]]:
    """The profile of a port, by its name, and what it says; the default for a port without one."""
    name = str(_at(_interface(tree, port), "qos", kind, "profile") or _DEFAULT)
    return name, dict(_at(_profiles(tree), kind, name))


def _qos(tree: Tree, port: str) -> PortQos:
    mapping, pfc, marking = (_profile(tree, port, kind)[1] for kind in ("mapping", "pfc", "congestion-control"))
    own = _interface(tree, port)
    trust = _TRUSTS.get(str(_at(mapping, "trust") or "l2"), "")
    return PortQos(
        pfc=_paused(pfc),
        classes=_by_number(_at(mapping, "dscp"), "switch-priority") if trust == "dscp" else None,
        queues=_by_number(_at(_profiles(tree), "egress-queue-mapping", _DEFAULT, "switch-priority"), "traffic-class"),
        ecn=dict(_marking(_at(marking, "traffic-class"))),
        watchdog=_is_on(_at(own, "qos", "pfc-watchdog")) or False,
        trust=trust,
        adaptive_routing=_is_on(_at(own, "router", "adaptive-routing")) or False,
    )


def _paused(profile: Tree) -> tuple[int, ...]:
    """The priorities of a profile that both pauses and is paused."""
    if not {profile.get("tx", "enable"), profile.get("rx", "enable")} <= _ON:
        return ()
    return tuple(sorted({number for key in _at(profile, "switch-priority") for number in numbers(key)}))


def _by_number(rows: Tree, field: str) -> dict[int, int]:
    return {number: _whole(_at(row, field)) for key, row in rows.items() for number in numbers(key)}


def _marking(classes: Tree) -> Iterator[tuple[int, Ecn]]:
    """The traffic classes that mark; ECN of a class that is configured is on unless it says otherwise."""
    for key, row in classes.items():
        if _at(row, "ecn") in {"disable", "off"} or not _at(row, "max-threshold"):
            continue
        least, most = (_whole(_at(row, f"{end}-threshold")) for end in ("min", "max"))
        for number in numbers(key):
            yield number, Ecn(least, most, float(_whole(_at(row, "probability")) or 100))


def _acl_tables(tree: Tree) -> Iterator[AclTable]:
    bound = [
        (acl, side, name)
        for key, own in _at(tree, "interface").items()
        for acl, sides in _at(own, "acl").items()
        for side in (sides if isinstance(sides, Mapping) else ())
        for name in names_of(key)
    ]
    stages = {"inbound": "ingress", "outbound": "egress"}
    for acl, row in _at(tree, "acl").items():
        for side, stage in stages.items():
            ports = tuple(port for of, at, port in bound if (of, at) == (acl, side))
            if ports:
                yield AclTable(acl, str(_at(row, "type") or ""), stage, ports, len(_at(row, "rule")))


def _neighbours(tree: Tree) -> dict[str, str]:
    """BGP neighbours that are named by their port (unnumbered)."""
    found = _at(tree, "vrf", "default", "router", "bgp", "neighbor")
    return {name: name for key in found for name in names_of(key) if name.startswith("swp")}


def listing(facts: SwitchFacts, port: str | None = None) -> dict[str, str]:
    """The configuration, a section for each branch and a line for each leaf, and which ports, or the port, are up."""
    tree = tree_of(facts.printed["configuration"])
    found = {f"nvue {branch}": "".join(f"{line}\n" for line in sorted(_leaves(own))) for branch, own in tree.items()}
    up = [name for name, own in facts.ports.items() if own.oper_up and port in {None, name}]
    return found | {"nvue ports up": "".join(f"{name}\n" for name in up)}


def _leaves(tree: object) -> Iterator[str]:
    if isinstance(tree, Mapping) and tree:
        for key, below in tree.items():
            names = names_of(str(key)) if str(key).startswith("swp") else (str(key),)
            yield from (f"{name} {rest}".rstrip() for name in names for rest in _leaves(below))
    else:
        yield "" if isinstance(tree, Mapping) else str(tree)


# A leaf to set: its path, and the value if it has one.
_Setting = tuple[Path, str]


class _Revision:
    """One revision: what is set, and how each path is given back what it has now."""

    def __init__(self, facts: SwitchFacts) -> None:
        self._tree = tree_of(facts.printed["configuration"])
        self._set: list[str] = []
        self._back: list[str] = []

    def set(self, path: Sequence[str], value: object = "") -> None:
        """Set a leaf; `value` is "" for one that has none."""
        self._set.append(shlex.join(("nv", "set", *path, *([str(value)] if value != "" else []))))
        found = self._found(path)
        if found in ("", {}, None):
            self._back.insert(0, _removed(path))
        else:
            self._back.insert(0, shlex.join(("nv", "set", *path, _state(found))))

    def make(self, path: Sequence[str], leaves: Sequence[_Setting]) -> None:
        """Make something new of that name, with these leaves below it. Raises UnhealthyError where it is there."""
        if self._found(path) not in ("", {}, None):
            raise UnhealthyError(f"the switch has `{' '.join(path)}` already; remove it, or end its fault first")
        self._set += [shlex.join(("nv", "set", *path, *below, *([value] if value else []))) for below, value in leaves]
        self._back.append(_removed(path))

    def change(self, *claims: str) -> Change:
        """The change that applies it without saving, and the one that takes it back."""
        saving = ("nv", "set", "system", "config", "auto-save")
        unsaved = " || ".join(shlex.join((*saving, *words)) for words in (("state", "disabled"), ("enable", "off")))
        before = self._found(("system", "config", "auto-save"))
        saved = [_removed(("system", "config", "auto-save"))]
        saved += [shlex.join((*saving, key, _state(value))) for key, value in (before or {}).items()]
        return Change(claims, (_applied([f"{{ {unsaved}; }}", *self._set]),), (_applied([*self._back, *saved]),))

    def _found(self, path: Sequence[str]) -> Any:  # noqa: ANN401  (a tree of settings)
        if path[0] == "interface":
            return _at(_interface(self._tree, path[1]), *path[2:])
        return _at(self._tree, *path)


def _removed(path: Sequence[str]) -> str:
    """Take away what may be gone already."""
    return f"{{ {shlex.join(('nv', 'unset', *path))} || true; }}"


def _applied(lines: Sequence[str]) -> str:
    """One line that applies a revision. What was pending before stays pending, and one without a difference is done."""
    wanted = " && ".join(lines)
    return f'nv config detach >/dev/null; {wanted} && {{ nv config apply -y || test -z "$(nv config diff)"; }}'


def down(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Set the port down; the revert sets it up, or to what it was."""
    port, revision = up_port(facts, request), _Revision(facts)
    revision.set(("interface", port.name, "link", "state"), "down")
    return revision.change(f"link of {port.name}")


def flap(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Set the port down and up, again and again."""
    return msgspec.structs.replace(down(facts, request), cycle=cycle_of(request))


def speed(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Set the fastest speed at or below the requested share; both ends must support it."""
    port, revision = up_port(facts, request), _Revision(facts)
    slower = next((name for gbps, name in _SPEEDS if gbps * 1e9 <= port.speed_bps * request.number("fraction")), "")
    if not slower:
        raise UnhealthyError(f"{request.where} runs at {port.speed_bps / 1e9:g} Gbit/s and has no speed so much lower")
    revision.set(("interface", port.name, "link", "speed"), slower)
    return revision.change(f"link of {port.name}")


def blackhole(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Drop every RoCE packet that enters or leaves by the port, by an access list; the link stays up."""
    port, revision = up_port(facts, request), _Revision(facts)
    name = f"{_OWN}-{port.name}"
    rule = ("rule", "1")
    leaves = [(("type",), "ipv4"), ((*rule, "match", "ip", "protocol"), "udp"), ((*rule, "action"), "deny")]
    revision.make(("acl", name), [*leaves, ((*rule, "match", "ip", *_udp(facts), "dest-port"), _ROCE_PORT)])
    for side in _SIDES[request.choice("direction")]:
        revision.set(("interface", port.name, "acl", name, side))
    return revision.change(f"access list of {port.name}")


def _udp(facts: SwitchFacts) -> Path:
    """The word before ports in a rule, which 5.4 and older do not have."""
    first = [int(part) for part in re.findall(r"\d{1,4}", facts.version)[:2]]
    return () if first and first < [5, 5] else ("udp",)


def rate(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Limit what the port sends by a shaper of the whole port (kbit/s)."""
    port, revision = up_port(facts, request), _Revision(facts)
    if request.choice("direction") != "tx":
        raise UnhealthyError(f"{request.where}: a shaper limits what a port sends; ask for direction tx")
    if not port.speed_bps:
        raise UnhealthyError(f"the speed of {request.where} is unknown; see `nv show interface {port.name}`")
    name, limit = f"{_OWN}-{port.name}", int(request.number("fraction") * port.speed_bps / 1e3)
    revision.make(("qos", "egress-shaper", name), [(("port-max-rate",), f"{limit}")])
    revision.set(("interface", port.name, "qos", "egress-shaper", "profile"), name)
    return revision.change(f"rate of {port.name}")


def ecmp_out(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Shut down the BGP session over the port, so that no route uses it; the link stays up."""
    port, revision = up_port(facts, request), _Revision(facts)
    if port.name not in facts.neighbours:
        raise UnhealthyError(f"{request.where} has no BGP neighbour; choose a port that a route uses")
    revision.set(("vrf", "default", "router", "bgp", "neighbor", port.name, "shutdown"), "on")
    return revision.change(f"BGP session of {port.name}")


# Settings that teams get wrong. Each changes one port only: profiles that ports share are copied.


def mtu(facts: SwitchFacts, request: FaultRequest) -> Change:
    """A smaller MTU of the port (`mtu_bytes`)."""
    port, wanted, revision = port_of(facts, request), int(request.number("mtu_bytes")), _Revision(facts)
    if not wanted < port.mtu_bytes:
        raise UnhealthyError(f"{request.where} has an MTU of {port.mtu_bytes} bytes; ask for a smaller one")
    revision.set(("interface", port.name, "link", "mtu"), wanted)
    return revision.change(f"MTU of {port.name}")


def pfc_off(facts: SwitchFacts, request: FaultRequest) -> Change:
    """No PFC at one priority of the port (`priority`); a profile without any is one that does not pause."""
    port, priority = port_of(facts, request), int(request.number("priority"))
    before = facts.qos[port.name].pfc or ()
    if priority not in before:
        raise UnhealthyError(f"{request.where} has no PFC at priority {priority}; it has it at: {before or 'none'}")
    _, profile = _profile(tree_of(facts.printed["configuration"]), port.name, "pfc")
    left = [number for number in before if number != priority]
    profile["switch-priority"] = {str(number): {} for number in left or before}
    if not left:
        profile |= {"tx": "disable", "rx": "disable"}
    return _copied(facts, port, "pfc", profile, f"PFC of {port.name}")


def watchdog_off(facts: SwitchFacts, request: FaultRequest) -> Change:
    """No PFC watchdog at the port."""
    port, revision = port_of(facts, request), _Revision(facts)
    if not facts.qos[port.name].watchdog:
        raise UnhealthyError(f"{request.where} has no PFC watchdog; choose a port that has one")
    revision.set(("interface", port.name, "qos", "pfc-watchdog", "state"), "disable")
    return revision.change(f"PFC watchdog of {port.name}")


def dscp_map(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Another priority (`class`) for one DSCP (`dscp`) at the port."""
    port, dscp, wrong = port_of(facts, request), int(request.number("dscp")), int(request.number("class"))
    classes = facts.qos[port.name].classes
    if classes is None:
        raise UnhealthyError(f"{request.where} does not trust DSCP; choose another port")
    if classes.get(dscp) == wrong:
        raise UnhealthyError(f"{request.where} has DSCP {dscp} in priority {wrong} already; choose another")
    _, profile = _profile(tree_of(facts.printed["configuration"]), port.name, "mapping")
    every = {**classes, dscp: wrong}
    profile["dscp"] = {str(number): {"switch-priority": of} for number, of in sorted(every.items())}
    return _copied(facts, port, "mapping", profile, f"DSCP map of {port.name}")


def ecn_off(facts: SwitchFacts, request: FaultRequest) -> Change:
    """No marking at the port's queues."""
    port = port_of(facts, request)
    profile = _marking_profile(facts, request)
    profile["traffic-class"] = {key: {**row, "ecn": "disable"} for key, row in profile["traffic-class"].items()}
    return _copied(facts, port, "congestion-control", profile, f"ECN of {port.name}")


def ecn_thresholds(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Thresholds of marking that are `factor` times what they are, at the port's queues."""
    port, factor = port_of(facts, request), request.number("factor")
    profile = _marking_profile(facts, request)
    ends = ("min-threshold", "max-threshold")
    profile["traffic-class"] = {
        key: row | {end: max(1, int(_whole(row[end]) * factor)) for end in ends if end in row}
        for key, row in profile["traffic-class"].items()
    }
    return _copied(facts, port, "congestion-control", profile, f"ECN of {port.name}")


def adaptive_routing(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Adaptive routing on at the port, and with it on the switch."""
    port, revision = port_of(facts, request), _Revision(facts)
    if facts.qos[port.name].adaptive_routing:
        raise UnhealthyError(f"{request.where} has adaptive routing already; choose another port")
    leaf, on = ("state", "enabled") if _is_new(facts) else ("enable", "on")
    for path in (("router", "adaptive-routing", leaf), ("interface", port.name, "router", "adaptive-routing", leaf)):
        revision.set(path, on)
    return revision.change("adaptive routing")


def _is_new(facts: SwitchFacts) -> bool:
    """Whether settings are called `state enabled`, as since 5.15, and not `enable on`."""
    return [int(part) for part in re.findall(r"\d{1,4}", facts.version)[:2]] >= [5, 15]


def _marking_profile(facts: SwitchFacts, request: FaultRequest) -> dict[str, Any]:
    """The profile by which a port marks. Raises UnhealthyError where it marks nothing."""
    port = port_of(facts, request).name
    if not facts.qos[port].ecn:
        raise UnhealthyError(f"{request.where} marks no packets; choose a port that does")
    return _profile(tree_of(facts.printed["configuration"]), port, "congestion-control")[1]


def _copied(facts: SwitchFacts, port: Port, kind: str, profile: Tree, claim: str) -> Change:
    """Give the port a profile of its own."""
    revision, name = _Revision(facts), f"{_OWN}-{port.name}"
    revision.make(("qos", kind, name), [*_settings(profile)])
    revision.set(("interface", port.name, "qos", kind, "profile"), name)
    return revision.change(claim)


def _settings(tree: Tree) -> Iterator[_Setting]:
    for key, below in tree.items():
        if isinstance(below, Mapping) and below:
            yield from (((str(key), *path), value) for path, value in _settings(below))
        else:
            yield (str(key),), "" if isinstance(below, Mapping) else str(below)


SYSTEM = System(
    "nvue",
    _READS,
    parse,
    listing,
    {
        "down": down,
        "flap": flap,
        "speed": speed,
        "blackhole": blackhole,
        "rate": rate,
        "ecmp_out": ecmp_out,
        "mtu": mtu,
        "pfc_off": pfc_off,
        "watchdog_off": watchdog_off,
        "dscp_map": dscp_map,
        "ecn_off": ecn_off,
        "ecn_thresholds": ecn_thresholds,
        "adaptive_routing": adaptive_routing,
    },
    fixes=_FIXES,
    line_s=_APPLY_S,
)
