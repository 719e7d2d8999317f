"""How a connection's load is divided among its QPs (WCMP, EuroSys 2014): over few QPs, which idle QPs then help."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from c4bench.c4p.conditions import Array, Conditions, IndexArray
from c4bench.model.fabric import USUAL_QPS, Flow, Path
from c4bench.model.qp_address import connection_key

# Gradient steps for each sharpness of the soft maximum; more gain nothing measurable.
_ROUNDS = 100
# A worst load within this fraction of the lower bound is good enough.
_NEAR = 0.003
# The worst loads that are made lowest, one after the other; a fabric has few links that are worst.
_LEVELS = 4
# The soft maximum approaches the maximum as it becomes sharper.
_SHARPNESS = (8.0, 32.0, 128.0, 512.0, 2048.0)
# Steps of the logarithm of a share; below this the search has converged.
_LEAST_STEP = 1e-5
# A smaller share of a connection is not worth a QP's messages.
_LEAST_SHARE = 0.003
# Logarithms of shares end at minus this, so that a vanishing share can grow again.
_MAX_LOG = 25.0
# Each QP's column is solved against all that were kept; for more QPs that costs more than few QPs save.
MAX_DIVIDED = 512
# Shares, and errors of least squares, below these are rounding errors.
_ZERO = 1e-9
_ZERO_WEIGHT = 1e-7


def shares(
    flows: Iterable[Flow], paths: Mapping[str, Path], conditions: Conditions | None = None, *, fill: bool = False
) -> dict[str, float]:
    """Each QP's share of its connection, by flow id, so that the worst link load is lowest for these paths.

    The shares of a connection sum to 1. Its demand is the sum of its flows' demands, also of those without a path;
    these are left out. The worst load is within 1 % of the optimum of linear programming, and few QPs have a share
    (`fewest`). Connections that do not cross the worst link are divided again so that the worst of the other links is
    lowest, and so on for some levels (max-min fairness); of more than 512 QPs only the worst load is made lowest. With
    `fill` only that is, and each connection fills one path after the other, which leaves others room for more.
    """
    every = list(flows)
    left = sorted((flow for flow in every if flow.id in paths), key=lambda flow: flow.id)
    conditions = conditions or Conditions()
    divided: dict[str, float] = {}
    for _ in range(1 if fill or len(left) > MAX_DIVIDED else _LEVELS):
        if not left:
            break
        problem = _Problem(every, left, paths, conditions)
        solved = problem.solve(fill=fill)
        divided |= dict(zip((flow.id for flow in left), solved.tolist(), strict=True))
        decided = problem.decided(solved)
        conditions = problem.with_background(solved, decided, conditions)
        left = [flow for flow, final in zip(left, decided.tolist(), strict=True) if not final]
    return divided


class Spread(NamedTuple):
    """The paths that carry each connection, with their shares, the largest first; and a bound of the worst load."""

    paths: dict[tuple[str, str, str], list[tuple[Path, float]]]
    least: float


def spread(
    demands: Mapping[tuple[str, str, str], tuple[float, str]],
    choices: Mapping[tuple[str, str, str], Sequence[Path]],
    conditions: Conditions,
) -> Spread:
    """Divide each connection among all paths that it may take so that the worst link load is lowest; over few of them.

    `demands` are bit/s and the job, by connection, each of which has a path. No plan has a lower worst load than the
    bound. More than `MAX_DIVIDED` paths of all connections together would take too long.
    """
    keys = sorted(demands)
    ways = [(key, path) for key in keys for path in choices[key]]
    # The flows of a connection share the part of an id before its last dot.
    named = [
        Flow(f"{keys.index(key):03}.{number:03}", demands[key][1], *key[1:], demands[key][0] / len(choices[key]))
        for number, (key, _) in enumerate(ways)
    ]
    problem = _Problem(named, named, {flow.id: path for flow, (_, path) in zip(named, ways, strict=True)}, conditions)
    solved = problem.solve()
    found: dict[tuple[str, str, str], list[tuple[Path, float]]] = {key: [] for key in keys}
    for (key, path), share in sorted(zip(ways, solved.tolist(), strict=True), key=lambda way: -way[1]):
        if share > 0:
            found[key].append((path, share))
    return Spread(found, problem.least)


def worst_load(
    flows: Iterable[Flow], paths: Mapping[str, Path], conditions: Conditions, shares: Mapping[str, float]
) -> float:
    """The greatest load of a link with these shares, as `shares` counts it; 0 without a flow that has a path."""
    known = sorted((flow for flow in flows if flow.id in paths), key=lambda flow: flow.id)
    return _Problem(list(flows), known, paths, conditions).worst([shares[flow.id] for flow in known]) if known else 0.0


class _Problem:
    """Exponentiated gradient descent on a soft maximum of the loads.

    The gradient is a solution of the dual linear program, whose value is a lower bound: it tells when to stop.
    """

    def __init__(
        self, every: Sequence[Flow], flows: Sequence[Flow], paths: Mapping[str, Path], conditions: Conditions
    ) -> None:
        hops = sorted({hop for flow in flows for hop in paths[flow.id].hops})
        self._hops = hops
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
        # The highest lower bound of the worst load that `solve` has met.
        self.least = 0.0

    def worst(self, share: Sequence[float]) -> float:
        """The greatest load of a link with these shares, in order of the QPs."""
        return float(self._loads(np.array(share)).max())

    def solve(self, *, fill: bool = False) -> Array:
        """The shares, summing to 1 in each connection."""
        spread = self._spread()
        if fill:
            return self._filled(float(self._loads(spread).max()), spread)
        few = fewest(spread, self._of, self._links, self._demand, len(self._weight) - 1)
        few[few < _LEAST_SHARE] = 0.0
        few /= np.bincount(self._of, few)[self._of]
        return few if self._loads(few).max() <= self._loads(spread).max() * (1 + _NEAR) else spread

    def decided(self, share: Array) -> npt.NDArray[np.bool_]:
        """Which QPs have their final share: those of connections that load a worst link, and all that cross one."""
        load = self._loads(share)
        worst = np.append(load[:-1] >= load.max() * (1 - _NEAR), False)
        crossing = worst[self._links].any(axis=1)
        loading = np.bincount(self._of, crossing & (share > 0)) > 0
        final: npt.NDArray[np.bool_] = loading[self._of] | crossing
        return final

    def with_background(self, share: Array, qps: npt.NDArray[np.bool_], conditions: Conditions) -> Conditions:
        """The conditions with the load of these QPs as traffic that cannot be moved."""
        background = Counter(conditions.background_bps)
        for qp in np.flatnonzero(qps).tolist():
            for link in self._links[qp].tolist():
                if link < len(self._hops):
                    background[self._hops[link]] += share[qp] * self._demand[self._of[qp]]
        return msgspec.structs.replace(conditions, background_bps=dict(background))

    def _filled(self, worst: float, otherwise: Array) -> Array:
        """Shares with which each connection fills its paths in turn, the emptiest first, to no more than `worst`.

        `otherwise` if they do not fit.
        """
        room = worst - self._background
        share = np.zeros(len(self._of))
        for connection, demand_bps in enumerate(self._demand.tolist()):
            left, added = 1.0, demand_bps * self._weight
            mine = np.flatnonzero(self._of == connection)
            while left > _ZERO and len(mine):
                fits = [_fit(room[links], added[links]) for links in self._links[mine]]
                best = int(np.argmax(fits))
                qp, mine = mine[best], np.delete(mine, best)
                share[qp] = min(left, max(0.0, fits[best]))
                room[self._links[qp]] -= share[qp] * added[self._links[qp]]
                left -= share[qp]
            if left > _ZERO:
                return otherwise
        return share

    def _spread(self) -> Array:
        """Shares over all QPs for which the worst link load is lowest."""
        log = np.zeros(len(self._of))
        best, least = self._normal(log), np.inf
        for sharpness in _SHARPNESS:
            step = 1.0
            for _ in range(_ROUNDS):
                load = self._loads(self._normal(log))
                worst = float(load.max())
                if worst < least:
                    best, least = self._normal(log), worst
                cost, price = self._gradient(load, worst, sharpness)
                self.least = max(self.least, self._bound(cost, price))
                if least <= self.least * (1 + _NEAR):
                    return best
                log, step = self._step(log, cost, sharpness, step)
                if step < _LEAST_STEP:
                    break
        return best

    def _step(self, log: Array, cost: Array, sharpness: float, step: float) -> tuple[Array, float]:
        """One step downhill and the length of the next: longer after a descent, else shorter from the same point."""
        over = cost - self._cheapest(cost)[self._of]
        stepped = np.maximum(log - step * over / (float(over.max()) or 1.0), -_MAX_LOG)
        if self._soft_maximum(stepped, sharpness) < self._soft_maximum(log, sharpness):
            return stepped, step * 1.5
        return log, step / 2

    def _soft_maximum(self, log: Array, sharpness: float) -> float:
        load = self._loads(self._normal(log))
        worst = float(load.max())
        scale = self._scale
        return worst + scale / sharpness * float(np.log(np.exp(sharpness / scale * (load - worst)).sum()))

    def _normal(self, log: Array) -> Array:
        """Shares from their logarithms: positive numbers that sum to 1 in each connection."""
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
        """The cost of one more bit/s on each QP, and the links' prices, which sum to 1."""
        price = np.exp(sharpness / self._scale * (load - worst))
        price /= price.sum()
        cost: Array = (price * self._weight)[self._links].sum(axis=1)
        return cost, price

    def _cheapest(self, cost: Array) -> Array:
        least = np.full(len(self._demand), np.inf)
        np.minimum.at(least, self._of, cost)
        return least

    def _bound(self, cost: Array, price: Array) -> float:
        """A lower bound of the worst load: the cost of all demand on the cheapest QPs (LP duality)."""
        return float((self._demand * self._cheapest(cost)).sum() + (price * self._background).sum())


