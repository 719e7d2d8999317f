"""What a flow may choose between: the paths of a NIC, or of every port of a bond, as arrays of ECMP groups."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from c4bench.c4p.conditions import Conditions, IndexArray
from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Atlas, LinkPath, PairPaths
from c4bench.model.fabric import Path


class EcmpGroupTable:
    """The links of every path of every ECMP group: `table[group, path]`; `sizes[group]` is its number of paths.

    The table is rectangular. Short paths are filled up with `pad_link`, which never carries load; groups of few paths
    are filled up with paths over `blocked_link`, which is never usable. `shares_links[group]` says whether two paths of
    the group have a link in common.

    `parallel` are the sets of links that can replace each other; `parallel_of[link]` is each link's set (-1: none).
    A flow crosses one link of each column of its group, whichever path it takes. So the total of a set is given, and
    only its distribution is the planner's choice.
    """

    def __init__(self, links: int) -> None:
        self.pad_link, self.blocked_link = links, links + 1
        self.sizes: list[int] = []
        self.shares_links: list[bool] = []
        self.table: IndexArray = np.full((0, 0, 0), self.blocked_link, dtype=np.intp)
        self.parallel: list[IndexArray] = []
        self.parallel_of: IndexArray = np.full(links + 2, -1, dtype=np.intp)
        self._sets: DisjointSets[int] = DisjointSets()
        self._columns: set[tuple[int, ...]] = set()

    def extend(self, groups: Sequence[Sequence[LinkPath]]) -> None:
        """Append groups in order; each is the links of its paths, all of one length."""
        columns = [list(zip(*paths, strict=True)) for paths in groups]
        self.sizes += [len(paths) for paths in groups]
        self.shares_links += [any(len(set(column)) < len(column) for column in of_group) for of_group in columns]
        self._append_rows(groups)
        if new := {column for of_group in columns for column in of_group} - self._columns:
            self._columns |= new
            self._join_parallel_links(new)

    def _append_rows(self, groups: Sequence[Sequence[LinkPath]]) -> None:
        known, depth, width = self.table.shape
        depth = max([depth, *(len(paths) for paths in groups)])
        width = max([width, *(len(paths[0]) for paths in groups if paths)])
        table: IndexArray = np.full((known + len(groups), depth, width), self.blocked_link, dtype=np.intp)
        table[:, :, self.table.shape[2] :] = self.pad_link
        table[:known, : self.table.shape[1], : self.table.shape[2]] = self.table
        for group, paths in enumerate(groups, start=known):
            filled = [(*path, *(self.pad_link,) * (width - len(path))) for path in paths]
            table[group, : len(paths)] = filled if width else np.empty((len(paths), 0))
            table[group, len(paths) :] = self.blocked_link
        self.table = table

    def _join_parallel_links(self, columns: Iterable[tuple[int, ...]]) -> None:
        for column in columns:
            self._sets.join(column)
        links = np.unique([link for column in self._columns for link in column])
        roots, index = np.unique([self._sets.root(link) for link in links.tolist()], return_inverse=True)
        self.parallel_of[links] = index
        order = np.argsort(index, kind="stable")
        self.parallel = np.split(links[order], np.cumsum(np.bincount(index, minlength=len(roots)))[:-1])


class PortPair(msgspec.Struct, frozen=True, gc=False):
    """Two ports that a flow may use, and which of the paths between them; these are numbered from `first` on."""

    source: str
    destination: str
    paths: PairPaths
    offered: Sequence[int]
    first: int = 0


class PathChoice(msgspec.Struct, frozen=True, gc=False):
    """The paths that flows between two ends choose between; `group` is -1 if none is known.

    `common` are the links that every path crosses.
    """

    group: int
    common: LinkPath
    port_pairs: tuple[PortPair, ...]

    def find(self, index: int) -> tuple[PortPair, int]:
        """The port pair of a path, and the path's number there."""
        port_pair = next(port_pair for port_pair in reversed(self.port_pairs) if port_pair.first <= index)
        return port_pair, port_pair.offered[index - port_pair.first]


