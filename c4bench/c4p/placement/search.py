"""Places new flows greedily, and relieves the most loaded links without overloading any other.

New flows are placed one after the other, then by single moves, and few flows from other orders too. Links are relieved
by local search with ejection chains (Glover, 1996). A flow moves off the link. Flows that no longer fit where it
arrives move on in turn, until every link of the chain is below the level of the link to relieve; otherwise the whole
chain is undone. On a Clos with equal flows these chains are the alternating paths by which Koenig's theorem balances a
bipartite graph.
"""

import heapq
from collections.abc import Iterable, Iterator

import numpy as np

from c4bench.c4p.conditions import Array, IndexArray
from c4bench.c4p.placement.link_load_table import LinkLoadTable

# Relative: a link has to become lighter by more than this, so that rounding errors cause no moves. A placement this
# close to the lower bound cannot be improved.
_SLACK = 1e-9
# Prevents division by zero capacity.
_NONZERO = 1e-300
# A link within this ratio of its set's mean is level already.
_NEAR = 1.001
# How many further moves a chain may cause; short chains are tried first, since they move fewest flows.
_DEPTHS = (0, 1, 2, 12)
# Moves tried for each flow that has to make room.
_BREADTH = 12
# Evaluations for one link; halved with each failure in a row, down to the least.
_PATIENCE = 400
_LEAST_PATIENCE = 6


