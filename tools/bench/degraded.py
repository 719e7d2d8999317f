"""What plans, ECMP, spraying and a plan that stays as it was give jobs on a fabric that has lost links, by its graph.

Each job is an all-reduce between two hosts on different leaves. A connection sends as fast as the slowest of its QPs
lets it, and all jobs are as slow as the worst link has them: a job's rate is its NIC's over the worst load. The measure
is the optimum's worst load over that, where the optimum may divide each connection over all open paths (HiGHS).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.controller import PathController
from c4bench.c4p.evaluation import least_worst_load
from c4bench.c4p.knowledge.atlas import Probe
from c4bench.model.fabric import Flow
from tools.bench.fabrics import Fabric, clos

RATE_BPS = 10e9
# What is left of a degraded link: nothing, or half of its rate.
Kind = Literal["down", "half"]
PATHS = ("planned", "static", "ecmp", "sprayed")
_SOURCE_PORTS = range(49153, 49153 + 64)


class Size(NamedTuple):
    """The size of a leaf-spine fabric, whose leaves have as much bandwidth up as down if spines are hosts of a leaf."""

    hosts: int = 32
    hosts_per_leaf: int = 8
    spines: int = 8


class Degraded(NamedTuple):
    """A fabric with degraded links, jobs on it, and whatever chance decides in it."""

    fabric: Fabric
    capacities: Mapping[str, float]
    pairs: Sequence[tuple[str, str]]
    chance: np.random.Generator

    @property
    def ends(self) -> list[tuple[str, str]]:
        """The NICs of every connection: each job has one in each direction."""
        return [ends for pair in self.pairs for ends in (pair, pair[::-1])]


def draw(seed: int, links_down: float, kind: Kind, size: Size = Size()) -> Degraded:  # noqa: B008  (immutable)
    """A fabric of which the fraction `links_down` of all links between switches is degraded; no pair is cut off."""
    chance = np.random.default_rng(seed)
    whole = clos(*size)
    leaves = size.hosts // size.hosts_per_leaf
    links = [(leaf, spine) for leaf in range(leaves) for spine in range(size.spines)]
    while True:
        hit = frozenset(links[at] for at in chance.choice(len(links), round(links_down * len(links)), replace=False))
        fabric = whole._replace(missing=hit if kind == "down" else frozenset())
        names = list(whole.leaf_of)
        pairs = _pairs(whole, chance.permutation(len(names)).tolist(), names)
        if pairs and all(any(fabric.hops(*pair, spine) for spine in range(size.spines)) for pair in pairs):
            break
    slow = {name for leaf, spine in hit for name in (f"up:{leaf}>{spine}", f"down:{spine}>{leaf}")}
    hops = {hop for pair in pairs for ends in (pair, pair[::-1]) for hop in _hops(fabric, *ends)}
    return Degraded(fabric, {hop: RATE_BPS / 2 if hop in slow else RATE_BPS for hop in hops}, pairs, chance)


def _pairs(fabric: Fabric, order: Sequence[int], names: Sequence[str]) -> list[tuple[str, str]]:
    """Each NIC in this order with the next free one on another leaf; none if that leaves some alone."""
    left, pairs = [names[at] for at in order], []
    while left:
        first = left.pop(0)
        other = next((name for name in left if fabric.leaf_of[name] != fabric.leaf_of[first]), None)
        if other is None:
            return []
        left.remove(other)
        pairs.append((first, other))
    return pairs


def _hops(fabric: Fabric, source: str, destination: str) -> set[str]:
    paths = (fabric.hops(source, destination, spine) for spine in range(fabric.spines))
    return {hop for path in paths if path for hop in path}


def fractions(case: Degraded) -> dict[str, float]:
    """The worst job's share of the remaining optimum, by how paths are chosen; QPs are as many as C4P chooses."""
    best = _rate(_optimum(case))
    planned, shares = _plan(case.fabric, case, case.capacities)
    qps = len(planned) // len(case.ends)
    before, old_shares = _plan(case.fabric._replace(missing=frozenset()), case, {}, qps)
    choices = {
        "planned": (planned, shares),
        "static": ([_rehashed(case, *each) for each in zip(_each_qp(case, qps), before, strict=True)], old_shares),
        "ecmp": ([_hashed(case, ends) for ends in _each_qp(case, qps)], [1 / qps] * len(planned)),
        "sprayed": _sprayed(case),
    }
    return {name: _rate(_worst_load(case, *choices[name])) / best for name in PATHS}