class PathChoices:
    """The path choice of every pair of ends; those of bonds are appended to `groups` when they are first asked for."""

    def __init__(self, atlas: Atlas, groups: EcmpGroupTable, conditions: Conditions) -> None:
        self._atlas, self._groups, self._conditions = atlas, groups, conditions
        self._bonded: dict[tuple[str, str, bool], PathChoice] = {}
        groups.extend([group.paths for group in atlas.groups])

    def path(self, choice: PathChoice, index: int) -> tuple[str, str, Path]:
        """The two ports that a path connects, and the path itself."""
        port_pair, number = choice.find(index)
        return port_pair.source, port_pair.destination, self._atlas.path(port_pair.paths, number)

    def index_of(self, choice: PathChoice, source: str, destination: str, hops: tuple[str, ...]) -> int | None:
        """The number of the path between these ports over these hops; None if the choice does not have it."""
        for port_pair in choice.port_pairs:
            if (port_pair.source, port_pair.destination) == (source, destination):
                numbered = enumerate(port_pair.offered, start=port_pair.first)
                same = (number for number, path in numbered if self._atlas.path(port_pair.paths, path).hops == hops)
                return next(same, None)
        return None

    def between(self, pairs: Iterable[tuple[str, str]], crossing: bool) -> list[PathChoice]:
        """The path choice of each pair of ends; only paths within a plane, unless `crossing`.

        Between bonds port i connects to port i.
        """
        if not self._conditions.bonds and not self._conditions.planes:
            return [self._of_nics(*pair) for pair in pairs]
        keys = [(*pair, crossing) for pair in pairs]
        new = [key for key in dict.fromkeys(keys) if key not in self._bonded and self._restricted(*key)]
        self._append_bonded({key: self._port_pairs(*key) for key in new})
        return [self._bonded[key] if key in self._bonded else self._of_nics(*key[:2]) for key in keys]

    def _restricted(self, source: str, destination: str, crossing: bool) -> bool:
        """Whether these ends need a choice of their own: of a bond's ports, or of some of the paths."""
        if not self._conditions.bonds.keys().isdisjoint((source, destination)):
            return True
        paths = self._atlas.pair_paths(source, destination)
        return not crossing and len(self._within_planes(paths)) < len(paths.source_ports)

    def _within_planes(self, paths: PairPaths) -> list[int]:
        """The numbers of those of a pair's paths that do not lead from one plane to another."""
        hops, numbers = self._atlas.hops, range(len(paths.source_ports))
        ends = [(links[0], links[-1]) for links in map(paths.hops, numbers)]
        return [
            number for number, (first, last) in enumerate(ends) if not self._conditions.crosses(hops[first], hops[last])
        ]

    def _of_nics(self, source: str, destination: str) -> PathChoice:
        paths = self._atlas.pair_paths(source, destination)
        offered = range(len(paths.source_ports))
        return PathChoice(paths.group.number, paths.common, (PortPair(source, destination, paths, offered),))

    def _port_pairs(self, source: str, destination: str, crossing: bool) -> Sequence[PortPair]:
        bonds = self._conditions.bonds
        sources, destinations = bonds.get(source, (source,)), bonds.get(destination, (destination,))
        pairs = [(port, remote) for port in sources for remote in destinations]
        if not crossing and len(sources) == len(destinations):
            pairs = list(zip(sources, destinations, strict=True))
        port_pairs: list[PortPair] = []
        first = 0
        for pair in pairs:
            paths = self._atlas.pair_paths(*pair)
            if offered := range(len(paths.source_ports)) if crossing else self._within_planes(paths):
                port_pairs.append(PortPair(*pair, paths, offered, first))
                first += len(offered)
        return port_pairs

    def _append_bonded(self, bonded: Mapping[tuple[str, str, bool], Sequence[PortPair]]) -> None:
        numbers = range(len(self._groups.sizes), len(self._groups.sizes) + len(bonded))
        self._groups.extend([_padded_paths(port_pairs, self._groups.pad_link) for port_pairs in bonded.values()])
        for number, (key, port_pairs) in zip(numbers, bonded.items(), strict=True):
            self._bonded[key] = PathChoice(number if port_pairs else -1, (), tuple(port_pairs))


def _padded_paths(port_pairs: Sequence[PortPair], pad_link: int) -> list[LinkPath]:
    """The links of all offered paths of all port pairs, short paths filled up."""
    paths = [pair.paths.hops(number) for pair in port_pairs for number in pair.offered]
    longest = max((len(path) for path in paths), default=0)
    return [(*path, *(pad_link,) * (longest - len(path))) for path in paths]
