"""Single moves that make the sorted loads lexicographically lower, where a chain that lowers the top has none."""

from collections.abc import Iterable

import numpy as np

from c4bench.c4p.conditions import Array
from c4bench.c4p.ecmp_groups import Links
from c4bench.c4p.link_load_table import LinkLoadTable

_ROUNDS = 8
_DIGITS = 9


def polish(board: LinkLoadTable, slots: Iterable[int]) -> None:
    """Move flows one at a time as long as that helps: also sideways at the top, for the sake of the links below."""
    order = sorted(slots)
    for _ in range(_ROUNDS):
        # Counted, so that every flow has its turn in every round.
        if not sum(_move(board, slot) for slot in order):
            return


def _move(board: LinkLoadTable, slot: int) -> bool:
    """Put the flow on the way with the lowest sorted loads, if that is lower than where it is."""
    here = int(board.way[slot])
    levels = _levels(board, slot)
    best = min(range(len(levels)), key=lambda way: (levels[way], way != here, way))
    if best == here or levels[best] >= levels[here]:
        return False
    board.lift(slot)
    board.put(slot, best)
    return True


def _levels(board: LinkLoadTable, slot: int) -> list[list[float]]:
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


def _added(board: LinkLoadTable, slot: int, table: Links) -> Array:
    added: Array = board.demand[slot] * board.weight[table]
    return added
