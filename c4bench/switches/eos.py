"""Arista EOS: its running configuration as a tree of lines, and configuration sessions.

Written from its manual and recorded output; never run on hardware. A change is one session, applied whole or not at
all by `commit timer`: EOS itself goes back to the configuration before, when the lease ends, whatever became of the
controller. It then takes back what others have changed meanwhile, too. Nothing is saved.
"""

import ipaddress
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from c4bench.decoding import DecodingError, json_in
from c4bench.errors import UnhealthyError
from c4bench.model.fault import FaultRequest, Misconfiguration
from c4bench.switches.facts import AclTable, Ecn, Port, PortQos, SwitchFacts
from c4bench.switches.system import Change, Printed, Read, System, port_of, up_port
from c4bench.switches.tables import numbers

# Lines of the configuration; those that open a block have its lines.
Lines = dict[str, Any]
_CLI = "FastCli -p 15 -c"
_READS = {
    "configuration": Read(f"{_CLI} 'show running-config | json'"),
    "interfaces": Read(f"{_CLI} 'show interfaces | json'"),
    "version": Read(f"{_CLI} 'show version | json'", needed=False),
}
_PORT = re.compile(r"Ethernet\d+(?:/\d+){0,2}")
# Bytes of a unit of thresholds. A segment is the unit of the chip's packet memory.
_UNITS = {"bytes": 1, "kbytes": 1000, "mbytes": 1_000_000, "segments": 208}
_ECN = re.compile(
    r"random-detect ecn minimum-threshold (\d{1,9}) (\w+) maximum-threshold (\d{1,9}) (\w+)"
    r"(?: max-mark-probability (\d{1,3}))?(.*)"
)
_QUEUE = re.compile(r"(?:uc-)?tx-queue (\d)")
_NO_DROP = re.compile(r"priority-flow-control priority (\d) no-drop")
_MAP = re.compile(r"qos map dscp ([\d ,-]+) to traffic-class (\d)")
_CLASS_QUEUE = re.compile(r"qos map traffic-class ([\d ,-]+) to (?:uc-)?tx-queue (\d)")
_WATCHDOG = "priority-flow-control pause watchdog"
_DYNAMIC = "ip hardware fib load-balance distribution dynamic"
# The traffic class of DSCP n is that of n // 8 here, unless a map says otherwise.
_CLASSES = (1, 0, 2, 3, 4, 5, 6, 7)
_DSCPS = 64
_SPEEDS = ((400, "400g-8"), (200, "200g-4"), (100, "100g-4"), (50, "50g-2"), (40, "40g-4"), (25, "25g"), (10, "10g"))
_SIDES = {"rx": ("in",), "tx": ("out",), "both": ("in", "out")}
_OWN = "c4bench"
_SHORTEST_S = 10  # of a timer
_FIXES = {
    Misconfiguration.PFC_OFF: "interface {port}; priority-flow-control on; "
    "priority-flow-control priority {priority} no-drop",
    Misconfiguration.ECN_OFF: "interface {port}; uc-tx-queue {priority}; "
    "random-detect ecn minimum-threshold LOW kbytes maximum-threshold HIGH kbytes",
    Misconfiguration.ECN_THRESHOLDS: "interface {port}; uc-tx-queue {priority}; random-detect ecn minimum-threshold "
    "{low} bytes maximum-threshold {high} bytes max-mark-probability {percent}",
    Misconfiguration.DSCP_MAP: "qos map dscp {dscp} to traffic-class {priority}; interface {port}; qos trust dscp",
    Misconfiguration.MTU: "interface {port}; mtu {mtu}",
    Misconfiguration.WATCHDOG_OFF: "interface {port}; priority-flow-control pause watchdog",
    Misconfiguration.ADAPTIVE_ROUTING: "no ip hardware fib load-balance distribution dynamic",
}


def parse(printed: Printed) -> SwitchFacts:
    """The facts. Raises UnhealthyError for output that is not EOS's."""
    lines = lines_of(printed["configuration"])
    found = _json("show interfaces", printed["interfaces"]).get("interfaces")
    interfaces = found if isinstance(found, dict) else {}
    ports = {name: _port(lines, name, own) for name, own in interfaces.items() if _PORT.fullmatch(name)}
    if not ports:
        raise UnhealthyError("`show interfaces` lists no Ethernet port; is this EOS?")
    version = _json("show version", printed["version"]).get("version", "") if "version" in printed else ""
    return SwitchFacts(
        "eos",
        str(version),
        ports,
        {name: _qos(lines, name) for name in ports},
        tuple(_acl_tables(lines)),
        adaptive_routing=any(line.startswith(_DYNAMIC) for line in lines),
        neighbours=_neighbours(lines),
        printed=printed,
    )


