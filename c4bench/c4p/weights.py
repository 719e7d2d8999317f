"""How a connection's load is shared among its QPs: planned from the links' loads, corrected by completion times."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from c4bench.c4p.conditions import Array, Conditions
from c4bench.c4p.sparse_weights import fewest
from c4bench.errors import UsageError
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


def reweigh(
    weights: Sequence[float], completion_s: Sequence[float | None], calm: float = 0.05, least: float = 0.01
) -> tuple[float, ...]:
    """New weights for a connection's QPs, from how long each took for its share of an operation; they sum to 1.

    None where a QP did not finish: it is spared. A QP of weight 0 stays at 0 until it is given some. With rates as
    they were, all QPs would finish together after this one step. The weights stay as they are while the operation
    would become faster by less than the fraction `calm`. A slow QP keeps the share `least`, so that its recovery shows.

    Raises UsageError where the lists do not fit or a time is not positive, and when no QP has finished.
    """
    if len(weights) != len(completion_s) or any(time is not None and not time > 0 for time in completion_s):
        raise UsageError("give each QP's weight and its completion time in seconds, above zero, or None")
    total = sum(weights)
    pairs = [(weight / total if total else 0.0, time) for weight, time in zip(weights, completion_s, strict=True)]
    rates = [weight / time if time is not None else 0.0 for weight, time in pairs]
    if not any(rates):
        raise UsageError("no QP of the connection has finished; move it to other paths before sharing its load anew")
    carrying = [time for weight, time in pairs if weight]
    slowest = max((time for time in carrying if time is not None), default=0.0)
    if None not in carrying and slowest * sum(rates) <= 1 + calm:
        return tuple(weight for weight, _ in pairs)
    raised = [max(rate / sum(rates), least) if rate else 0.0 for rate in rates]
    return tuple(rate / sum(raised) for rate in raised)