def _fit(room: Array, added: Array) -> float:
    """Which part of a connection fits on a path: `room` is what is left on its links, `added` what all of it adds."""
    used = added > 0
    return float((room[used] / added[used]).min()) if used.any() else 1.0


def fewest(share: Array, of: IndexArray, links: IndexArray, demand: Array, count: int) -> Array:
    """Shares with the same sum in each connection and the same load on each of `count` links, most of them 0.

    QP i of n belongs to connection `of[i]` and crosses `links[i]` (shape n by links of a path); `demand` is bit/s by
    connection. The loads are a point of a polytope. By Caratheodory's theorem as many QPs as there are independent
    connections and links suffice; if every connection fits on one link, one QP each (Birkhoff, von Neumann). Shares of
    more than 512 QPs are returned unchanged.
    """
    if len(share) > MAX_DIVIDED:
        return share
    sparse = share.copy()
    columns = _columns(of, links, demand, count)
    products = columns.T @ columns
    kept: list[int] = []
    for qp in np.argsort(-share, kind="stable").tolist():
        if sparse[qp] <= _ZERO:
            continue
        kept.append(qp)
        _reduce(sparse, columns, products, kept)
    sparse[sparse <= _ZERO] = 0.0
    return sparse


def _columns(of: IndexArray, links: IndexArray, demand: Array, count: int) -> Array:
    """What a share of 1 adds to the QP's connection and to each link: shape (connections + links, QPs)."""
    connections = len(demand)
    columns = np.zeros((connections + count, len(of)))
    columns[of, np.arange(len(of))] = 1.0
    scale = demand / (demand.max() or 1.0)
    for qp, crossed in enumerate(links.tolist()):
        for link in crossed:
            if link < count:
                columns[connections + link, qp] += scale[of[qp]]
    return columns


