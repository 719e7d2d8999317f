"""Which links the data of a pair of NICs cross for sure: what all shortest ways between its hosts have in common.

Where several ways are as short, such as by either of two spines, the links in which they differ are left out.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from c4bench.attribution.weigh import Cell


class Cabled(NamedTuple):
    """A cable between two nodes, with the port at either end; empty where that is not stated."""

    a: str
    a_port: str
    b: str
    b_port: str


class _Hop(NamedTuple):
    """A cable in one direction, with its ports at both ends."""

    to: str
    name: str
    port: str
    port_there: str


class Fabric:
    """Nodes and cables; nothing passes through `hosts`."""

    def __init__(self, cables: Iterable[Cabled], hosts: Iterable[str]) -> None:
        self._hosts = frozenset(hosts)
        self._hops: dict[str, list[_Hop]] = {}
        for one in cables:
            a, b = _end(one.a, one.a_port), _end(one.b, one.b_port)
            self._hops.setdefault(one.a, []).append(_Hop(one.b, f"{a} > {b}", one.a_port, one.b_port))
            self._hops.setdefault(one.b, []).append(_Hop(one.a, f"{b} > {a}", one.b_port, one.a_port))
        self._left: dict[str, dict[str, int]] = {}

    def crossed(self, cells: Iterable[Cell]) -> dict[Cell, tuple[str, ...]]:
        """The links of each cell, in order; none for a pair whose hosts are not both in the fabric."""
        return {cell: tuple(self._links(cell[0], cell[1])) for cell in cells}

    def _links(self, source: str, destination: str) -> list[str]:
        """The hops that are alone at their distance from the source."""
        (begin, nic), (end, nic_there) = _split(source), _split(destination)
        left = self._distances(end)
        found: list[str] = []
        here = {begin} if begin in left else set()
        while here and end not in here:
            hops = [hop for node in here for hop in self._hops[node] if left.get(hop.to, -1) == left[node] - 1]
            hops = _of_port(hops, nic, there=False) if here == {begin} else hops
            hops = _of_port(hops, nic_there, there=True) if {hop.to for hop in hops} == {end} else hops
            found += [hops[0].name] if len(hops) == 1 else []
            here = {hop.to for hop in hops}
        return found

    def _distances(self, end: str) -> dict[str, int]:
        """How many links each node is from a host."""
        if end not in self._left:
            far, queue = {end: 0} if end in self._hops else {}, deque([end])
            while queue:
                here = queue.popleft()
                passes = here == end or here not in self._hosts
                for hop in self._hops.get(here, ()) if passes else ():
                    if hop.to not in far:
                        far[hop.to] = far[here] + 1
                        queue.append(hop.to)
            self._left[end] = far
        return self._left[end]


def _of_port(hops: Sequence[_Hop], nic: str, *, there: bool) -> list[_Hop]:
    """Those of a NIC, if the cables state its name; else all."""
    mine = [hop for hop in hops if nic and (hop.port_there if there else hop.port) == nic]
    return mine or list(hops)


def _end(node: str, port: str) -> str:
    return f"{node}/{port}" if port else node


def _split(end: str) -> tuple[str, str]:
    """Host and NIC of a pair's end."""
    host, _, nic = end.partition("/")
    return host, nic
