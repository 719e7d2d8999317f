"""containerlab's YAML: nodes by kind, and links in their short and long forms."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from c4bench.decoding import from_yaml
from c4bench.errors import UsageError
from c4bench.inventory.cabling.wiring import HOST, SWITCH, End, Wire, Wiring, once

_TOPOLOGY = re.compile(r"^topology:[ \t]*$", re.MULTILINE)
_PARTS = re.compile(r"^[ ]{1,8}(?:nodes|links):[ \t]*$", re.MULTILINE)
_PLAIN = {"linux", "host", ""}
_SWITCH_ROLES = {"leaf", "spine", "tor", "core", "switch", "superspine", "border"}
_HOST_ROLES = {"host", "server", "gpu", "client", "compute"}


def recognised(text: str) -> bool:
    """Whether it is a file of containerlab."""
    return bool(_TOPOLOGY.search(text) and _PARTS.search(text))


def read(text: str) -> Wiring:
    """The links between nodes. Raises UsageError."""
    document: object = from_yaml(text)
    topology = document.get("topology") if isinstance(document, dict) else None
    if not isinstance(topology, dict):
        raise UsageError("`topology` is no mapping; is it a containerlab file?")
    wires: list[Wire] = []
    single = 0
    links = topology.get("links")
    for position, link in enumerate(links if isinstance(links, list) else []):
        ends = [*_ends(position, link)]
        if len(ends) == 2:
            wires.append(Wire(ends[0], ends[1]))
        else:
            single += 1
    notes = ["the file states no speeds"] + (
        [f"{single} links lead out of the lab, and are left out"] if single else []
    )
    return Wiring("containerlab", tuple(once(wires)), _roles(topology), tuple(notes))


def _ends(position: int, link: object) -> Iterator[End]:
    endpoints = link.get("endpoints") if isinstance(link, dict) else None
    for one in endpoints if isinstance(endpoints, list) else []:
        if isinstance(one, dict) and "node" in one:
            yield End(str(one["node"]), str(one.get("interface", "")))
        elif isinstance(one, str) and ":" in one:
            node, _, port = one.partition(":")
            if node not in {"host", "mgmt-net", "macvlan"}:
                yield End(node, port)
        else:
            raise UsageError(
                f"topology.links[{position}]: an endpoint is `NODE:INTERFACE`, or has `node` and `interface`"
            )


def _roles(topology: Mapping[str, Any]) -> dict[str, str]:
    """The roles that labels, groups and kinds state. Linux nodes are hosts only beside other kinds."""
    nodes = topology.get("nodes")
    own = (
        {str(name): node if isinstance(node, dict) else {} for name, node in nodes.items()}
        if isinstance(nodes, dict)
        else {}
    )
    defaults = topology.get("defaults")
    usual = str(defaults.get("kind", "")) if isinstance(defaults, dict) else ""
    kinds = {name: str(node.get("kind") or usual) for name, node in own.items()}
    mixed = any(kind not in _PLAIN for kind in kinds.values())
    roles: dict[str, str] = {}
    for name, node in own.items():
        labels = node.get("labels")
        words = {str(node.get("group", "")).lower()}
        words |= (
            {str(labels.get(key, "")).lower() for key in ("role", "function")} if isinstance(labels, dict) else set()
        )
        if words & _SWITCH_ROLES or kinds[name] not in _PLAIN:
            roles[name] = SWITCH
        elif words & _HOST_ROLES or mixed:
            roles[name] = HOST
    return roles
