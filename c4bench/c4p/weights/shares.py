"""How a connection's load is divided among its QPs: weights for given paths, over few QPs, and QPs without load."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from c4bench.c4p.arrays import Array, IndexArray
from c4bench.c4p.conditions import Conditions
from c4bench.model.fabric import Flow, Path
from c4bench.model.qp_address import connection_key

_ROUNDS = 100
_NEAR = 0.003
_SHARPNESS = (8.0, 32.0, 128.0, 512.0, 2048.0)
_LEAST_STEP = 1e-5
# A QP for less than this of a connection is not worth its messages.
_FAINTEST = 0.003
# Shares below e to the minus this are nothing, and must be able to grow again.
_FAINT = 25.0


def shares(flows: Iterable[Flow], paths: Mapping[str, Path], conditions: Conditions | None = None) -> dict[str, float]:
    """Each QP's share of its connection, by flow id, such that the worst link's load is least for these paths.

    A connection's demand is the sum of its flows' demands, whether they have a path or not; those without get 0, and a
    connection without any is left out. Within 1 % of the optimum of linear programming, and over few QPs
    (`sparse.fewest`).
    """
    known = sorted((flow for flow in flows if flow.id in paths), key=lambda flow: flow.id)
    if not known:
        return {}
    problem = _Problem(list(flows), known, paths, conditions or Conditions())
    found = problem.solve()
    return dict(zip((flow.id for flow in known), found.tolist(), strict=True))


class _Problem:
    """Exponentiated gradient on a soft maximum of the loads; its gradient is a dual solution: when to stop."""

    def __init__(
        self, every: Sequence[Flow], flows: Sequence[Flow], paths: Mapping[str, Path], conditions: Conditions
    ) -> None:
        hops = sorted({hop for flow in flows for hop in paths[flow.id].hops})
        number = {hop: index for index, hop in enumerate(hops)}
        longest = max(len(paths[flow.id].hops) for flow in flows)
        filled = [[number[hop] for hop in paths[flow.id].hops] for flow in flows]
        # Rows of equal length, filled up with a link of weight 0.
        self._links = np.array([row + [len(hops)] * (longest - len(row)) for row in filled], dtype=np.intp)
        weight = conditions.weights(hops)
        self._weight: Array = np.append(np.where(np.isfinite(weight), weight, 0.0), 0.0)
        self._background: Array = np.append(conditions.background(hops), 0.0) * self._weight
        names = {name: index for index, name in enumerate(dict.fromkeys(map(connection_key, flows)))}
        self._of: npt.NDArray[np.intp] = np.array([names[connection_key(flow)] for flow in flows], dtype=np.intp)
        self._demand: Array = np.zeros(len(names))
        for flow in every:
            if (index := names.get(connection_key(flow))) is not None:
                self._demand[index] += flow.demand_bps * conditions.shares.get(flow.job, 1.0)
        self._scale = float(self._loads(self._normal(np.zeros(len(self._of)))).max()) or 1.0

    def solve(self) -> Array:
        """The shares, summing to 1 in each connection."""
        spread = self._spread()
        few = fewest(spread, self._of, self._links, self._demand, len(self._weight) - 1)
        few[few < _FAINTEST] = 0.0
        few /= np.bincount(self._of, few)[self._of]
        return few if self._loads(few).max() <= self._loads(spread).max() * (1 + _NEAR) else spread

    def _spread(self) -> Array:
        """Shares over all QPs for which the worst link's load is least."""
        log = np.zeros(len(self._of))
        best, least, bound = self._normal(log), np.inf, 0.0
        for sharpness in _SHARPNESS:
            step = 1.0
            for _ in range(_ROUNDS):
                load = self._loads(self._normal(log))
                worst = float(load.max())
                if worst < least:
                    best, least = self._normal(log), worst
                cost, price = self._gradient(load, worst, sharpness)
                bound = max(bound, self._bound(cost, price))
                if least <= bound * (1 + _NEAR):
                    return best
                log, step = self._step(log, cost, sharpness, step)
                if step < _LEAST_STEP:
                    break
        return best

    def _step(self, log: Array, cost: Array, sharpness: float, step: float) -> tuple[Array, float]:
        """One step downhill, and the next one's length: longer while it goes down, else shorter from the same place."""
        over = cost - self._cheapest(cost)[self._of]
        there = np.maximum(log - step * over / (float(over.max()) or 1.0), -_FAINT)
        if self._soft_maximum(there, sharpness) < self._soft_maximum(log, sharpness):
            return there, step * 1.5
        return log, step / 2

    def _soft_maximum(self, log: Array, sharpness: float) -> float:
        load = self._loads(self._normal(log))
        worst = float(load.max())
        scale = self._scale
        return worst + scale / sharpness * float(np.log(np.exp(sharpness / scale * (load - worst)).sum()))

    def _normal(self, log: Array) -> Array:
        """Positive numbers that sum to 1 in each connection."""
        top = np.full(len(self._demand), -np.inf)
        np.maximum.at(top, self._of, log)
        raised = np.exp(log - top[self._of])
        total: Array = raised / np.bincount(self._of, raised)[self._of]
        return total

    def _loads(self, share: Array) -> Array:
        bps = np.repeat((share * self._demand[self._of])[:, None], self._links.shape[1], axis=1)
        carried = np.bincount(self._links.ravel(), bps.ravel(), minlength=len(self._weight))
        load: Array = self._background + carried * self._weight
        return load

    def _gradient(self, load: Array, worst: float, sharpness: float) -> tuple[Array, Array]:
        """What a bit/s more on each QP costs, and the links' prices, which sum to 1."""
        price = np.exp(sharpness / self._scale * (load - worst))
        price /= price.sum()
        cost: Array = (price * self._weight)[self._links].sum(axis=1)
        return cost, price

    def _cheapest(self, cost: Array) -> Array:
        least = np.full(len(self._demand), np.inf)
        np.minimum.at(least, self._of, cost)
        return least

    def _bound(self, cost: Array, price: Array) -> float:
        """No sharing has a lower worst load than this: what all would pay on their cheapest QP (LP duality)."""
        return float((self._demand * self._cheapest(cost)).sum() + (price * self._background).sum())


