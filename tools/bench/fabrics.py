"""Synthetic fabrics and jobs to benchmark planners: leaf-spine, rails, two planes, missing links, mixed rates.

Hop names: `in:NIC>LEAF`, `up:LEAF>SPINE`, `down:SPINE>LEAF`, `out:NIC`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.knowledge.atlas import Atlas, PathTrace
from c4bench.model.fabric import Flow

_FIRST_PORT = 49152
T = TypeVar("T")


class Fabric(NamedTuple):
    """A leaf-spine fabric: the leaf of every NIC, the spines, the leaf-spine links that are missing, rates by hop."""

    leaf_of: dict[str, int]
    spines: int
    missing: frozenset[tuple[int, int]] = frozenset()
    rates_bps: dict[str, float] = {}  # noqa: RUF012  (never changed)

    def hops(self, source: str, destination: str, spine: int) -> tuple[str, ...] | None:
        """The links of a path by way of `spine`; None if one of them is missing."""
        first, last = self.leaf_of[source], self.leaf_of[destination]
        if first == last:
            return f"in:{source}>{first}", f"out:{destination}"
        if (first, spine) in self.missing or (last, spine) in self.missing:
            return None
        return f"in:{source}>{first}", f"up:{first}>{spine}", f"down:{spine}>{last}", f"out:{destination}"

    def atlas(self, pairs: Iterable[tuple[str, str]]) -> Atlas:
        """The atlas that probing these pairs gives; each pair maps source ports to spines in its own order."""
        return Atlas.from_answers(
            PathTrace(source, destination, _FIRST_PORT + (spine + offset) % self.spines, hops)
            for offset, (source, destination) in enumerate(dict.fromkeys(pairs))
            for spine in range(self.spines)
            if (hops := self.hops(source, destination, spine)) is not None
        )


def clos(hosts: int, hosts_per_leaf: int, spines: int) -> Fabric:
    """Hosts with one NIC, `hosts_per_leaf` to a leaf."""
    return Fabric({f"h{host}/0": host // hosts_per_leaf for host in range(hosts)}, spines)


def rails(hosts: int, nics: int, spines: int) -> Fabric:
    """NIC r of every host on leaf r."""
    return Fabric({f"h{host}/{nic}": nic for host in range(hosts) for nic in range(nics)}, spines)


def planes(hosts: int, hosts_per_leaf: int, spines: int) -> Fabric:
    """Hosts with a port in each of two leaf planes, which meet at the spines."""
    leaf_of = {f"h{host}/{port}": 2 * (host // hosts_per_leaf) + port for host in range(hosts) for port in range(2)}
    return Fabric(leaf_of, spines)


class Instance(NamedTuple):
    """A planning problem: what `Planner` and `evaluation.least_worst_load` take."""

    flows: list[Flow]
    atlas: Atlas
    conditions: Conditions


def instance(seed: int) -> Instance:
    """A random problem for `seed`: Clos, rails or two planes; missing links, unequal rates, background traffic."""
    rng = np.random.default_rng(seed)
    fabric, bonds = _any_fabric(rng)
    ends = sorted(bonds) or sorted(fabric.leaf_of)
    demands = _pick(rng, [(10e9,), (2.5e9, 5e9, 10e9), (1e9, 3e9, 7e9, 10e9)])
    flows = [
        Flow(f"f{number}", f"job{number % 3}", *_ends(rng, ends), _pick(rng, demands))
        for number in range(int(rng.integers(4, 37)))
    ]
    ports = {end: bonds.get(end, (end,)) for end in ends}
    atlas = fabric.atlas((a, b) for flow in flows for a in ports[flow.source] for b in ports[flow.destination])
    rates = {hop: _pick(rng, [5e9, 10e9, 10e9]) if hop.startswith(("up", "down")) else 40e9 for hop in atlas.hops}
    equal = rng.random() < 0.5
    capacities = {hop: 10e9 if equal and hop.startswith(("up", "down")) else rate for hop, rate in rates.items()}
    busy = {hop: _pick(rng, [0.0, 1e9, 4e9]) for hop in atlas.hops} if rng.random() < 0.3 else {}
    return Instance(flows, atlas, Conditions(capacities, busy, bonds=bonds))


def _any_fabric(rng: np.random.Generator) -> tuple[Fabric, dict[str, tuple[str, ...]]]:
    kind, spines = _pick(rng, ["clos", "rails", "planes"]), int(rng.integers(2, 7))
    bonds: dict[str, tuple[str, ...]] = {}
    if kind == "clos":
        fabric = clos(_pick(rng, [8, 12, 16]), 4, spines)
    elif kind == "rails":
        fabric = rails(int(rng.integers(3, 7)), 4, spines)
    else:
        hosts = _pick(rng, [4, 8])
        fabric = planes(hosts, 2, spines)
        bonds = {f"h{host}": (f"h{host}/0", f"h{host}/1") for host in range(hosts)}
    leaves = max(fabric.leaf_of.values()) + 1
    cut = [(int(rng.integers(leaves)), int(rng.integers(spines))) for _ in range(_pick(rng, [0, 0, 1, 2]))]
    return fabric._replace(missing=frozenset(cut)), bonds


def _ends(rng: np.random.Generator, ends: Sequence[str]) -> tuple[str, str]:
    while True:
        source, destination = _pick(rng, ends), _pick(rng, ends)
        if source.split("/")[0] != destination.split("/")[0]:
            return source, destination


def _pick(rng: np.random.Generator, items: Sequence[T]) -> T:
    return items[int(rng.integers(len(items)))]
