"""`ibnetdiscover`: a block for each switch and adapter, with a line for each of its cables, which so are there twice.

Nodes are told apart by their GUIDs, since names need not be unique: the parts of a modular switch share theirs.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from c4bench.foreign_text import one_line
from c4bench.inventory.cabling.rates import infiniband
from c4bench.inventory.cabling.wiring import HOST, SWITCH, End, Wire, Wiring, once

RECOGNISED = re.compile(r'^(?:Switch|Ca|Rt)\s+\d+\s+"[SHR]-[0-9a-f]{16}"', re.MULTILINE)
_HEADING = re.compile(r'^(?:Switch|Ca|Rt)\s+\d+\s+"(?P<id>[SHR]-[0-9a-f]{16})"\s+#\s+"(?P<name>[^"]*)"')
_CABLE = re.compile(
    r'^\[(?P<port>\d{1,3})\](?:\[[^\]]*\])?(?:\([0-9a-f]+\))?\s+"(?P<id>[SHR]-[0-9a-f]{16})"\[(?P<far_port>\d{1,3})\]'
    r"[^#]*#(?P<rest>.*)$"
)
_SPEED = re.compile(r"(\d{1,2}x[A-Z]+\d*)\s*$")
_MANAGED = re.compile(r"MF0;(?P<name>[^:;]+):(?P<kind>[^/;]*)/?(?P<part>.*)")
# What adapters and switches are called as long as nobody has named them.
_UNNAMED = re.compile(r"Mellanox Technologies|^MT\d{4,}|^$|^Quantum\b|^SwitchX|^Infiniscale|^SwitchIB", re.IGNORECASE)
_AGGREGATION = re.compile(r"Aggregation Node", re.IGNORECASE)
_ADAPTER = re.compile(r"(?P<host>\S+)\s+(?P<adapter>(?:mlx\d_\d+|HCA-\d+|hfi1_\d+|ibp\w+|mthca\d+|qib\d+)\S*)")


class Link(msgspec.Struct, frozen=True):
    """A cable between two nodes by name, with ports, its width and speed, and whether one of them is a host."""

    a: str
    a_port: str
    b: str
    b_port: str
    speed: str
    has_host: bool


def node_name(described: str) -> str:
    """The name in a node's description: of `MF0;leaf1:MQM8700/U1` leaf1, of `gpu1 mlx5_0` gpu1."""
    if match := _MANAGED.match(described):
        return match["name"].strip()
    match = _ADAPTER.fullmatch(described.strip())
    return match["host"] if match else described.strip()


def is_switch_name(described: str) -> bool:
    """Whether a node's description is that of a managed switch."""
    return bool(_MANAGED.match(described))


def links(text: str) -> list[Link]:
    """Every cable once; those of aggregation nodes, which are inside switches, are left out."""
    wiring = read(text)
    speeds = {frozenset((End(*ends[:2]), End(*ends[2:]))): speed for ends, speed in _speeds(text)}
    found = []
    for wire in wiring.wires:
        has_host = HOST in {wiring.roles[end.node] for end in wire.ends}
        speed = speeds.get(frozenset(wire.ends), "")
        found.append(Link(wire.a.node, wire.a.port, wire.b.node, wire.b.port, speed, has_host))
    return found


def read(text: str) -> Wiring:
    """The cables between hosts and switches."""
    nodes = _names(text)
    roles = {name: HOST if key.startswith("H-") else SWITCH for key, name in nodes.items()}
    wires = tuple(once(Wire(End(*ends[:2]), End(*ends[2:]), infiniband(speed)) for ends, speed in _speeds(text)))
    notes = tuple(_notes(text, nodes))
    return Wiring("ibnetdiscover", wires, roles, notes)


def _speeds(text: str) -> Iterator[tuple[tuple[str, str, str, str], str]]:
    """Both ends of each line of a cable, the lesser first, and the speed."""
    nodes = _names(text)
    adapters = {key: _port_prefix(name) for key, name in _described(text).items()}
    for near, match in _cables(text):
        far = match["id"]
        if near in nodes and far in nodes:
            a = (nodes[near], adapters.get(near, "") + match["port"])
            b = (nodes[far], adapters.get(far, "") + match["far_port"])
            speed = _SPEED.search(match["rest"])
            yield (*min(a, b), *max(a, b)), speed[1] if speed else ""


def _port_prefix(described: str) -> str:
    """The adapter before the port's number, since a host may have several: `mlx5_0/`."""
    match = _ADAPTER.fullmatch(described.strip())
    return f"{match['adapter']}/" if match else ""


def _cables(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    near = ""
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            near = heading["id"]
        elif (match := _CABLE.match(line)) and near:
            yield near, match


def _described(text: str) -> dict[str, str]:
    """The description of every node, from its own heading, or from a cable of a switch to it."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            found[heading["id"]] = heading["name"]
    for _, match in _cables(text):
        named = re.search(r'"([^"]*)"', match["rest"])
        found.setdefault(match["id"], named[1] if named else "")
    return found


def _names(text: str) -> dict[str, str]:
    """The name of every node; those without one are called by their GUID."""
    described = {key: name for key, name in _described(text).items() if not _AGGREGATION.search(name)}
    names = {
        key: node_name(name) if not _UNNAMED.search(node_name(name)) else key[2:] for key, name in described.items()
    }
    sharing: dict[str, list[str]] = defaultdict(list)
    for key, name in names.items():
        if not key.startswith("H-"):
            sharing[name].append(key)
    for name, keys in sharing.items():
        for key in keys if len(keys) > 1 else ():
            match = _MANAGED.match(described[key])
            part = match["part"].replace("/", "-") if match else ""
            names[key] = f"{name}-{part or key[-6:]}"
    return {key: re.sub(r"[^\w.-]+", "-", name) for key, name in names.items()}


def _notes(text: str, nodes: Mapping[str, str]) -> Iterator[str]:
    described = _described(text)
    for key, name in described.items():
        if _AGGREGATION.search(name):
            yield f"{key} is an aggregation node inside a switch, and left out"
        elif nodes.get(key) == key[2:]:
            what = "host" if key.startswith("H-") else "switch"
            yield f"the file does not state the name of the {what} with GUID {key[2:]} ({one_line(name, 60)!r})"