# Each column is solved against all that were kept; beyond this that costs more than it spares.
_MOST = 512
_NOTHING = 1e-9


def fewest(share: Array, of: IndexArray, links: IndexArray, demand: Array, count: int) -> Array:
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


def _columns(of: IndexArray, links: IndexArray, demand: Array, count: int) -> Array:
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


class QpShare(NamedTuple):
    """Whose path a flow takes, which may be its own, and the share of its connection's load that it carries there."""

    leader: str
    share: float


def assign_idle_qps(shares: Mapping[str, float], flows: Iterable[Flow]) -> dict[str, QpShare]:
    """The part of each flow by id: those without a share take the path of one of their connection's that has one.

    All who take a path carry the same; the crews are such that the largest part that any has to carry is least. Flows
    without an entry in `shares`, and connections without a share, are left out.
    """
    found: dict[str, QpShare] = {}
    for members in _by_connection(shares, flows).values():
        sizes = Counter(flow for flow in members if shares[flow] > 0)
        leaders = dict(zip(sizes, sizes, strict=True))
        for flow in members if sizes else ():
            if flow not in leaders:
                leaders[flow] = max(sizes, key=lambda one: shares[one] / sizes[one])
                sizes[leaders[flow]] += 1
        found |= {flow: QpShare(leader, shares[leader] / sizes[leader]) for flow, leader in leaders.items()}
    return found


def _by_connection(shares: Mapping[str, float], flows: Iterable[Flow]) -> dict[tuple[str, str, str], list[str]]:
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for flow in sorted(flows, key=lambda flow: flow.id):
        if flow.id in shares:
            found[connection_key(flow)].append(flow.id)
    return found
