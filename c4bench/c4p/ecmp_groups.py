"""The fans of a fabric as arrays, and which links can stand in for each other."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from c4bench.c4p.atlas import Way
from c4bench.c4p.disjoint_sets import DisjointSets

Links = npt.NDArray[np.intp]


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
        self.table: Links = np.full((0, 0, 0), self.wall, dtype=np.intp)
        self.groups: list[Links] = []
        self.group_of: Links = np.full(links + 2, -1, dtype=np.intp)
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
        table: Links = np.full((known + len(fans), depth, width), self.wall, dtype=np.intp)
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
