"""Flows on ways, with the load of every link kept current."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from c4bench.c4p.arrays import Array, IndexArray
from c4bench.c4p.knowledge.atlas import Way
from c4bench.c4p.placement.path_choices import EcmpGroups

_FIRST_SLOTS = 64
UNPLACED = -1


class OpenLinks(NamedTuple):
    """The closed links, and whether each fan has a way around them."""

    shut: frozenset[int]
    fans: list[bool]

    def admit(self, fan: int, common: Way) -> bool:
        """Whether a flow with these choices has a usable way."""
        return fan >= 0 and self.fans[fan] and self.shut.isdisjoint(common)


class LinkLoadTable:
    """Loads are bits/s times the link's weight; a link of infinite weight is closed and its load infinite.

    A flow has a slot, the index of all arrays of flows; `way[slot]` is `UNPLACED` until `put`. `members[link]` are the
    slots of the flows that take a link by choice; links that a flow cannot avoid only count.
    """

    def __init__(self, fans: EcmpGroups, weight: Array, background_bps: Array) -> None:
        self.fans = fans
        self.open_weight = np.concatenate([weight, [0.0, np.inf]])
        self.bps = np.concatenate([background_bps, [0.0, 0.0]])
        self.weight = np.where(np.isfinite(self.open_weight), self.open_weight, 0.0)
        self.load = np.where(np.isfinite(self.open_weight), self.bps * self.weight, np.inf)
        self.members: list[dict[int, None]] = [{} for _ in self.bps]
        self.fan: IndexArray = np.zeros(_FIRST_SLOTS, dtype=np.intp)
        self.way: IndexArray = np.full(_FIRST_SLOTS, UNPLACED, dtype=np.intp)
        self.demand: Array = np.zeros(_FIRST_SLOTS)
        # The greatest common divisor of all demands: what is moved from link to link comes in multiples of it.
        self.quantum = 0
        self._free: list[int] = []
        self._used = 0

    def seat(self, fans: Sequence[int], demands: Sequence[float], common: Sequence[Way]) -> IndexArray:
        """Slots for new flows, not placed yet; what they put on the links they cannot avoid counts."""
        slots = self._slots(len(fans))
        self.fan[slots], self.demand[slots], self.way[slots] = fans, demands, UNPLACED
        lengths = [len(links) for links in common]
        links = np.fromiter((link for way in common for link in way), dtype=np.intp, count=sum(lengths))
        self._load(links, np.repeat(demands, lengths))
        whole = np.unique(np.rint(np.asarray(demands, dtype=float)))
        self.quantum = int(np.gcd.reduce(whole.astype(np.int64), initial=self.quantum))
        return slots

    def ask(self, slot: int, common: Way, demand: float) -> None:
        """Have a placed flow ask for more or less than it did."""
        self._shift([*common, *self.links(slot)], demand - float(self.demand[slot]))
        self.demand[slot] = demand
        self.quantum = 1

    def lay(self, bps: Array) -> None:
        """Put more (or less, where negative) on the links, by what is no flow of the plan."""
        self._load(np.arange(len(bps)), bps)

    def unseat(self, slot: int, common: Way) -> None:
        """Forget a flow."""
        self.lift(slot)
        self._load(np.array(common, dtype=np.intp), -self.demand[slot])
        self._free.append(slot)

    def links(self, slot: int) -> list[int]:
        """The links that a placed flow has taken by choice."""
        found: list[int] = self.fans.table[self.fan[slot], self.way[slot]].tolist()
        return found

    def put(self, slot: int, way: int) -> None:
        """Place a flow that is not placed."""
        self.way[slot] = way
        links = self.links(slot)
        self._shift(links, self.demand[slot])
        for link in links:
            self.members[link][slot] = None

    def put_all(self, slots: IndexArray, ways: IndexArray) -> None:
        """Place many flows that are not placed."""
        self.way[slots] = ways
        links = self.fans.table[self.fan[slots], ways]
        self._load(links.ravel(), np.repeat(self.demand[slots], links.shape[1]))
        for slot, taken in zip(slots.tolist(), links.tolist(), strict=True):
            for link in taken:
                self.members[link][slot] = None

    def lift(self, slot: int) -> None:
        """Take a flow off its way."""
        if self.way[slot] == UNPLACED:
            return
        links = self.links(slot)
        self._shift(links, -self.demand[slot])
        for link in links:
            self.members[link].pop(slot, None)  # `floor` may come twice in a way
        self.way[slot] = UNPLACED

    def close(self, links: Iterable[int]) -> None:
        """Have no more flows put on these links; those that are there stay until lifted."""
        for link in links:
            self.weight[link], self.load[link] = 0.0, np.inf

    def reopen(self, links: Iterable[int]) -> None:
        """Links that were closed can be used again."""
        for link in links:
            if np.isfinite(self.open_weight[link]):
                self.weight[link] = self.open_weight[link]
                self.load[link] = self.bps[link] * self.weight[link]

    def shut(self) -> list[int]:
        """The links that are closed."""
        found: list[int] = np.flatnonzero(np.isinf(self.load[: self.fans.floor])).tolist()
        return found

    def openings(self) -> "OpenLinks":
        """Which flows have a way without a closed link, as things stand."""
        shut = frozenset(self.shut())
        if not shut:
            return OpenLinks(shut, [size > 0 for size in self.fans.sizes])
        worst = self.load[self.fans.table].max(axis=2, initial=0.0)
        return OpenLinks(shut, np.isfinite(worst.min(axis=1, initial=np.inf)).tolist())

    def snapshot(self, links: Iterable[int]) -> list[tuple[int, float, float]]:
        """What `restore` needs to set these links back to the bit; subtracting would let rounding errors pile up."""
        return [(link, float(self.bps[link]), float(self.load[link])) for link in links]

    def restore(self, saved: Iterable[tuple[int, float, float]]) -> None:
        """Set links back to what they were."""
        for link, bps, load in saved:
            self.bps[link], self.load[link] = bps, load

    def _shift(self, links: list[int], bps: float) -> None:
        for link in links:
            self.bps[link] += bps
            self.load[link] += bps * self.weight[link]

    def _load(self, links: IndexArray, bps: Array) -> None:
        np.add.at(self.bps, links, bps)
        np.add.at(self.load, links, bps * self.weight[links])

    def _slots(self, count: int) -> IndexArray:
        while len(self.way) < self._used + count:
            self._grow()
        reused = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = range(self._used, self._used + count - len(reused))
        self._used = fresh.stop
        return np.array([*reused, *fresh], dtype=np.intp)

    def _grow(self) -> None:
        more = len(self.way)
        self.fan = np.concatenate([self.fan, np.zeros(more, dtype=np.intp)])
        self.way = np.concatenate([self.way, np.full(more, UNPLACED, dtype=np.intp)])
        self.demand = np.concatenate([self.demand, np.zeros(more)])