def _reduce(share: Array, columns: Array, products: Array, kept: list[int]) -> None:
    """If the last QP's column depends on the others' columns, shift load among them until one has none left.

    `products` are the columns' inner products.
    """
    *others, last = kept
    if not others:
        return
    # Least squares by the normal equations: the others' columns are independent, if only just where demands are tiny.
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            weights = np.linalg.solve(products[np.ix_(others, others)], products[others, last])
        except np.linalg.LinAlgError:
            return
    if not np.abs(columns[:, others] @ weights - columns[:, last]).max() <= _ZERO:
        return
    # `step` less of the last QP's share is `step * weights` more for the others; some of that may be negative.
    steps = [share[last]] + [
        share[qp] / -weight for qp, weight in zip(others, weights, strict=True) if weight < -_ZERO_WEIGHT
    ]
    step = min(steps)
    share[others] += step * weights
    share[last] -= step
    np.clip(share, 0.0, None, out=share)
    kept[:] = [qp for qp in kept if share[qp] > _ZERO]


class QpShare(NamedTuple):
    """The flow whose path a QP uses (`leader`, which may be itself), and its share of its connection's load."""

    leader: str
    share: float


def assign_idle_qps(shares: Mapping[str, float], flows: Iterable[Flow]) -> dict[str, QpShare]:
    """Let QPs without a share use the path of one of their connection's QPs that has one; the result is by flow id.

    A QP's unacknowledged bytes are limited (128 packets for rxe), and acknowledgements wait in the queues of contended
    links. So several QPs fill a path that one cannot. All QPs of a path carry the same. Links that are full divide
    themselves equally among QPs, whatever these have to carry, and an operation waits for its last QP: so no more QPs
    are used than carry the most nearly equal shares, and others carry nothing. Flows without an entry in `shares`, and
    connections without a share, are left out.
    """
    assigned: dict[str, QpShare] = {}
    for members in _by_connection(shares, flows).values():
        leaders = {flow: shares[flow] for flow in members if shares[flow] > 0}
        if not leaders:
            continue
        idle = [flow for flow in members if flow not in leaders]
        helped = _helped(leaders, len(idle))
        sizes = Counter([*leaders, *helped])
        parts = {leader: QpShare(leader, share / sizes[leader]) for leader, share in leaders.items()}
        unused = QpShare(max(leaders, key=lambda leader: leaders[leader]), 0.0)
        followed = [*(parts[leader] for leader in helped), *[unused] * (len(idle) - len(helped))]
        assigned |= parts | dict(zip(idle, followed, strict=True))
    return assigned


