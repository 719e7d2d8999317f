"""Places new flows: greedily, then by single moves, and for few flows from other orders."""

from collections.abc import Iterable, Iterator

import numpy as np

from c4bench.c4p.arrays import Array, IndexArray
from c4bench.c4p.placement.ejection_chains import improve
from c4bench.c4p.placement.link_load_table import LinkLoadTable

_SLACK = 1e-9
_MOST_UNITS = 20_000


def restart(board: LinkLoadTable, slots: IndexArray, times: int, budget: int) -> None:
    """Place `slots` again from up to `times` random orders, and keep the best plan, which may be the present one."""
    polish(board, slots.tolist())
    best, ways = _levels(board), board.way[slots]
    goal = bound(board) * (1 + _SLACK)
    for order in _orders(slots.tolist(), times):
        if best[0] <= goal:
            break
        for slot in order:
            board.lift(slot)
        place_in_order(board, order)
        improve(board, frozenset(order), budget)
        if float(board.load[np.isfinite(board.load)].max()) <= best[0]:
            polish(board, order)
        if (levels := _levels(board)) < best:
            best, ways = levels, board.way[slots]
    _put(board, slots, ways)


def bound(board: LinkLoadTable) -> float:
    """No placement has a lower worst load: what each group of links carries in all has to fit below it."""
    load = board.load[: board.fans.floor]
    given = load[(board.fans.group_of[: board.fans.floor] < 0) & np.isfinite(load)]
    floors = [_least(board, group) for group in board.fans.groups if board.fans.floor not in group]
    return max([float(given.max(initial=0.0)), *floors])


def _least(board: LinkLoadTable, group: IndexArray) -> float:
    """The lowest level below which a group's flows fit, in multiples of the quantum beside what cannot move."""
    group = group[np.isfinite(board.load[group])]
    if not len(group) or not board.quantum:
        return 0.0
    carried = np.array([sum(board.demand[slot] for slot in board.members[link]) for link in group.tolist()])
    weight, rest = board.weight[group], board.bps[group] - carried
    units = round(float(carried.sum()) / board.quantum)
    if units * len(group) > _MOST_UNITS:
        return float(board.bps[group].sum() / (1 / weight).sum())
    return max(float((rest * weight).max()), _fill_level(rest, weight, board.quantum, units))


def _fill_level(rest: Array, weight: Array, quantum: int, units: int) -> float:
    """The level after giving out units one by one, each where it lifts the least: the cost of the last one."""
    turn = np.arange(1, units + 1)
    levels = (rest[:, None] + turn[None, :] * quantum) * weight[:, None]
    return float(np.partition(levels, units - 1, axis=None)[units - 1]) if units else 0.0


def _levels(board: LinkLoadTable) -> list[float]:
    """The loads of the open links, the most loaded first."""
    load = board.load[: board.fans.floor]
    found: list[float] = np.sort(load[np.isfinite(load)])[::-1].tolist()
    return found


def _orders(slots: list[int], times: int) -> Iterator[list[int]]:
    for turn in range(times):
        # Multiplicative hashing scatters neighbours, each odd factor in another way, and the same way everywhere.
        factor = 2654435761 * (2 * turn + 1)
        yield sorted(slots, key=lambda slot: ((slot + 1) * factor) % 2**32)


def _put(board: LinkLoadTable, slots: IndexArray, ways: IndexArray) -> None:
    for slot in slots.tolist():
        board.lift(slot)
    board.put_all(slots, ways)


# Of ways whose worst link is the same, the one that is less loaded in all.
_RATHER = 1e-7


def place(board: LinkLoadTable, slots: IndexArray) -> None:
    """Place flows that have a usable way and are not placed yet; equal flows in order of their slots in `slots`."""
    for batch in _batches(board, slots):
        fan = int(board.fan[batch[0]])
        if len(batch) > 1 and not board.fans.shares_links[fan]:
            board.put_all(batch, _fill_group(board, fan, float(board.demand[batch[0]]), len(batch)))
        else:
            place_in_order(board, batch.tolist())


