"""A first place for every flow: largest first, those of the same choice together, where the worst link is least."""

from collections.abc import Iterable, Iterator

import numpy as np

from c4bench.c4p.ecmp_groups import Links
from c4bench.c4p.link_load_table import LinkLoadTable

# Of ways whose worst link is the same, the one that is less loaded in all.
_RATHER = 1e-7


def place(board: LinkLoadTable, slots: Links) -> None:
    """Place flows that have a usable way and are not placed yet; equal flows in order of their slots in `slots`."""
    for batch in _batches(board, slots):
        fan = int(board.fan[batch[0]])
        if len(batch) > 1 and not board.fans.shares_links[fan]:
            board.put_all(batch, _fill(board, fan, float(board.demand[batch[0]]), len(batch)))
        else:
            place_in_order(board, batch.tolist())


def place_in_order(board: LinkLoadTable, slots: Iterable[int]) -> None:
    """Place flows that have a usable way and are not placed yet, one by one."""
    for slot in slots:
        board.put(slot, _best(board, int(board.fan[slot]), float(board.demand[slot])))


def _batches(board: LinkLoadTable, slots: Links) -> Iterator[Links]:
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


def _fill(board: LinkLoadTable, fan: int, demand: float, count: int) -> Links:
    """Ways for `count` equal flows of a fan whose ways share no link, as if each went to the best in turn."""
    table = board.fans.table[fan]
    turn = np.arange(1, count + 1)
    after = board.load[table] + (demand * turn)[:, None, None] * board.weight[table]
    # Row t is what the worst link of each way would carry with t + 1 of the flows: rising down each column.
    level = after.max(axis=2, initial=0.0) + _RATHER * after.sum(axis=2)
    chosen = np.argsort(level, axis=None, kind="stable")[:count]
    ways: Links = chosen % table.shape[0]
    return ways
