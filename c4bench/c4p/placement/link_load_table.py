"""Placed flows, with the load of every link kept current."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from c4bench.c4p.conditions import Array, IndexArray
from c4bench.c4p.knowledge.atlas import LinkPath
from c4bench.c4p.placement.path_choices import EcmpGroupTable

# The arrays of flows begin with room for this many and double when they are full.
_FIRST_SLOTS = 64
# The path of a flow that is not placed.
UNPLACED = -1


class OpenLinks(NamedTuple):
    """The closed links, and whether each ECMP group has a path that avoids them."""

    closed: frozenset[int]
    groups: list[bool]

    def has_path(self, group: int, common: LinkPath) -> bool:
        """Whether a flow that chooses from `group` and crosses `common` has a usable path."""
        return group >= 0 and self.groups[group] and self.closed.isdisjoint(common)


class LinkLoadTable:
    """The load of each link is its offered bit/s times its weight. A closed link has an infinite load.

    Arrays of links have one entry for each hop of the atlas, then the pad link and the blocked link. Arrays of flows
    are indexed by a flow's slot: `group[slot]` is its ECMP group, `path[slot]` its path there, or `UNPLACED`.
    `members[link]` are the slots of flows that cross a link by choice; links that a flow cannot avoid only count it.
    """

    def __init__(self, groups: EcmpGroupTable, weight: Array, background_bps: Array) -> None:
        self.groups = groups
        self.open_weight = np.concatenate([weight, [0.0, np.inf]])
        self.bps = np.concatenate([background_bps, [0.0, 0.0]])
        self.weight = np.where(np.isfinite(self.open_weight), self.open_weight, 0.0)
        self.load = np.where(np.isfinite(self.open_weight), self.bps * self.weight, np.inf)
        self.members: list[dict[int, None]] = [{} for _ in self.bps]
        self.group: IndexArray = np.zeros(_FIRST_SLOTS, dtype=np.intp)
        self.path: IndexArray = np.full(_FIRST_SLOTS, UNPLACED, dtype=np.intp)
        self.demand: Array = np.zeros(_FIRST_SLOTS)
        # The greatest common divisor of all demands, bit/s: moves between links are multiples of it.
        self.quantum = 0
        self._free: list[int] = []
        self._used = 0

    def add(self, groups: Sequence[int], demands: Sequence[float], common: Sequence[LinkPath]) -> IndexArray:
        """Add flows that are not placed yet and return their slots; `demands` (bit/s) count on the `common` links."""
        slots = self._allocate(len(groups))
        self.group[slots], self.demand[slots], self.path[slots] = groups, demands, UNPLACED
        lengths = [len(links) for links in common]
        links = np.fromiter((link for path in common for link in path), dtype=np.intp, count=sum(lengths))
        self._add_bps_array(links, np.repeat(demands, lengths))
        whole = np.unique(np.rint(np.asarray(demands, dtype=float)))
        self.quantum = int(np.gcd.reduce(whole.astype(np.int64), initial=self.quantum))
        return slots

    def set_demand(self, slot: int, common: LinkPath, demand: float) -> None:
        """Change the demand of a placed flow, bit/s."""
        self._add_bps([*common, *self.links(slot)], demand - float(self.demand[slot]))
        self.demand[slot] = demand
        self.quantum = 1

    def add_background(self, bps: Array) -> None:
        """Add traffic that is no flow of the plan, bit/s by link; negative values remove it."""
        self._add_bps_array(np.arange(len(bps)), bps)

    def remove(self, slot: int, common: LinkPath) -> None:
        """Remove a flow and free its slot."""
        self.unplace(slot)
        self._add_bps_array(np.array(common, dtype=np.intp), -self.demand[slot])
        self._free.append(slot)

    def links(self, slot: int) -> list[int]:
        """The links that a placed flow crosses by choice."""
        links: list[int] = self.groups.table[self.group[slot], self.path[slot]].tolist()
        return links

    def place(self, slot: int, path: int) -> None:
        """Place a flow that is not placed."""
        self.path[slot] = path
        links = self.links(slot)
        self._add_bps(links, self.demand[slot])
        for link in links:
            self.members[link][slot] = None

    def place_all(self, slots: IndexArray, paths: IndexArray) -> None:
        """Place many flows that are not placed."""
        self.path[slots] = paths
        table = self.groups.table[self.group[slots], paths]
        self._add_bps_array(table.ravel(), np.repeat(self.demand[slots], table.shape[1]))
        for slot, links in zip(slots.tolist(), table.tolist(), strict=True):
            for link in links:
                self.members[link][slot] = None

    def unplace(self, slot: int) -> None:
        """Remove a flow from its path; it keeps its slot."""
        if self.path[slot] == UNPLACED:
            return
        links = self.links(slot)
        self._add_bps(links, -self.demand[slot])
        for link in links:
            self.members[link].pop(slot, None)  # a path may have the pad link twice
        self.path[slot] = UNPLACED

    def close(self, links: Iterable[int]) -> None:
        """Let no more flows be placed on these links; flows that are there stay until they are unplaced."""
        for link in links:
            self.weight[link], self.load[link] = 0.0, np.inf

    def reopen(self, links: Iterable[int]) -> None:
        """Let closed links be used again."""
        for link in links:
            if np.isfinite(self.open_weight[link]):
                self.weight[link] = self.open_weight[link]
                self.load[link] = self.bps[link] * self.weight[link]

    def closed(self) -> list[int]:
        """The links that are closed."""
        links: list[int] = np.flatnonzero(np.isinf(self.load[: self.groups.pad_link])).tolist()
        return links

    def open_links(self) -> OpenLinks:
        """Which groups have a path without a closed link now."""
        closed = frozenset(self.closed())
        if not closed:
            return OpenLinks(closed, [size > 0 for size in self.groups.sizes])
        worst = self.load[self.groups.table].max(axis=2, initial=0.0)
        return OpenLinks(closed, np.isfinite(worst.min(axis=1, initial=np.inf)).tolist())

    def snapshot(self, links: Iterable[int]) -> list[tuple[int, float, float]]:
        """What `restore` needs to set these links back exactly; subtracting would accumulate rounding errors."""
        return [(link, float(self.bps[link]), float(self.load[link])) for link in links]

    def restore(self, saved: Iterable[tuple[int, float, float]]) -> None:
        """Set links back to a snapshot."""
        for link, bps, load in saved:
            self.bps[link], self.load[link] = bps, load

    def _add_bps(self, links: list[int], bps: float) -> None:
        for link in links:
            self.bps[link] += bps
            self.load[link] += bps * self.weight[link]

    def _add_bps_array(self, links: IndexArray, bps: Array) -> None:
        np.add.at(self.bps, links, bps)
        np.add.at(self.load, links, bps * self.weight[links])

    def _allocate(self, count: int) -> IndexArray:
        while len(self.path) < self._used + count:
            self._grow()
        reused = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = range(self._used, self._used + count - len(reused))
        self._used = fresh.stop
        return np.array([*reused, *fresh], dtype=np.intp)

    def _grow(self) -> None:
        more = len(self.path)
        self.group = np.concatenate([self.group, np.zeros(more, dtype=np.intp)])
        self.path = np.concatenate([self.path, np.full(more, UNPLACED, dtype=np.intp)])
        self.demand = np.concatenate([self.demand, np.zeros(more)])
