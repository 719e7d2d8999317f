"""Places new flows: greedily, then by single moves, and for few flows from other orders."""

from collections.abc import Iterable, Iterator

import numpy as np

from c4bench.c4p.conditions import Array, IndexArray
from c4bench.c4p.placement.ejection_chains import improve
from c4bench.c4p.placement.link_load_table import LinkLoadTable

# Weight of a path's total load against its worst link: it only decides between equal worst links.
_TIE_BREAK = 1e-7
# Rounds over all flows in which single moves are tried; usually two are enough.
_ROUNDS = 8
# Loads are compared to so many decimals, as fractions of the worst, so that rounding errors cause no moves.
_DIGITS = 9
# Relative: a placement this close to the lower bound cannot be improved.
_SLACK = 1e-9
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

    `budget` limits `ejection_chains.improve` in each order.
    """
    _move_singly(loads, slots.tolist())
    best, paths = _sorted_loads(loads), loads.path[slots]
    goal = _lower_bound(loads) * (1 + _SLACK)
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


def _lower_bound(loads: LinkLoadTable) -> float:
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
