"""The stated graph of a fabric against what was found of it, link by link."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.cables import Cables, Ends, crossed, ends, expected, nodes_of
from c4bench.c4p.knowledge.cabling import Link, infer
from c4bench.c4p.knowledge.switch_names import identify
from c4bench.model.graph import FabricGraph


class Kind(StrEnum):
    """How what was found differs from what is stated."""

    MISSING = "missing"
    UNEXPECTED = "unexpected"
    ELSEWHERE = "elsewhere"
    FEWER = "fewer"
    MORE = "more"


class CableDifference(msgspec.Struct, frozen=True, order=True):
    """Cables between `a` and `b` (NICs, or switches with or without a port) that are not as stated.

    `stated` and `found` are how many there are. With kind `elsewhere`, the cable at `a` leads to `instead`, not to `b`.
    `by` is what found it: `paths` or `LLDP`.
    """

    a: str
    b: str
    kind: Kind
    stated: int
    found: int
    instead: str = ""
    by: str = "paths"

    def __str__(self) -> str:
        """What is wrong, and what to do."""
        where, check = f"{self.a} to {self.b} by {self.by}", "check the cables and the inventory"
        match self.kind:
            case Kind.MISSING:
                return f"{where}: the stated link is not found; is it up?"
            case Kind.UNEXPECTED:
                return f"{where}: a link that is not stated; add it to c4_fabric"
            case Kind.ELSEWHERE:
                return f"{self.a} by {self.by}: cabled to {self.instead}, stated is {self.b}; {check}"
            case Kind.FEWER:
                return f"{where}: {self.found} of {self.stated} stated parallel links are found; are the others up?"
            case Kind.MORE:
                return f"{where}: {self.found} parallel links, {self.stated} stated; {check}"


class NamedFabric(msgspec.Struct, frozen=True):
    """What an atlas shows of a stated graph: directed links between nodes by their stated names.

    `stated` are the stated cables that the atlas's paths should cross or do cross. `guessed` are the names of
    switches without NICs that were not asked.
    """

    links: tuple[Link, ...]
    stated: Cables
    guessed: frozenset[str]


def recognise(atlas: Atlas, graph: FabricGraph, names: Mapping[str, str] = MappingProxyType({})) -> NamedFabric:
    """Name the atlas's switches as the graph does; `names` are those of switches that were asked, by hop address."""
    known = {hop: name for hop, name in names.items() if name in graph.switches}
    links = infer(atlas, known)
    pairs = [pair for pair in atlas.pairs if atlas.pair_paths(*pair).source_ports]
    stated = expected(graph, pairs)
    certain = {nic for pair in pairs for nic in pair} | set(known.values())
    called = identify(links, stated, graph.switches, certain)
    named = tuple(sorted(Link(called[link.source], called[link.target], link.hop) for link in links))
    everywhere = Cables(ends(*nodes_of(cable)) for cable in graph.cables)
    leaves = {port.switch for port in graph.host_ports}
    return NamedFabric(
        named,
        stated | Cables({pair: everywhere[pair] for pair in crossed(named)}),
        frozenset({*graph.switches, *called.values()} - certain - leaves),
    )


def compare_paths(
    atlas: Atlas, graph: FabricGraph, names: Mapping[str, str] = MappingProxyType({})
) -> tuple[CableDifference, ...]:
    """How the cables that known paths cross differ from the stated ones; `names` as for `recognise`.

    A graph without links between switches is compared only where NICs are stated. Links between two switches whose
    names are guessed are not compared.
    """
    fabric = recognise(atlas, graph, names)
    found = crossed(fabric.links)
    if not graph.trunks:
        stated = {nodes_of(port)[0] for port in graph.host_ports}
        found = Cables({pair: count for pair, count in found.items() if not stated.isdisjoint(pair)})
    return compare(_without_guesses(fabric.stated, fabric), _without_guesses(found, fabric), "paths")


def _without_guesses(cables: Cables, fabric: NamedFabric) -> Cables:
    """The cables of which at least one end is certain."""
    return Cables({pair: count for pair, count in cables.items() if not fabric.guessed.issuperset(pair)})


def compare(stated: Cables, found: Cables, by: str) -> tuple[CableDifference, ...]:
    """The differences in order; a cable that is missing and one at the same node that is unexpected are one."""
    missing = {pair for pair in stated if not found[pair]}
    unexpected = {pair for pair in found if found[pair] and not stated[pair]}
    moved = dict(_moved(missing, unexpected))
    taken = {ends(stays, instead) for stays, _, instead in moved.values()}
    differences = []
    for a, b in sorted(stated.keys() | found.keys()):
        kind = _kind(stated[a, b], found[a, b])
        if (a, b) in moved:
            stays, stated_end, instead = moved[a, b]
            differences.append(CableDifference(stays, stated_end, Kind.ELSEWHERE, stated[a, b], 0, instead, by))
        elif kind and (a, b) not in taken:
            differences.append(CableDifference(a, b, kind, stated[a, b], found[a, b], by=by))
    return tuple(differences)


def _kind(stated: int, found: int) -> Kind | None:
    if stated == found:
        return None
    if not found:
        return Kind.MISSING
    if not stated:
        return Kind.UNEXPECTED
    return Kind.FEWER if found < stated else Kind.MORE


def _moved(missing: set[Ends], unexpected: set[Ends]) -> Iterator[tuple[Ends, tuple[str, str, str]]]:
    """Each missing cable that an unexpected one at the same node replaces: the node, the stated end, the found one."""
    left = set(unexpected)
    for pair in sorted(missing):
        for stays, gone in (pair, pair[::-1]):
            if other := next((other for other in sorted(left) if stays in other), None):
                left.discard(other)
                yield pair, (stays, gone, other[other[0] == stays])
                break
