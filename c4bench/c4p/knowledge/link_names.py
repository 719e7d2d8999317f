"""The names of links as people say them: by nodes, and by the switches' ports where they are known. Pure."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import msgspec

from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.cabling import Link, infer, tiers
from c4bench.c4p.knowledge.graph_comparison import recognise
from c4bench.c4p.knowledge.link_rates import Port, port_at
from c4bench.model.graph import FabricGraph

# An address may have colons, and one may follow it.
_LINK = re.compile(r"\blink (\S+?)(?=[,;:]?(?:\s|$))")


class NamedLinks(msgspec.Struct, frozen=True):
    """What known paths show of a fabric: its directed links and their names, by hop, and each node's tier.

    A name is `leaf2/up1 > spine1/down2`, without the ports that nothing states. Tier 0 are NICs, 1 leaves.
    """

    links: Mapping[str, Link] = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})
    tiers: Mapping[str, int] = MappingProxyType({})

    def beside(self, before: "NamedLinks", missing: Collection[str]) -> "NamedLinks":
        """These links, and those that are missing and that only `before` has: no path shows them any more."""
        lost = {hop: before.links[hop] for hop in missing if hop in before.links and hop not in self.links}
        nodes = {node for link in lost.values() for node in (link.source, link.target)}
        tiers = {node: before.tiers[node] for node in nodes if node in before.tiers}
        return NamedLinks(
            lost | {**self.links}, {hop: before.names[hop] for hop in lost} | {**self.names}, tiers | {**self.tiers}
        )


def name_links(
    atlas: Atlas, graph: FabricGraph | None = None, ports: Mapping[str, Port] = MappingProxyType({})
) -> NamedLinks:
    """Name the links of the atlas's paths by the stated graph, if any, and by the switches' `ports`, by hop address."""
    switches = {address: port[0] for address, port in ports.items()}
    found = infer(atlas, switches) if graph is None else recognise(atlas, graph, switches).links
    links = {link.hop: link for link in found}
    ends = _Ends(graph, found, ports)
    nics = {nic for pair in atlas.pairs for nic in pair}
    names = {hop: " > ".join(ends.of(link, _port_of(link, ports))) for hop, link in links.items()}
    return NamedLinks(links, names, tiers(found, nics))


def in_words(text: str, names: Mapping[str, str]) -> str:
    """A sentence in which `link ADDRESS` has become `link NAME`, where `names` has one for the address."""
    return _LINK.sub(lambda found: f"link {names.get(found[1], found[1])}", text)


class _Ends:
    """The ends of links with their ports, by the cables that a graph states, else by the other direction's link."""

    def __init__(self, graph: FabricGraph | None, links: Iterable[Link], ports: Mapping[str, Port]) -> None:
        self._entered: dict[tuple[str, str], list[str]] = defaultdict(list)
        for link in links:
            self._entered[link.source, link.target].append(_port_of(link, ports))
        # By a port of either end, and by the nodes alone: the ports at (source, target) of the directed links there.
        self._stated: dict[tuple[str, str, str], list[tuple[str, str]]] = defaultdict(list)
        for source, source_port, target, target_port in _directed(graph):
            self._stated[source, target, target_port].append((source_port, target_port))
            if target_port:
                self._stated[source, target, ""].append((source_port, target_port))

    def of(self, link: Link, asked: str) -> tuple[str, str]:
        """The near and the far end; `asked` is the port at the far end, "" where its switch does not say."""
        stated = self._stated.get((link.source, link.target, asked), [])
        near, far = stated[0] if len(stated) == 1 else ("", "")
        back = self._entered.get((link.target, link.source), [])
        near = near or (back[0] if len(back) == 1 else "")
        return _end(link.source, near), _end(link.target, asked or far)


def _port_of(link: Link, ports: Mapping[str, Port]) -> str:
    """The port at the far end of a link, as its switch says."""
    switch, port = port_at(link.hop, ports)
    return port if switch == link.target else ""


def _directed(graph: FabricGraph | None) -> Iterable[tuple[str, str, str, str]]:
    """Both directions of each cable: source and its port, target and its port."""
    for cable in graph.host_ports if graph else ():
        nic = f"{cable.host}/{cable.nic}"
        yield nic, "", cable.switch, cable.port
        yield cable.switch, cable.port, nic, ""
    for trunk in graph.trunks if graph else ():
        yield trunk.a, trunk.a_port, trunk.b, trunk.b_port
        yield trunk.b, trunk.b_port, trunk.a, trunk.a_port


def _end(node: str, port: str) -> str:
    return f"{node}/{port}" if port else node
