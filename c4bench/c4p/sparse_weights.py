"""The same loads on every link from fewer QPs: messages that take turns on few QPs wait less for one another."""

import numpy as np

from c4bench.c4p.conditions import Array
from c4bench.c4p.ecmp_groups import Links

# Each column is solved against all that were kept; beyond this that costs more than it spares.
_MOST = 512
_NOTHING = 1e-9


def fewest(share: Array, of: Links, links: Links, demand: Array, count: int) -> Array:
    """Shares with the same sum in each connection and the same load on each of `count` links, most of them 0.

    QP i belongs to connection `of[i]` and crosses `links[i]`. What these QPs put on links is a point of a polytope; by
    Caratheodory's theorem as many QPs as there are independent connections and links suffice. Where every connection
    fits on one link that is one QP each (Birkhoff, von Neumann). Many QPs are left as they are.
    """
    if len(share) > _MOST:
        return share
    found = share.copy()
    columns = _columns(of, links, demand, count)
    kept: list[int] = []
    for qp in np.argsort(-share, kind="stable").tolist():
        if found[qp] <= _NOTHING:
            continue
        kept.append(qp)
        _reduce(found, columns, kept)
    found[found <= _NOTHING] = 0.0
    return found


def _columns(of: Links, links: Links, demand: Array, count: int) -> Array:
    """What a share of 1 of each QP adds to its connection's sum, and to each link."""
    groups = len(demand)
    columns = np.zeros((groups + count, len(of)))
    columns[of, np.arange(len(of))] = 1.0
    scale = demand / (demand.max() or 1.0)
    for qp, crossed in enumerate(links.tolist()):
        for link in crossed:
            if link < count:
                columns[groups + link, qp] += scale[of[qp]]
    return columns


def _reduce(found: Array, columns: Array, kept: list[int]) -> None:
    """Shift load from a QP that the others can stand in for, until one of them is left with nothing."""
    *others, last = kept
    if not others:
        return
    weights, *_ = np.linalg.lstsq(columns[:, others], columns[:, last], rcond=None)
    if np.abs(columns[:, others] @ weights - columns[:, last]).max() > _NOTHING:
        return
    # Taking `step` from the last one adds `weights` times that to the others; either way is open.
    steps = [found[last]] + [found[qp] / -weight for qp, weight in zip(others, weights, strict=True) if weight < -1e-7]
    step = min(steps)
    found[others] += step * weights
    found[last] -= step
    np.clip(found, 0.0, None, out=found)
    kept[:] = [qp for qp in kept if found[qp] > _NOTHING]