def improve(loads: LinkLoadTable, movable: frozenset[int] | None, budget: int, gain: float = 0.0) -> int:
    """Relieve links from the most loaded down, until none can be or the budget is spent; return what is left of it.

    `budget` counts evaluations. Only `movable` flows (slots) move; None means all. Each success lowers the sorted link
    loads lexicographically, and makes one link lighter by more than the fraction `gain`.
    """
    target_ratio = 1 - max(gain, _SLACK)
    queue = [
        (-loads.load[link], link)
        for link in _improvable(loads, target_ratio)
        if _has_movable(loads.members[link], movable)
    ]
    heapq.heapify(queue)
    patience = _PATIENCE
    while queue and budget > 0:
        load, link = heapq.heappop(queue)
        if -load != loads.load[link] or _is_level(loads, link, target_ratio):
            continue
        allowed = min(budget, patience)
        chain = _Chain(loads, movable, -load * target_ratio, allowed)
        relieved = chain.relieve(link)
        budget -= allowed - chain.budget
        patience = _PATIENCE if relieved else max(patience // 2, _LEAST_PATIENCE)
        for changed in sorted(chain.touched) if relieved else ():
            heapq.heappush(queue, (-loads.load[changed], changed))
    return budget


def _has_movable(members: dict[int, None], movable: frozenset[int] | None) -> bool:
    return bool(members) if movable is None else not movable.isdisjoint(members)


def _improvable(loads: LinkLoadTable, target_ratio: float) -> list[int]:
    """The links that are not level by `_is_level`, computed for all links at once."""
    groups = loads.groups
    if not groups.parallel:
        return []
    links = np.concatenate(groups.parallel)
    starts = np.cumsum([0, *(len(links_of_set) for links_of_set in groups.parallel[:-1])])
    raised, capacity, bps = _with_quantum(loads, links)
    mean = np.add.reduceat(bps, starts) / np.maximum(np.add.reduceat(capacity, starts), _NONZERO)
    least = np.maximum(np.minimum.reduceat(raised, starts), mean * _NEAR)[groups.parallel_of[links]]
    load = loads.load[links]
    improvable: list[int] = links[(least < load * target_ratio) & np.isfinite(load)].tolist()
    return improvable


def _is_level(loads: LinkLoadTable, link: int, target_ratio: float) -> bool:
    """Whether relieving the link must load a parallel link as much, or the link is near its set's mean already.

    The total of parallel links is given, so one of them has to take over a multiple of the quantum.
    """
    links = loads.groups.parallel[loads.groups.parallel_of[link]]
    raised, capacity, bps = _with_quantum(loads, links)
    least = max(float(raised.min()), float(bps.sum() / max(capacity.sum(), _NONZERO)) * _NEAR)
    return least >= float(loads.load[link]) * target_ratio


def _with_quantum(loads: LinkLoadTable, links: IndexArray) -> tuple[Array, Array, Array]:
    """For each link: its load with a quantum more, its capacity and its bit/s; both 0 for closed links."""
    weight, load = loads.weight[links], loads.load[links]
    open_ = np.isfinite(load)
    capacity = np.divide(1.0, weight, out=np.zeros_like(weight), where=open_ & (weight > 0))
    return load + loads.quantum * weight, capacity, np.where(open_, loads.bps[links], 0.0)


class _Chain:
    """A search for a chain of moves after which every touched link is below `level`."""

    def __init__(self, loads: LinkLoadTable, movable: frozenset[int] | None, level: float, budget: int) -> None:
        self.budget = budget
        self._loads = loads
        self._movable = movable
        self._level = level
        self._moves: list[tuple[int, int, list[tuple[int, float, float]]]] = []
        self._moved: set[int] = set()

    @property
    def touched(self) -> set[int]:
        """The links whose load the chain has changed."""
        return {link for _, _, before in self._moves for link, _, _ in before}

    def relieve(self, link: int) -> bool:
        """Bring `link` below the level, by a short chain if there is one; on failure nothing has changed."""
        return any(self._clear(link, depth) for depth in _DEPTHS)

    def _clear(self, link: int, depth: int) -> bool:
        """Move flows off `link` until it is below the level."""
        mark = len(self._moves)
        while self._loads.load[link] >= self._level:
            if not any(self._move(slot, path, depth) for slot, path in self._candidate_moves(link, depth)):
                self._undo(mark)
                return False
        return True

    def _candidate_moves(self, link: int, depth: int) -> Iterator[tuple[int, int]]:
        """Moves of a flow off `link`: the best one that needs no further move, else those that exceed least."""
        loads = self._loads
        movable, moved = self._movable, self._moved
        movable_slots = [slot for slot in loads.members[link] if (not movable or slot in movable) and slot not in moved]
        if not movable_slots or self.budget <= 0:
            return
        slots = np.array(movable_slots, dtype=np.intp)
        self.budget -= 1
        after = self._loads_after(slots, link)
        paths = after.shape[1]
        peak = after.max(axis=2)
        best = int(peak.argmin())
        if peak.flat[best] < self._level:
            yield int(slots[best // paths]), best % paths
        elif depth:
            over = after - self._level
            excess = np.where(over >= 0, over + self._level, 0.0).sum(axis=2).ravel()
            for index in np.argsort(excess, kind="stable")[:_BREADTH].tolist():
                if np.isinf(excess[index]) or self.budget <= 0:
                    return
                yield int(slots[index // paths]), index % paths

    def _loads_after(self, slots: IndexArray, link: int) -> Array:
        """The load of each link of each path of each flow if the flow used it; infinite on paths over `link`."""
        loads = self._loads
        table = loads.groups.table[loads.group[slots]]
        current = table == loads.groups.table[loads.group[slots], loads.path[slots]][:, None, :]
        added = loads.demand[slots][:, None, None] * loads.weight[table]
        after: Array = loads.load[table] + np.where(current, 0.0, added)
        after[table == link] = np.inf
        return after

    def _move(self, slot: int, path: int, depth: int) -> bool:
        """Move the flow, then clear the links that are above the level because of it."""
        if self.budget <= 0:
            return False
        self.budget -= 1
        mark, loads = len(self._moves), self._loads
        old = int(loads.path[slot])
        left, entered = loads.links(slot), loads.groups.table[loads.group[slot], path].tolist()
        self._moves.append((slot, old, loads.snapshot({*left, *entered})))
        self._moved.add(slot)
        loads.unplace(slot)
        loads.place(slot, path)
        if all(loads.load[link] < self._level or (depth > 0 and self._clear(link, depth - 1)) for link in entered):
            return True
        self._undo(mark)
        return False

    def _undo(self, mark: int) -> None:
        while len(self._moves) > mark:
            slot, path, before = self._moves.pop()
            self._loads.unplace(slot)
            self._loads.place(slot, path)
            self._loads.restore(before)
            self._moved.discard(slot)


# Weight of a path's total load against its worst link: it only decides between equal worst links.
_TIE_BREAK = 1e-7
# Rounds over all flows in which single moves are tried; usually two are enough.
_ROUNDS = 8
# Loads are compared to so many decimals, as fractions of the worst, so that rounding errors cause no moves.
_DIGITS = 9
# Entries of the array that the lower bound sorts; beyond this a weaker bound is used.
_MAX_UNITS = 20_000


def place_greedily(loads: LinkLoadTable, slots: IndexArray) -> None:
    """Place flows that have a usable path, the largest first; equal flows are placed in order of `slots`.

    Each goes to the path whose worst link is least loaded with the flow on it.
    """
    for batch in _batches(loads, slots):
        group = int(loads.group[batch[0]])
        if len(batch) > 1 and not loads.groups.shares_links[group]:
            loads.place_all(batch, _best_for_all(loads, group, float(loads.demand[batch[0]]), len(batch)))
        else:
            _place_in_order(loads, batch.tolist())


def restart(loads: LinkLoadTable, slots: IndexArray, times: int, budget: int) -> None:
    """Place `slots` again in up to `times` other orders and keep the best placement, which may be the present one.

    `budget` limits `improve` in each order.
    """
    _move_singly(loads, slots.tolist())
    best, paths = _sorted_loads(loads), loads.path[slots]
    goal = lower_bound(loads) * (1 + _SLACK)
    for order in _orders(slots.tolist(), times):
        if best[0] <= goal:
            break
        for slot in order:
            loads.unplace(slot)
        _place_in_order(loads, order)
        improve(loads, frozenset(order), budget)
        if float(loads.load[np.isfinite(loads.load)].max()) <= best[0]:
            _move_singly(loads, order)
        if (levels := _sorted_loads(loads)) < best:
            best, paths = levels, loads.path[slots]
    for slot in slots.tolist():
        loads.unplace(slot)
    loads.place_all(slots, paths)


# Greedy placement


def _place_in_order(loads: LinkLoadTable, slots: Iterable[int]) -> None:
    for slot in slots:
        loads.place(slot, _best(loads, int(loads.group[slot]), float(loads.demand[slot])))


def _batches(loads: LinkLoadTable, slots: IndexArray) -> Iterator[IndexArray]:
    """The flows of one ECMP group and one demand at a time, larger demands first."""
    order = slots[np.lexsort((loads.group[slots], -loads.demand[slots]))]
    group, demand = loads.group[order], loads.demand[order]
    cuts = np.flatnonzero((np.diff(group) != 0) | (np.diff(demand) != 0)) + 1
    yield from np.split(order, cuts) if len(order) else ()


def _best(loads: LinkLoadTable, group: int, demand: float) -> int:
    """The path whose worst link is least loaded with the flow on it."""
    table = loads.groups.table[group]
    after = loads.load[table] + demand * loads.weight[table]
    return int((after.max(axis=1, initial=0.0) + _TIE_BREAK * after.sum(axis=1)).argmin())


def _best_for_all(loads: LinkLoadTable, group: int, demand: float, count: int) -> IndexArray:
    """Paths for `count` equal flows as if each took the best in turn; the group's paths must not share links."""
    table = loads.groups.table[group]
    number = np.arange(1, count + 1)
    after = loads.load[table] + (demand * number)[:, None, None] * loads.weight[table]
    # Row t is the load of each path's worst link with t + 1 of the flows; it rises down each column.
    level = after.max(axis=2, initial=0.0) + _TIE_BREAK * after.sum(axis=2)
    chosen = np.argsort(level, axis=None, kind="stable")[:count]
    paths: IndexArray = chosen % table.shape[0]
    return paths


# Single moves


def _move_singly(loads: LinkLoadTable, slots: Iterable[int]) -> None:
    """Move one flow at a time while that makes the sorted loads lexicographically lower.

    This finds moves that keep the worst load and lower a load below it, which ejection chains do not look for.
    """
    order = sorted(slots)
    for _ in range(_ROUNDS):
        # The sum calls `_move` for every flow, also after one has moved.
        if not sum(_move(loads, slot) for slot in order):
            return


def _move(loads: LinkLoadTable, slot: int) -> bool:
    """Move the flow to the path with the lowest sorted loads; return whether it moved."""
    current = int(loads.path[slot])
    levels = _sorted_loads_by_path(loads, slot)
    best = min(range(len(levels)), key=lambda path: (levels[path], path != current, path))
    if best == current or levels[best] >= levels[current]:
        return False
    loads.unplace(slot)
    loads.place(slot, best)
    return True


def _sorted_loads_by_path(loads: LinkLoadTable, slot: int) -> list[list[float]]:
    """For each path of the flow: the loads of all its paths' links if it were there, as fractions of the worst.

    The highest load comes first. Paths over a closed link have infinite loads.
    """
    table = loads.groups.table[loads.group[slot]]
    links, position = np.unique(table, return_inverse=True)
    position = position.reshape(table.shape)
    without = loads.load[links].copy()
    current = loads.path[slot]
    without[position[current]] -= loads.demand[slot] * loads.weight[table[current]]
    added: Array = loads.demand[slot] * loads.weight[table]
    after = np.tile(without, (len(table), 1))
    np.put_along_axis(after, position, without[position] + added, axis=1)
    finite = np.where(np.isfinite(without), after, 0.0)
    finite[np.isinf(without[position]).any(axis=1)] = np.inf
    worst = float(without[np.isfinite(without)].max(initial=0.0) + added.max(initial=0.0)) or 1.0
    levels: list[list[float]] = np.round(-np.sort(-finite / worst, axis=1), _DIGITS).tolist()
    return levels


# Restarts


def lower_bound(loads: LinkLoadTable) -> float:
    """A lower bound of the worst load of any placement: the total of each set of parallel links is given."""
    groups = loads.groups
    load = loads.load[: groups.pad_link]
    unavoidable = load[(groups.parallel_of[: groups.pad_link] < 0) & np.isfinite(load)]
    bounds = [_lower_bound_of(loads, links) for links in groups.parallel if groups.pad_link not in links]
    return max([float(unavoidable.max(initial=0.0)), *bounds])


def _lower_bound_of(loads: LinkLoadTable, links: IndexArray) -> float:
    """The lowest worst load of parallel links, if their flows could be divided into multiples of the quantum."""
    links = links[np.isfinite(loads.load[links])]
    if not len(links) or not loads.quantum:
        return 0.0
    movable_bps = np.array([sum(loads.demand[slot] for slot in loads.members[link]) for link in links.tolist()])
    weight, fixed_bps = loads.weight[links], loads.bps[links] - movable_bps
    units = round(float(movable_bps.sum()) / loads.quantum)
    if units * len(links) > _MAX_UNITS:
        return float(loads.bps[links].sum() / (1 / weight).sum())
    return max(float((fixed_bps * weight).max()), _level_of(fixed_bps, weight, loads.quantum, units))


def _level_of(fixed_bps: Array, weight: Array, quantum: int, units: int) -> float:
    """The worst load after adding `units` of `quantum` bit/s one by one, each to the link where it adds least."""
    number = np.arange(1, units + 1)
    levels = (fixed_bps[:, None] + number[None, :] * quantum) * weight[:, None]
    return float(np.partition(levels, units - 1, axis=None)[units - 1]) if units else 0.0


def _sorted_loads(loads: LinkLoadTable) -> list[float]:
    """The loads of the open links, the highest first."""
    load = loads.load[: loads.groups.pad_link]
    levels: list[float] = np.sort(load[np.isfinite(load)])[::-1].tolist()
    return levels


def _orders(slots: list[int], times: int) -> Iterator[list[int]]:
    for number in range(times):
        # Knuth's multiplicative hash; each odd factor gives another order, the same on every machine.
        factor = 2654435761 * (2 * number + 1)
        yield sorted(slots, key=lambda slot: ((slot + 1) * factor) % 2**32)