def place_in_order(board: LinkLoadTable, slots: Iterable[int]) -> None:
    """Place flows that have a usable way and are not placed yet, one by one."""
    for slot in slots:
        board.put(slot, _best(board, int(board.fan[slot]), float(board.demand[slot])))


def _batches(board: LinkLoadTable, slots: IndexArray) -> Iterator[IndexArray]:
    """The flows of one fan and one demand at a time, larger demands first."""
    order = slots[np.lexsort((board.fan[slots], -board.demand[slots]))]
    fan, demand = board.fan[order], board.demand[order]
    cuts = np.flatnonzero((np.diff(fan) != 0) | (np.diff(demand) != 0)) + 1
    yield from np.split(order, cuts) if len(order) else ()


def _best(board: LinkLoadTable, fan: int, demand: float) -> int:
    """The way whose worst link is least loaded with the flow on it."""
    table = board.fans.table[fan]
    after = board.load[table] + demand * board.weight[table]
    return int((after.max(axis=1, initial=0.0) + _RATHER * after.sum(axis=1)).argmin())


def _fill_group(board: LinkLoadTable, fan: int, demand: float, count: int) -> IndexArray:
    """Ways for `count` equal flows of a fan whose ways share no link, as if each went to the best in turn."""
    table = board.fans.table[fan]
    turn = np.arange(1, count + 1)
    after = board.load[table] + (demand * turn)[:, None, None] * board.weight[table]
    # Row t is what the worst link of each way would carry with t + 1 of the flows: rising down each column.
    level = after.max(axis=2, initial=0.0) + _RATHER * after.sum(axis=2)
    chosen = np.argsort(level, axis=None, kind="stable")[:count]
    ways: IndexArray = chosen % table.shape[0]
    return ways


_ROUNDS = 8
_DIGITS = 9


def polish(board: LinkLoadTable, slots: Iterable[int]) -> None:
    """Move flows one at a time as long as that helps: also sideways at the top, for the sake of the links below."""
    order = sorted(slots)
    for _ in range(_ROUNDS):
        # Counted, so that every flow has its turn in every round.
        if not sum(_move_once(board, slot) for slot in order):
            return


def _move_once(board: LinkLoadTable, slot: int) -> bool:
    """Put the flow on the way with the lowest sorted loads, if that is lower than where it is."""
    here = int(board.way[slot])
    levels = _levels_by_path(board, slot)
    best = min(range(len(levels)), key=lambda way: (levels[way], way != here, way))
    if best == here or levels[best] >= levels[here]:
        return False
    board.lift(slot)
    board.put(slot, best)
    return True


def _levels_by_path(board: LinkLoadTable, slot: int) -> list[list[float]]:
    """By way: the loads of all links of all the flow's ways if it were there, highest first, as shares of the worst."""
    table = board.fans.table[board.fan[slot]]
    links, place = np.unique(table, return_inverse=True)
    place = place.reshape(table.shape)
    bare = board.load[links].copy()
    bare[place[board.way[slot]]] -= board.demand[slot] * board.weight[table[board.way[slot]]]
    after = np.tile(bare, (len(table), 1))
    np.put_along_axis(after, place, bare[place] + _added(board, slot, table), axis=1)
    finite = np.where(np.isfinite(bare), after, 0.0)
    finite[np.isinf(bare[place]).any(axis=1)] = np.inf
    worst = float(bare[np.isfinite(bare)].max(initial=0.0) + _added(board, slot, table).max(initial=0.0)) or 1.0
    found: list[list[float]] = np.round(-np.sort(-finite / worst, axis=1), _DIGITS).tolist()
    return found


def _added(board: LinkLoadTable, slot: int, table: IndexArray) -> Array:
    added: Array = board.demand[slot] * board.weight[table]
    return added
