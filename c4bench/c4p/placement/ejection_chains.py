"""Ejection chains: make the most loaded links lighter, moving as many flows as it takes and worsening none as loaded.

A flow moves off the link; where it lands, flows that no longer fit move on in turn, until everything lies below the
level of the link that was to be relieved, or the whole chain is undone. On a Clos with equal flows these chains are
the alternating paths by which Koenig's theorem balances a bipartite graph.
"""

import heapq
from collections.abc import Iterator

import numpy as np

from c4bench.c4p.arrays import Array, IndexArray
from c4bench.c4p.placement.link_load_table import LinkLoadTable

_SLACK = 1e-9
_TINY = 1e-300
_NEAR = 1.001
_DEPTHS = (0, 1, 2, 12)
_BREADTH = 12
_PATIENCE = 400
_LEAST_PATIENCE = 6


def improve(board: LinkLoadTable, movable: frozenset[int] | None, budget: int, gain: float = 0.0) -> int:
    """Relieve links from the most loaded down, until none can be or `budget` looks have been spent; returns the rest.

    Only `movable` flows move, all with None. Each success lowers the sorted vector of link loads lexicographically, and
    makes one link lighter by more than the fraction `gain`. Failures in a row are given less and less.
    """
    easing = 1 - max(gain, _SLACK)
    queue = [(-board.load[link], link) for link in _hopeful(board, easing) if _any(board.members[link], movable)]
    heapq.heapify(queue)
    patience = _PATIENCE
    while queue and budget > 0:
        load, link = heapq.heappop(queue)
        if -load != board.load[link] or _hopeless(board, link, easing):
            continue
        allowed = min(budget, patience)
        chain = _Chain(board, movable, -load * easing, allowed)
        relieved = chain.relieve(link)
        budget -= allowed - chain.budget
        patience = _PATIENCE if relieved else max(patience // 2, _LEAST_PATIENCE)
        for changed in sorted(chain.touched) if relieved else ():
            heapq.heappush(queue, (-board.load[changed], changed))
    return budget


def _any(members: dict[int, None], movable: frozenset[int] | None) -> bool:
    return bool(members) if movable is None else not movable.isdisjoint(members)


def _hopeful(board: LinkLoadTable, easing: float) -> list[int]:
    """The links that are not hopeless, all at once."""
    fans = board.fans
    if not fans.groups:
        return []
    links = np.concatenate(fans.groups)
    starts = np.cumsum([0, *(len(group) for group in fans.groups[:-1])])
    lifted, inverse, bps = _lifted(board, links)
    mean = np.add.reduceat(bps, starts) / np.maximum(np.add.reduceat(inverse, starts), _TINY)
    least = np.maximum(np.minimum.reduceat(lifted, starts), mean * _NEAR)[fans.group_of[links]]
    load = board.load[links]
    found: list[int] = links[(least < load * easing) & np.isfinite(load)].tolist()
    return found


def _hopeless(board: LinkLoadTable, link: int, easing: float) -> bool:
    """Whether whatever leaves the link must lift another that can stand in for it as high, or it is level already.

    What the group of links carries in all is given, so one of them has to gain, by a multiple of the quantum.
    """
    group = board.fans.groups[board.fans.group_of[link]]
    lifted, inverse, bps = _lifted(board, group)
    least = max(float(lifted.min()), float(bps.sum() / max(inverse.sum(), _TINY)) * _NEAR)
    return least >= float(board.load[link]) * easing


def _lifted(board: LinkLoadTable, links: IndexArray) -> tuple[Array, Array, Array]:
    """Of each link: its load with a quantum more, its capacity, and what it carries; nothing of closed links."""
    weight, load = board.weight[links], board.load[links]
    open_ = np.isfinite(load)
    inverse = np.divide(1.0, weight, out=np.zeros_like(weight), where=open_ & (weight > 0))
    return load + board.quantum * weight, inverse, np.where(open_, board.bps[links], 0.0)


class _Chain:
    """One search for a chain of moves after which every link it touched is below `level`."""

    def __init__(self, board: LinkLoadTable, movable: frozenset[int] | None, level: float, budget: int) -> None:
        self.budget = budget
        self._board = board
        self._movable = movable
        self._level = level
        self._moves: list[tuple[int, int, list[tuple[int, float, float]]]] = []
        self._moved: set[int] = set()

    @property
    def touched(self) -> set[int]:
        """The links whose load the chain has changed."""
        return {link for _, _, before in self._moves for link, _, _ in before}

    def relieve(self, link: int) -> bool:
        """Bring `link` below the level, by short chains if there are any; without one nothing has changed."""
        return any(self._clear(link, depth) for depth in _DEPTHS)

    def _clear(self, link: int, depth: int) -> bool:
        """Move flows off `link` until it is below the level."""
        mark = len(self._moves)
        while self._board.load[link] >= self._level:
            if not any(self._relocate(slot, way, depth) for slot, way in self._offers(link, depth)):
                self._undo(mark)
                return False
        return True

    def _offers(self, link: int, depth: int) -> Iterator[tuple[int, int]]:
        """Moves that take a flow off `link`: the best that pushes nothing further, or else those that push least."""
        board = self._board
        movable, moved = self._movable, self._moved
        able = [slot for slot in board.members[link] if (not movable or slot in movable) and slot not in moved]
        if not able or self.budget <= 0:
            return
        slots = np.array(able, dtype=np.intp)
        self.budget -= 1
        after = self._after(slots, link)
        ways = after.shape[1]
        peak = after.max(axis=2)
        best = int(peak.argmin())
        if peak.flat[best] < self._level:
            yield int(slots[best // ways]), best % ways
        elif depth:
            over = after - self._level
            excess = np.where(over >= 0, over + self._level, 0.0).sum(axis=2).ravel()
            for index in np.argsort(excess, kind="stable")[:_BREADTH].tolist():
                if np.isinf(excess[index]) or self.budget <= 0:
                    return
                yield int(slots[index // ways]), index % ways

    def _after(self, slots: IndexArray, link: int) -> Array:
        """The load of each link of each way of each flow if the flow took it; infinite on ways over `link`."""
        board = self._board
        table = board.fans.table[board.fan[slots]]
        here = table == board.fans.table[board.fan[slots], board.way[slots]][:, None, :]
        added = board.demand[slots][:, None, None] * board.weight[table]
        after: Array = board.load[table] + np.where(here, 0.0, added)
        after[table == link] = np.inf
        return after

    def _relocate(self, slot: int, way: int, depth: int) -> bool:
        """Move the flow and clear what it pushes over the level."""
        if self.budget <= 0:
            return False
        self.budget -= 1
        mark, board = len(self._moves), self._board
        old = int(board.way[slot])
        left, taken = board.links(slot), board.fans.table[board.fan[slot], way].tolist()
        self._moves.append((slot, old, board.snapshot({*left, *taken})))
        self._moved.add(slot)
        board.lift(slot)
        board.put(slot, way)
        if all(board.load[link] < self._level or (depth > 0 and self._clear(link, depth - 1)) for link in taken):
            return True
        self._undo(mark)
        return False

    def _undo(self, mark: int) -> None:
        while len(self._moves) > mark:
            slot, way, before = self._moves.pop()
            self._board.lift(slot)
            self._board.put(slot, way)
            self._board.restore(before)
            self._moved.discard(slot)
