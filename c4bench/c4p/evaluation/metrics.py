"""How even a placement is: link loads, and the KPIs MMR and JFI of draft-calabria-bmwg-ai-fabric-training-bench."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np

from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.cabling import Link, tiers
from c4bench.errors import UsageError
from c4bench.model.fabric import Flow, Host, Placement
from c4bench.model.qp_address import connection_key

# A pair without a known path is farther apart than any other.
_UNKNOWN = 1 << 10


def crossing_pairs(hosts: Iterable[Host], atlas: Atlas) -> list[tuple[Host, Host]]:
    """Disjoint pairs over all hosts with NICs, one host left over if they are odd; the order of `hosts` has no effect.

    Hosts are lined up so that each is followed by the nearest that is left, by hops and then by name. So a leaf's hosts
    stand together, and a pod's and a site's. Each host of the first half is paired with its like in the second. Paths
    are those between the hosts' first NICs.
    """
    left = sorted((host for host in hosts if host.nics), key=lambda host: _natural(host.name))
    line = left[:1]
    del left[:1]
    while left:
        nearest = min(left, key=lambda host: (_hops(atlas, line[-1], host), _natural(host.name)))
        left.remove(nearest)
        line.append(nearest)
    half = len(line) // 2
    return list(zip(line[:half], line[half : 2 * half], strict=True))


def _hops(atlas: Atlas, source: Host, target: Host) -> int:
    paths = atlas.paths(source.nics[0].name, target.nics[0].name)
    return min((len(path.hops) for path in paths), default=_UNKNOWN)


def _natural(name: str) -> list[tuple[int, str]]:
    """`h2` before `h10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


class Evenness(msgspec.Struct, frozen=True):
    """The evenness of parallel links, from `tier` to `to_tier` (0: NICs), of one plane.

    `plane` is None if links serve several planes. `mean` and `worst` are loads in the unit of `link_loads`. `mmr` and
    `jfi` are 1 if all loads are equal, NaN without load.
    """

    tier: int
    to_tier: int
    plane: int | None
    links: int
    mean: float
    worst: float
    mmr: float
    jfi: float


def link_loads(
    flows: Iterable[Flow],
    placements: Iterable[Placement],
    capacities: Mapping[str, float] | None = None,
    shares: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, float]:
    """Offered load by hop, for the hops that carry a flow, or for all of `capacities` if they are given.

    Without `capacities` (bit/s by hop) loads are in bit/s, with them they are fractions, above 1 if contended. With
    `shares` (`weights.shares`) a QP offers its share of the total demand of its connection.
    """
    known = list(flows)
    demand = _offered(known, shares) if shares else {flow.id: flow.demand_bps for flow in known}
    loads = dict.fromkeys(capacities or (), 0.0)
    for placement in placements:
        for hop in placement.path.hops:
            loads[hop] = loads.get(hop, 0.0) + demand[placement.flow]
    if capacities is None:
        return loads
    return {hop: _fraction(load, hop, capacities) for hop, load in loads.items()}


def evenness(loads: Mapping[str, float], links: Iterable[Link], planes: Mapping[str, int]) -> tuple[Evenness, ...]:
    """Evenness by tier, direction and plane; `planes` are those of all NICs by name. A link without a load counts 0."""
    known = list(links)
    tier, plane = tiers(known, planes), _planes(known, planes)
    groups: dict[tuple[int, int, int | None], list[float]] = defaultdict(list)
    for link in known:
        side = plane[link.source] if plane[link.source] is not None else plane[link.target]
        groups[tier[link.source], tier[link.target], side].append(loads.get(link.hop, 0.0))
    return tuple(_evenness(*key, groups[key]) for key in sorted(groups, key=str))


def optimum_fraction(worst_load: float, least_worst_load: float) -> float:
    """The worst flow's rate as a fraction of its best possible rate; both worst loads are fractions of capacity.

    A flow gets its demand if no link is above its capacity, else its share of the worst link.
    """
    return min(1.0, max(1.0, least_worst_load) / max(1.0, worst_load))


def max_mean_ratio(values: Sequence[float]) -> float:
    """MMR: the maximum over the mean; 1.0 is perfectly even. NaN without values or without load.

    Its inputs are the loads of parallel links, such as one tier's uplinks.
    """
    mean = float(np.mean(values)) if len(values) else 0.0
    return max(values) / mean if mean else float("nan")


def jain_index(values: Sequence[float]) -> float:
    """JFI: (sum x)^2 / (n sum x^2); 1.0 is even, 1/n is all load on one link (Jain, Chiu, Hawe: DEC TR-301, 1984).

    NaN without values or without load.
    """
    x = np.asarray(values, dtype=float)
    peak = x.max(initial=0.0)
    if peak <= 0.0:
        return float("nan")
    # Scaled first, because squares of bit rates lose digits and squares of tiny fractions underflow.
    x = x / peak
    return float(x.sum() ** 2 / (x.size * np.square(x).sum()))


def _evenness(tier: int, to_tier: int, plane: int | None, loads: list[float]) -> Evenness:
    mean, worst = float(np.mean(loads)), max(loads)
    return Evenness(tier, to_tier, plane, len(loads), mean, worst, max_mean_ratio(loads), jain_index(loads))


def _planes(links: Iterable[Link], planes: Mapping[str, int]) -> dict[str, int | None]:
    """The plane of every node; a switch has that of the NICs cabled to it, None if they differ or there are none."""
    known: dict[str, set[int]] = defaultdict(set)
    for link in links:
        ends = (link.source, link.target)
        for node in ends:
            known[node] |= {planes[end] for end in ends if end in planes}
    return {node: min(numbers) if len(numbers) == 1 else None for node, numbers in known.items()}


def _offered(flows: Sequence[Flow], shares: Mapping[str, float]) -> dict[str, float]:
    total: dict[tuple[str, str, str], float] = defaultdict(float)
    for flow in flows:
        total[connection_key(flow)] += flow.demand_bps
    return {flow.id: shares.get(flow.id, 0.0) * total[connection_key(flow)] for flow in flows}


def _fraction(load: float, hop: str, capacities: Mapping[str, float]) -> float:
    if hop not in capacities:
        raise UsageError(f"hop {hop} has no capacity; give the rate of every link that a path crosses")
    return load / capacities[hop] if load else 0.0