def _rate(worst_load: float) -> float:
    """What the worst job gets of its NIC's rate."""
    return min(1.0, 1.0 / worst_load)


def _optimum(case: Degraded) -> float:
    """The lowest possible worst load."""
    flows = [Flow(f"{source}>{target}", "optimum", source, target, RATE_BPS) for source, target in case.ends]
    atlas = case.fabric.atlas(case.ends)
    conditions = Conditions({hop: case.capacities[hop] for hop in atlas.hops})
    return least_worst_load(flows, atlas, conditions, divisible=True)


def _worst_load(case: Degraded, paths: Iterable[Sequence[str]], shares: Iterable[float]) -> float:
    """The worst load of a link if each QP's share of its connection takes its path."""
    load: dict[str, float] = defaultdict(float)
    for path, share in zip(paths, shares, strict=True):
        for hop in path:
            load[hop] += share * RATE_BPS / case.capacities[hop]
    return max(load.values())


def _plan(
    fabric: Fabric, case: Degraded, capacities: Mapping[str, float], qps: int = 0
) -> tuple[list[tuple[str, ...]], list[float]]:
    """The paths and shares of all QPs as the live planner gives them to connections that come one after the other."""
    controller = PathController()
    controller.set_capacities(capacities)
    controller.learn(_traces(fabric, case.ends), 0.0)
    count = qps or max(controller.needed_qps(ends) for ends in case.ends)
    flows: list[Flow] = []
    for number, (source, target) in enumerate(case.ends):
        job, rank = f"j{number // 2}", number % 2
        named = [f"{job}/{job}:data/{rank}>{1 - rank}/0.{qp}" for qp in range(count)]
        mine = [Flow(name, job, source, target, RATE_BPS / count) for name in named]
        controller.join(mine)
        flows += mine
    return [controller.path(flow.id).hops for flow in flows], [controller.weight(flow.id) for flow in flows]


def _traces(fabric: Fabric, pairs: Iterable[tuple[str, str]]) -> dict[Probe, tuple[str | None, ...]]:
    """A source port for each open path of each pair, in an order of its own."""
    traces: dict[Probe, tuple[str | None, ...]] = {}
    for offset, (source, target) in enumerate(pairs):
        paths = [path for spine in range(fabric.spines) if (path := fabric.hops(source, target, spine))]
        for port, at in zip(_SOURCE_PORTS, range(len(paths)), strict=False):
            traces[source, target, port] = paths[(at + offset) % len(paths)]
    return traces


def _each_qp(case: Degraded, qps: int) -> list[tuple[str, str]]:
    return [ends for ends in case.ends for _ in range(qps)]


def _open_paths(case: Degraded, ends: tuple[str, str]) -> list[tuple[str, ...]]:
    return [path for spine in range(case.fabric.spines) if (path := case.fabric.hops(*ends, spine))]


def _hashed(case: Degraded, ends: tuple[str, str]) -> tuple[str, ...]:
    """One of the open paths, by chance: what a switch does with a flow."""
    paths = _open_paths(case, ends)
    return paths[int(case.chance.integers(len(paths)))]


def _rehashed(case: Degraded, ends: tuple[str, str], planned: tuple[str, ...]) -> tuple[str, ...]:
    """The path as planned before, if it is still open."""
    return planned if planned in _open_paths(case, ends) else _hashed(case, ends)


def _sprayed(case: Degraded) -> tuple[list[tuple[str, ...]], list[float]]:
    """Every connection over all its open paths alike, packet by packet, without loss by reordering."""
    every = [_open_paths(case, ends) for ends in case.ends]
    return [path for paths in every for path in paths], [1 / len(paths) for paths in every for _ in paths]
