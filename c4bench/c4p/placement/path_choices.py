"""What a flow may choose between: the paths of a NIC, or of every port of a bond, as arrays of ECMP groups."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from c4bench.c4p.arrays import IndexArray
from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Atlas, PairPaths, Way
from c4bench.model.fabric import Path


class EcmpGroups:
    """`table[fan, way]` are the links of a way; `sizes[fan]` is how many ways there are.

    The table is rectangular: short ways are filled up with the link `floor`, which is never loaded, and fans of few
    ways with ways over the link `wall`, which is never usable. `shares_links[fan]` says whether two ways of the fan
    have a link in common.

    `groups` are the sets of links that can stand in for each other, `group_of[link]` each link's set (-1: none). A flow
    crosses one link of each column of its fan, whichever way it goes. So what a group carries in all is given, and
    only its distribution is the planner's to choose.
    """

    def __init__(self, links: int) -> None:
        self.floor, self.wall = links, links + 1
        self.sizes: list[int] = []
        self.shares_links: list[bool] = []
        self.table: IndexArray = np.full((0, 0, 0), self.wall, dtype=np.intp)
        self.groups: list[IndexArray] = []
        self.group_of: IndexArray = np.full(links + 2, -1, dtype=np.intp)
        self._together: DisjointSets[int] = DisjointSets()
        self._columns: set[tuple[int, ...]] = set()

    def extend(self, fans: Sequence[Sequence[Way]]) -> None:
        """Number further fans, in order."""
        columns = [list(zip(*ways, strict=True)) for ways in fans]
        self.sizes += [len(ways) for ways in fans]
        self.shares_links += [any(len(set(column)) < len(column) for column in of_fan) for of_fan in columns]
        self._tabulate(fans)
        if new := {column for of_fan in columns for column in of_fan} - self._columns:
            self._columns |= new
            self._regroup(new)

    def _tabulate(self, fans: Sequence[Sequence[Way]]) -> None:
        known, depth, width = self.table.shape
        depth = max([depth, *(len(ways) for ways in fans)])
        width = max([width, *(len(ways[0]) for ways in fans if ways)])
        table: IndexArray = np.full((known + len(fans), depth, width), self.wall, dtype=np.intp)
        table[:, :, self.table.shape[2] :] = self.floor
        table[:known, : self.table.shape[1], : self.table.shape[2]] = self.table
        for fan, ways in enumerate(fans, start=known):
            filled = [(*way, *(self.floor,) * (width - len(way))) for way in ways]
            table[fan, : len(ways)] = filled if width else np.empty((len(ways), 0))
            table[fan, len(ways) :] = self.wall
        self.table = table

    def _regroup(self, columns: Iterable[tuple[int, ...]]) -> None:
        for column in columns:
            self._together.join(column)
        links = np.unique([link for column in self._columns for link in column])
        roots, index = np.unique([self._together.root(link) for link in links.tolist()], return_inverse=True)
        self.group_of[links] = index
        order = np.argsort(index, kind="stable")
        self.groups = np.split(links[order], np.cumsum(np.bincount(index, minlength=len(roots)))[:-1])


class PortPair(msgspec.Struct, frozen=True, gc=False):
    """A pair of ports that a flow may use; its ways are numbered from `first`."""

    source: str
    destination: str
    routes: PairPaths
    first: int = 0


class PathChoice(msgspec.Struct, frozen=True, gc=False):
    """What flows between two ends may choose between; `fan` is -1 where nothing is known.

    `common` are the links that every way crosses.
    """

    fan: int
    common: Way
    lanes: tuple[PortPair, ...]

    def at(self, way: int) -> tuple[PortPair, int]:
        """The lane of a way, and its number there."""
        lane = next(lane for lane in reversed(self.lanes) if lane.first <= way)
        return lane, way - lane.first


class PathChoices:
    """The options of every pair of ends, numbered in `fans` as they are asked for."""

    def __init__(self, atlas: Atlas, fans: EcmpGroups, bonds: Mapping[str, tuple[str, ...]]) -> None:
        self._atlas, self._fans, self._bonds = atlas, fans, bonds
        self._bonded: dict[tuple[str, str, bool], PathChoice] = {}
        fans.extend([fan.ways for fan in atlas.fans])

    def path(self, option: PathChoice, way: int) -> tuple[str, str, Path]:
        """The ports that a way uses, and its path."""
        lane, index = (option.lanes[0], way) if len(option.lanes) == 1 else option.at(way)
        return lane.source, lane.destination, self._atlas.path(lane.routes, index)

    def way(self, option: PathChoice, source: str, destination: str, hops: tuple[str, ...]) -> int | None:
        """The number of the way between these ports over these hops; None where it is not among them."""
        for lane in option.lanes:
            if (lane.source, lane.destination) == (source, destination):
                ways = range(len(lane.routes.source_ports))
                found = (way for way in ways if self._atlas.path(lane.routes, way).hops == hops)
                return next((lane.first + way for way in found), None)
        return None

    def options(self, pairs: Iterable[tuple[str, str]], crossing: bool) -> list[PathChoice]:
        """The option of each pair of ends; between bonds in one plane, port i to port i, unless `crossing`."""
        if not self._bonds:
            return [self._plain(*pair) for pair in pairs]
        keys = [(*pair, crossing) for pair in pairs]
        new = [key for key in dict.fromkeys(keys) if key not in self._bonded and not self._bonds.keys().isdisjoint(key)]
        self._number({key: self._lanes(*key) for key in new})
        return [self._bonded[key] if key in self._bonded else self._plain(*key[:2]) for key in keys]

    def _plain(self, source: str, destination: str) -> PathChoice:
        routes = self._atlas.routes(source, destination)
        return PathChoice(routes.fan.number, routes.common, (PortPair(source, destination, routes),))

    def _lanes(self, source: str, destination: str, crossing: bool) -> Sequence[PortPair]:
        here, there = self._bonds.get(source, (source,)), self._bonds.get(destination, (destination,))
        pairs = [(port, other) for port in here for other in there]
        if not crossing and len(here) == len(there):
            pairs = list(zip(here, there, strict=True))
        lanes: list[PortPair] = []
        first = 0
        for pair in pairs:
            routes = self._atlas.routes(*pair)
            if routes.source_ports:
                lanes.append(PortPair(pair[0], pair[1], routes, first))
                first += len(routes.source_ports)
        return lanes

    def _number(self, bonded: Mapping[tuple[str, str, bool], Sequence[PortPair]]) -> None:
        numbers = range(len(self._fans.sizes), len(self._fans.sizes) + len(bonded))
        self._fans.extend([_ways(lanes, self._fans.floor) for lanes in bonded.values()])
        for number, (key, lanes) in zip(numbers, bonded.items(), strict=True):
            self._bonded[key] = PathChoice(number if lanes else -1, (), tuple(lanes))


def _ways(lanes: Sequence[PortPair], floor: int) -> list[Way]:
    """All links of all ways: between different ports none is common by nature. Shorter ways end on `floor`."""
    ways = [lane.routes.hops(way) for lane in lanes for way in range(len(lane.routes.source_ports))]
    longest = max((len(way) for way in ways), default=0)
    return [(*way, *(floor,) * (longest - len(way))) for way in ways]
