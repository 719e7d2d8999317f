"""Other beginnings: where the search ends above what is possible at best, begin again from other orders."""

from collections.abc import Iterator

import numpy as np

from c4bench.c4p import greedy, search
from c4bench.c4p.conditions import Array
from c4bench.c4p.ecmp_groups import Links
from c4bench.c4p.link_load_table import LinkLoadTable
from c4bench.c4p.polish import polish

_SLACK = 1e-9
_MOST_UNITS = 20_000


def restart(board: LinkLoadTable, slots: Links, times: int, budget: int) -> None:
    """Place `slots` again from up to `times` random orders, and keep the best plan, which may be the present one."""
    polish(board, slots.tolist())
    best, ways = _levels(board), board.way[slots]
    goal = bound(board) * (1 + _SLACK)
    for order in _orders(slots.tolist(), times):
        if best[0] <= goal:
            break
        for slot in order:
            board.lift(slot)
        greedy.place_in_order(board, order)
        search.improve(board, frozenset(order), budget)
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


def _least(board: LinkLoadTable, group: Links) -> float:
    """The lowest level below which a group's flows fit, in multiples of the quantum beside what cannot move."""
    group = group[np.isfinite(board.load[group])]
    if not len(group) or not board.quantum:
        return 0.0
    carried = np.array([sum(board.demand[slot] for slot in board.members[link]) for link in group.tolist()])
    weight, rest = board.weight[group], board.bps[group] - carried
    units = round(float(carried.sum()) / board.quantum)
    if units * len(group) > _MOST_UNITS:
        return float(board.bps[group].sum() / (1 / weight).sum())
    return max(float((rest * weight).max()), _fill(rest, weight, board.quantum, units))


def _fill(rest: Array, weight: Array, quantum: int, units: int) -> float:
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


def _put(board: LinkLoadTable, slots: Links, ways: Links) -> None:
    for slot in slots.tolist():
        board.lift(slot)
    board.put_all(slots, ways)