def configured(text: str) -> SwitchFacts:
    """What the running configuration alone says: a port with settings that is not shut down counts as up.

    Raises UnhealthyError.
    """
    lines = lines_of(text)
    ports = {name: _configured_port(lines, name) for name in _names(lines)}
    qos = {name: _qos(lines, name) for name in ports}
    dynamic = any(line.startswith(_DYNAMIC) for line in lines)
    return SwitchFacts("eos", "", ports, qos, tuple(_acl_tables(lines)), None, dynamic, _neighbours(lines))


def lines_of(text: str) -> Lines:
    """The lines of the running configuration, from `| json` or as text. Raises UnhealthyError."""
    lines = _commands(_json("show running-config", text)) if text.lstrip().startswith("{") else _indented(text)
    if not any(line.startswith("interface ") for line in lines):
        raise UnhealthyError("`show running-config` has no interface; is this EOS, and may the user see it?")
    return lines


def _json(command: str, text: str) -> dict[str, Any]:
    try:
        return json_in(text, dict[str, Any])
    except DecodingError as error:
        raise UnhealthyError(f"`{command} | json` printed no JSON as expected ({error})") from None


def _commands(found: Mapping[str, Any]) -> Lines:
    own = found.get("cmds")
    lines = own if isinstance(own, dict) else {}
    return {str(line): _commands(below) if isinstance(below, dict) else {} for line, below in lines.items()}


def _indented(text: str) -> Lines:
    """Lines of text by their indentation."""
    top: Lines = {}
    open_blocks: list[tuple[int, Lines]] = [(-1, top)]
    for line in text.splitlines():
        bare, depth = line.strip(), len(line) - len(line.lstrip())
        if not bare or bare.startswith("!"):
            continue
        while open_blocks[-1][0] >= depth and len(open_blocks) > 1:
            open_blocks.pop()
        block: Lines = {}
        open_blocks[-1][1][bare] = block
        open_blocks.append((depth, block))
    return top


def _names(lines: Lines) -> list[str]:
    found = (line.removeprefix("interface ") for line in lines if line.startswith("interface "))
    return [name for name in found if _PORT.fullmatch(name)]


def _port(lines: Lines, name: str, own: object) -> Port:
    """A port of `show interfaces`."""
    facts = own if isinstance(own, dict) else {}
    status = str(facts.get("interfaceStatus", ""))
    up = str(facts.get("lineProtocolStatus", "")) == "up"
    speed, mtu = (value if isinstance(value, int) else 0 for value in (facts.get("bandwidth"), facts.get("mtu")))
    admin_up = status not in {"disabled", "errdisabled", ""}
    return Port(name, admin_up, up, float(speed), mtu, _addresses(lines, name))


def _addresses(lines: Lines, port: str) -> tuple[str, ...]:
    """The IPv4 addresses of a port with their prefix lengths."""
    return tuple(match[1] for line in _block(lines, port) if (match := re.match(r"ip address ([0-9./]+)", line)))


def _configured_port(lines: Lines, name: str) -> Port:
    own = _block(lines, name)
    up = bool(own) and "shutdown" not in own
    mtu = next((int(line.split()[1]) for line in own if re.fullmatch(r"(?:l2 )?mtu [0-9]{1,5}", line)), 0)
    return Port(name, up, up, 0.0, mtu)


def _block(lines: Lines, port: str) -> Lines:
    own: Lines = lines.get(f"interface {port}", {})
    return own


def _profile(lines: Lines, port: str) -> str:
    """The QoS profile of a port, "" for none."""
    own = _block(lines, port)
    return next((line.split()[-1] for line in own if re.match(r"(?:service-profile|qos profile) \S", line)), "")


def _rules(lines: Lines, port: str) -> Lines:
    """The lines that say how a port queues: its own before those of its profile."""
    return {**lines.get(f"qos profile {_profile(lines, port)}", {}), **_block(lines, port)}


def _qos(lines: Lines, port: str) -> PortQos:
    rules = _rules(lines, port)
    trust = _trust(rules)
    queues = {number: int(queue) for text, queue in _matches(_CLASS_QUEUE, lines) for number in _listed(text)}
    return PortQos(
        pfc=_paused(rules),
        classes=_classes(lines) if trust == "dscp" else None,
        queues=queues,
        ecn=dict(_marking(rules)),
        watchdog=_watched(lines, rules),
        trust=trust,
    )


