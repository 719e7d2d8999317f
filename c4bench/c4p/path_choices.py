"""From the ends that a flow names to what it may choose between: a NIC's ways, or those of every port of a bond."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from c4bench.c4p.atlas import Atlas, PairPaths, Way
from c4bench.c4p.ecmp_groups import EcmpGroups
from c4bench.model.fabric import Path


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
