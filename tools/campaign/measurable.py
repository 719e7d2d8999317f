"""Which components of a fabric the master can tell apart, derived from the graph alone.

The master may send transfers between any two NICs, by any path of equal cost, and packets that expire at a switch,
which answers. It moves no cable and, in the campaign, reads no switch counters. Two components that the same
measurements meet are one to it, however long it measures.

A component is described by the elements that it takes with it: `tx:NIC`, `rx:NIC`, `to:ADDRESS` (one direction of a
link, by the address of its far end) and `pair:SOURCE>DESTINATION`.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from functools import cached_property
from ipaddress import ip_address
from itertools import permutations

from c4bench.record.artefacts import Fabric, FabricLink

Elements = frozenset[str]
# The path's elements by position: what fails at the same position answers, or does not, as one.
_Path = tuple[Elements, ...]


class Measurable:
    """The measurements that a fabric allows: `met` tells which of them a component meets."""

    def __init__(self, fabric: Fabric) -> None:
        self._links = fabric.links
        self.nics = {host.name: host.nics for host in fabric.hosts}
        self._leaving: dict[str, list[FabricLink]] = defaultdict(list)
        for link in fabric.links:
            self._leaving[link.source].append(link)

    def met(self, elements: Elements) -> frozenset[int]:
        """The transfers that cross any of these elements in the direction of their data."""
        return frozenset(number for element in elements for number, _ in self._crossing.get(element, ()))

    def first_met(self, elements: Elements) -> frozenset[tuple[int, int]]:
        """Of each path, at which position it first meets any of these elements, in either direction.

        A packet that expires at a switch needs the way there and the way back, so the positions before it answer.
        """
        first: dict[int, int] = {}
        for element in self._both_ways(elements):
            for number, position in self._crossing.get(element, ()):
                first[number] = min(position, first.get(number, position))
        return frozenset(first.items())

    def link(self, address: str) -> Elements:
        """The direction of a link that leads to an address."""
        return frozenset({f"to:{address}"})

    def cable(self, address: str) -> Elements:
        """Both directions of the link with this address at one end."""
        back = self._back.get(address)
        return self.link(address) | (self.link(back) if back else frozenset())

    def switch(self, name: str) -> Elements:
        """All links of a switch, in both directions."""
        return frozenset(f"to:{link.hop}" for link in self._links if name in (link.source, link.target))

    def switch_at(self, address: str) -> str:
        """The switch with this address; "" if there is none."""
        return next((link.target for link in self._links if link.hop == address and link.target not in self._ends), "")

    def leaving(self, switch: str, addresses: Iterable[str]) -> Elements:
        """The direction out of a switch, of the link that has these addresses."""
        wanted = set(addresses)
        return frozenset(f"to:{link.hop}" for link in self._leaving[switch] if link.hop in wanted)

    @cached_property
    def _ends(self) -> frozenset[str]:
        return frozenset(nic for nics in self.nics.values() for nic in nics)

    @cached_property
    def _back(self) -> dict[str, str]:
        """The address at the near end of each link. Parallel links are numbered alike in both directions."""
        between: dict[tuple[str, str], list[str]] = defaultdict(list)
        for link in sorted(self._links, key=lambda link: ip_address(link.hop)):
            between[link.source, link.target].append(link.hop)
        return {
            hop: back
            for (source, target), hops in between.items()
            for hop, back in zip(hops, between.get((target, source), ()), strict=False)
        }

    def _both_ways(self, elements: Elements) -> set[str]:
        found = set(elements)
        for element in elements:
            kind, _, name = element.partition(":")
            if kind == "to":
                found |= self.cable(name)
            elif kind in {"tx", "rx"}:
                found |= {f"tx:{name}", f"rx:{name}"}
        return found

    @cached_property
    def _crossing(self) -> dict[str, list[tuple[int, int]]]:
        """The paths that each element is on, and at which position."""
        crossing: dict[str, list[tuple[int, int]]] = defaultdict(list)
        number = 0
        for source, destination in permutations(sorted(self._ends), 2):
            for links in self._shortest(source, destination):
                for position, elements in enumerate(_positions(source, destination, links)):
                    for element in elements:
                        crossing[element].append((number, position))
                number += 1
        return crossing

    def _shortest(self, source: str, destination: str) -> list[tuple[FabricLink, ...]]:
        """All shortest paths between two NICs; NICs forward nothing."""
        away = self._away(destination)
        paths: list[tuple[FabricLink, ...]] = []
        open_paths: deque[tuple[str, tuple[FabricLink, ...]]] = deque([(source, ())])
        while open_paths:
            here, links = open_paths.popleft()
            if here == destination:
                paths.append(links)
                continue
            nearer = away.get(here, 0) - 1
            open_paths.extend(
                (link.target, (*links, link))
                for link in self._leaving[here]
                if away.get(link.target, -1) == nearer >= 0
            )
        return paths

    def _away(self, destination: str) -> dict[str, int]:
        """The distance of everything from a NIC, in links."""
        found = {destination: 0}
        queue = deque([destination])
        while queue:
            here = queue.popleft()
            for before in self._entering[here]:
                if before not in found:
                    found[before] = found[here] + 1
                    if before not in self._ends:
                        queue.append(before)
        return found

    @cached_property
    def _entering(self) -> dict[str, list[str]]:
        entering: dict[str, list[str]] = defaultdict(list)
        for link in self._links:
            entering[link.target].append(link.source)
        return entering


def _positions(source: str, destination: str, links: tuple[FabricLink, ...]) -> _Path:
    """What a path crosses. A NIC is at the same position as its link: no switch lies between that could answer."""
    steps = [{f"to:{link.hop}"} for link in links]
    steps[0] |= {f"tx:{source}", f"pair:{source}>{destination}"}
    steps[-1] |= {f"rx:{destination}"}
    return tuple(frozenset(step) for step in steps)