def _helped(leaders: Mapping[str, float], idle: int) -> list[str]:
    """The leader that each idle QP joins that is used: as many are as make the QPs' shares most nearly equal."""
    sizes, joined = dict.fromkeys(leaders, 1), list[str]()
    best, most_equal = 0, _inequality(leaders, sizes)
    for _ in range(idle):
        joined.append(max(leaders, key=lambda leader: leaders[leader] / sizes[leader]))
        sizes[joined[-1]] += 1
        if (inequality := _inequality(leaders, sizes)) <= most_equal + _ZERO_WEIGHT:
            best, most_equal = len(joined), inequality
    return joined[:best]


def _inequality(leaders: Mapping[str, float], sizes: Mapping[str, int]) -> float:
    """How much more the QP with the largest share carries than the one with the smallest, as a factor."""
    parts = [share / sizes[leader] for leader, share in leaders.items()]
    return max(parts) / min(parts)


def _by_connection(shares: Mapping[str, float], flows: Iterable[Flow]) -> dict[tuple[str, str, str], list[str]]:
    flow_ids: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for flow in sorted(flows, key=lambda flow: flow.id):
        if flow.id in shares:
            flow_ids[connection_key(flow)].append(flow.id)
    return flow_ids


# Every QP takes memory on both hosts, for each peer and NIC. This serves links down to a quarter of the NICs' rate.
MAX_QPS = 16


def needed_qps(paths: Iterable[Sequence[str]], capacities: Mapping[str, float]) -> int:
    """The number of QPs, at most `MAX_QPS`, of a connection that may use these paths, given by their hops.

    `capacities` are bit/s by hop; a link that is not in them is as fast as the fastest, and one of capacity 0 is dead.
    Without them, all links count alike. The first and last link of a path are those of the NICs: a bond has several.

    What a QP may have unacknowledged is limited (128 packets for rxe), so `USUAL_QPS` of them keep the queue of a link
    full. A link of a fraction f of the slower NIC's rate carries that share of the connection, and so gets that share
    of its QPs. It has `USUAL_QPS` of them if the connection has `USUAL_QPS / f`. The thinnest link decides.
    """
    fastest_bps = max(capacities.values(), default=1.0)
    usable = [hops for hops in paths if hops and all(capacities.get(hop, fastest_bps) > 0 for hop in hops)]
    if not usable:
        return USUAL_QPS
    nic_bps = min(sum(capacities.get(hop, fastest_bps) for hop in {hops[end] for hops in usable}) for end in (0, -1))
    thinnest_bps = min(capacities.get(hop, fastest_bps) for hops in usable for hop in hops)
    return max(USUAL_QPS, min(MAX_QPS, ceil(USUAL_QPS * nic_bps / thinnest_bps)))