def _trust(rules: Lines) -> str:
    """What a port trusts; where it does not say, a routed port trusts DSCP and a switched one the PCP."""
    said = next((line.split()[-1] for line in rules if re.fullmatch(r"qos trust (?:dscp|cos)", line)), "")
    if "no qos trust" in rules:
        return "none"
    return {"dscp": "dscp", "cos": "pcp", "": "dscp" if "no switchport" in rules else "pcp"}[said]


def _paused(rules: Lines) -> tuple[int, ...]:
    if not rules.keys() & {"priority-flow-control on", "priority-flow-control mode on"}:
        return ()
    return tuple(sorted({int(number) for (number,) in _matches(_NO_DROP, rules)}))


def _classes(lines: Lines) -> dict[int, int]:
    found = {dscp: _CLASSES[dscp // 8] for dscp in range(_DSCPS)}
    for text, number in _matches(_MAP, lines):
        found |= dict.fromkeys(_listed(text), int(number))
    return found


def _listed(text: str) -> tuple[int, ...]:
    return numbers(text.strip().replace(" ", ","))


def _matches(pattern: re.Pattern[str], lines: Lines) -> Iterator[tuple[str, ...]]:
    yield from (match.groups("") for line in lines if (match := pattern.fullmatch(line)))


def _marking(rules: Lines) -> Iterator[tuple[int, Ecn]]:
    for line, below in rules.items():
        queue = _QUEUE.fullmatch(line)
        for match in filter(None, map(_ECN.fullmatch, below if queue else ())):
            least, most = (int(match[n]) * _UNITS.get(match[n + 1], 1) for n in (1, 3))
            yield int(queue[1]) if queue else 0, Ecn(least, most, float(match[5] or 100))


def _watched(lines: Lines, rules: Lines) -> bool:
    if f"no {_WATCHDOG}" in rules:
        return False
    return _WATCHDOG in rules or any(line.startswith(f"{_WATCHDOG} default timeout") for line in lines)


def _acl_tables(lines: Lines) -> Iterator[AclTable]:
    for name, stage in ((name, stage) for line in lines if (name := _acl_name(line)) for stage in ("in", "out")):
        ports = tuple(port for port in _names(lines) if f"ip access-group {name} {stage}" in _block(lines, port))
        if ports:
            kind = {"in": "ingress", "out": "egress"}[stage]
            yield AclTable(name, "ip", kind, ports, len(lines[f"ip access-list {name}"]))


def _acl_name(line: str) -> str:
    match = re.fullmatch(r"ip access-list (\S+)", line)
    return match[1] if match else ""


def _neighbours(lines: Lines) -> dict[str, str]:
    """The BGP neighbour in the subnet of each port."""
    bgp: Lines = next((below for line, below in lines.items() if line.startswith("router bgp ")), {})
    peers = {match[1] for line in bgp if (match := re.match(r"neighbor ([0-9.]{7,15}) ", line))}
    found: dict[str, str] = {}
    for port in _names(lines):
        try:
            subnet = ipaddress.IPv4Interface("".join(_addresses(lines, port)[:1])).network
            inside = [peer for peer in peers if ipaddress.IPv4Address(peer) in subnet]
        except ValueError:
            continue
        if inside:
            found[port] = inside[0]
    return found


def listing(facts: SwitchFacts, port: str | None = None) -> dict[str, str]:
    """The running configuration, a line for each of its lines, and which ports, or the port, are up."""
    lines = "".join(f"{line}\n" for line in sorted(_flat(lines_of(facts.printed["configuration"]))))
    up = [name for name, own in facts.ports.items() if own.oper_up and port in {None, name}]
    return {"eos configuration": lines, "eos ports up": "".join(f"{name}\n" for name in up)}


def _flat(lines: Lines) -> Iterator[str]:
    for line, below in lines.items():
        yield line
        yield from (f"{line} / {rest}" for rest in _flat(below))


def _change(request: FaultRequest, lines: Sequence[str], back: Sequence[str], *claims: str) -> Change:
    """A session with a timer as long as the lease, and its end: the session is aborted, or its lines are undone.

    EOS has one such timer at a time, so two changes exclude each other.
    """
    name = f"{_OWN}-{request.port}".replace("/", "-")
    left_s = max(_SHORTEST_S, math.ceil(request.lease_s))
    clock = f"{left_s // 3600:02d}:{left_s // 60 % 60:02d}:{left_s % 60:02d}"
    apply = _typed([f"configure session {name}", *lines, f"commit timer {clock}"])
    abort = f"{_typed([f'configure session {name} abort'])} || true"
    revert = abort, _typed(["configure", *back])
    return Change((*claims, "configuration timer"), (apply,), revert, ends_s=left_s)


def _typed(lines: Sequence[str]) -> str:
    """One line of shell that types these lines at the prompt, and fails where EOS refuses one (`% ...`)."""
    typed = " ".join(shlex.quote(line) for line in lines)
    said = f'said=$({_CLI} "$(printf "%s\\n" {typed})" 2>&1)'
    return f'{{ {said}; code=$?; case "$said" in *%*) echo "$said" >&2; false;; *) test $code = 0;; esac; }}'


def _on_port(port: str, *lines: str) -> list[str]:
    return [f"interface {port}", *lines]


def _back_on_port(facts: SwitchFacts, port: str, start: str, default: str) -> list[str]:
    """The line of a port that begins so as it is now, or `default`."""
    own = _block(lines_of(facts.printed["configuration"]), port)
    return _on_port(port, next((line for line in own if line.startswith(start)), default))


def down(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Shut the port down."""
    port = up_port(facts, request).name
    return _change(request, _on_port(port, "shutdown"), _on_port(port, "no shutdown"), f"link of {port}")


def speed(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Force the fastest speed at or below the requested share; both ends must support it."""
    port = up_port(facts, request)
    slower = next((name for gbps, name in _SPEEDS if gbps * 1e9 <= port.speed_bps * request.number("fraction")), "")
    if not slower:
        raise UnhealthyError(f"{request.where} runs at {port.speed_bps / 1e9:g} Gbit/s and has no speed so much lower")
    back = _back_on_port(facts, port.name, "speed ", "default speed")
    return _change(request, _on_port(port.name, f"speed {slower}"), back, f"link of {port.name}")


def blackhole(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Drop every RoCE packet that enters or leaves by the port, by an access list; the link stays up."""
    port, lines = up_port(facts, request).name, lines_of(facts.printed["configuration"])
    name, sides = f"{_OWN}-{port}".replace("/", "-"), _SIDES[request.choice("direction")]
    for line in _block(lines, port):
        if line.startswith("ip access-group ") and line.endswith(sides):
            raise UnhealthyError(f"{request.where} has `{line}`; a port has one list each way: choose another port")
    rules = [f"ip access-list {name}", "10 deny udp any any eq 4791", "20 permit ip any any", "exit"]
    bound = [f"ip access-group {name} {side}" for side in sides]
    back = [*_on_port(port, *(f"no {line}" for line in bound)), "exit", f"no ip access-list {name}"]
    return _change(request, [*rules, *_on_port(port, *bound)], back, f"access list of {port}")


def rate(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Limit what the port sends by a shaper of the whole port (kbit/s)."""
    port = up_port(facts, request)
    if request.choice("direction") != "tx":
        raise UnhealthyError(f"{request.where}: a shaper limits what a port sends; ask for direction tx")
    if not port.speed_bps:
        raise UnhealthyError(f"the speed of {request.where} is unknown; see `show interfaces {port.name}`")
    limit = f"shape rate {int(request.number('fraction') * port.speed_bps / 1e3)} kbps"
    back = _back_on_port(facts, port.name, "shape rate ", "no shape rate")
    return _change(request, _on_port(port.name, limit), back, f"rate of {port.name}")


def ecmp_out(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Shut down the BGP session over the port, so that no route uses it; the link stays up."""
    port, lines = up_port(facts, request).name, lines_of(facts.printed["configuration"])
    peer = facts.neighbours.get(port)
    if peer is None:
        raise UnhealthyError(f"{request.where} has no BGP neighbour; choose a port that a route uses")
    router = next(line for line in lines if line.startswith("router bgp "))
    if f"neighbor {peer} shutdown" in lines[router]:
        raise UnhealthyError(f"the BGP session with {peer} is shut down already; choose another port")
    off = f"neighbor {peer} shutdown"
    return _change(request, [router, off], [router, f"no {off}"], f"BGP session of {port}")


# Settings that teams get wrong. Each changes one port only: profiles that ports share are copied.


def mtu(facts: SwitchFacts, request: FaultRequest) -> Change:
    """A smaller MTU of the port (`mtu_bytes`)."""
    port, wanted = port_of(facts, request), int(request.number("mtu_bytes"))
    if not wanted < port.mtu_bytes:
        raise UnhealthyError(f"{request.where} has an MTU of {port.mtu_bytes} bytes; ask for a smaller one")
    back = _back_on_port(facts, port.name, "mtu ", "default mtu")
    return _change(request, _on_port(port.name, f"mtu {wanted}"), back, f"MTU of {port.name}")


def pfc_off(facts: SwitchFacts, request: FaultRequest) -> Change:
    """No PFC at one priority of the port (`priority`)."""
    port, priority = port_of(facts, request).name, int(request.number("priority"))
    before = facts.qos[port].pfc or ()
    if priority not in before:
        raise UnhealthyError(f"{request.where} has no PFC at priority {priority}; it has it at: {before or 'none'}")
    line = f"priority-flow-control priority {priority} no-drop"

    def rules(found: Lines) -> Lines:
        return {one: below for one, below in found.items() if one != line}

    return _requeued(facts, request, f"PFC of {port}", rules)


def watchdog_off(facts: SwitchFacts, request: FaultRequest) -> Change:
    """No PFC watchdog at the port."""
    port = port_of(facts, request).name
    if not facts.qos[port].watchdog:
        raise UnhealthyError(f"{request.where} has no PFC watchdog; choose a port that has one")
    own = _block(lines_of(facts.printed["configuration"]), port)
    back = _on_port(port, _WATCHDOG if _WATCHDOG in own else f"default {_WATCHDOG}")
    return _change(request, _on_port(port, f"no {_WATCHDOG}"), back, f"PFC watchdog of {port}")


def ecn_off(facts: SwitchFacts, request: FaultRequest) -> Change:
    """No marking at the port's queues."""
    return _remarked(facts, request, lambda _: "")


def ecn_thresholds(facts: SwitchFacts, request: FaultRequest) -> Change:
    """Thresholds of marking that are `factor` times what they are, at the port's queues."""
    factor = request.number("factor")

    def scaled(line: re.Match[str]) -> str:
        least, most = (max(1, int(int(line[n]) * factor)) for n in (1, 3))
        chance = f" max-mark-probability {line[5]}" if line[5] else ""
        return (
            f"random-detect ecn minimum-threshold {least} {line[2]} maximum-threshold {most} {line[4]}{chance}{line[6]}"
        )

    return _remarked(facts, request, scaled)


def _remarked(facts: SwitchFacts, request: FaultRequest, edit: Callable[[re.Match[str]], str]) -> Change:
    """The port's lines of marking changed to what `edit` gives, "" for none."""
    port = port_of(facts, request).name
    if not facts.qos[port].ecn:
        raise UnhealthyError(f"{request.where} marks no packets; choose a port that does")

    def rules(found: Lines) -> Lines:
        changed = {}
        for line, below in found.items():
            edited = {edit(match) if (match := _ECN.fullmatch(one)) else one: of for one, of in below.items()}
            changed[line] = {one: of for one, of in edited.items() if one}
        return changed

    return _requeued(facts, request, f"ECN of {port}", rules)


def _requeued(facts: SwitchFacts, request: FaultRequest, claim: str, edit: Callable[[Lines], Lines]) -> Change:
    """Give the port a copy of its QoS profile with other lines. Raises UnhealthyError for a port without a profile."""
    port, lines = port_of(facts, request).name, lines_of(facts.printed["configuration"])
    name, copy = _profile(lines, port), f"{_OWN}-{port}".replace("/", "-")
    rules = lines.get(f"qos profile {name}", {})
    if not rules or edit(rules) == rules:
        raise UnhealthyError(f"{request.where} has this not from a QoS profile; give it one (qos profile)")
    apply = [f"qos profile {copy}", *_written(edit(rules)), "exit", *_on_port(port, f"service-profile {copy}")]
    back = [*_on_port(port, f"service-profile {name}"), "exit", f"no qos profile {copy}"]
    return _change(request, apply, back, claim)


def _written(lines: Lines) -> Iterator[str]:
    """Lines as they are typed; a block ends with `exit`."""
    for line, below in lines.items():
        yield line
        if below or _QUEUE.fullmatch(line):
            yield from _written(below)
            yield "exit"


SYSTEM = System(
    "eos",
    _READS,
    parse,
    listing,
    {
        "down": down,
        "speed": speed,
        "blackhole": blackhole,
        "rate": rate,
        "ecmp_out": ecmp_out,
        "mtu": mtu,
        "pfc_off": pfc_off,
        "watchdog_off": watchdog_off,
        "ecn_off": ecn_off,
        "ecn_thresholds": ecn_thresholds,
    },
    enter=("bash", "sudo", "-n", "sh", "-s"),
    fixes=_FIXES,
)
