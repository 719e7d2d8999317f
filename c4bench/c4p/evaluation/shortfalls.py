"""What a plan cannot give: flows without a route, full links, too few QPs, paths that no source port reaches."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.leaf_groups import InnerPath, leaf_groups
from c4bench.c4p.weights.shares import needed_qps
from c4bench.model.fabric import USUAL_QPS, Flow, Path
from c4bench.model.qp_address import connection_key

# Relative: a link this much above its capacity is above it only by rounding errors.
_SLACK = 1e-9


def no_route(flow: Flow, atlas: Atlas, conditions: Conditions, closed: Iterable[str] = ()) -> str:
    """A line that says why a flow has no open path; `closed` are hops closed in addition to the conditions' own."""
    sources, destinations = (conditions.bonds.get(end, (end,)) for end in (flow.source, flow.destination))
    pairs = [(source, destination) for source in sources for destination in destinations]
    paths = [path for pair in pairs for path in atlas.paths(*pair)]
    start = f"flow {flow.id} has no route from {flow.source} to {flow.destination} and is left to ECMP: "
    if paths:
        return start + _blocked(paths, _unusable(conditions) | set(closed))
    if any(pair in atlas.pairs for pair in pairs):
        return start + "its probes were not answered; see whether switches answer TTL-exceeded"
    return start + "the pair is not in the atlas; probe it"


def shortages(loads_bps: Mapping[str, float], capacities: Mapping[str, float]) -> tuple[str, ...]:
    """A line for every link whose load is above its capacity, the worst first; both in bit/s by hop.

    Links of capacity 0 are left out.
    """
    ratios = {hop: load / capacities[hop] for hop, load in loads_bps.items() if capacities.get(hop)}
    over = sorted((hop for hop, ratio in ratios.items() if ratio > 1 + _SLACK), key=lambda hop: (-ratios[hop], hop))
    return tuple(
        f"hop {hop} is asked for {loads_bps[hop] / 1e9:.4g} Gbit/s and has {capacities[hop] / 1e9:.4g}: "
        f"its flows get {100 / ratios[hop]:.3g} % of their demand"
        for hop in over
    )


def few_qps(flows: Iterable[Flow], atlas: Atlas, capacities: Mapping[str, float]) -> tuple[str, ...]:
    """A line for every connection with fewer QPs than its thin links need, by name; `capacities` are bit/s by hop."""
    counts = Counter(connection_key(flow) for flow in flows)
    needs = {key: needed_qps((path.hops for path in atlas.paths(*key[1:])), capacities) for key in sorted(counts)}
    return tuple(
        f"connection {key[0]} of {counts[key]} QPs may cross links thinner than its NICs: {need} QPs fill them"
        for key, need in needs.items()
        if need > max(USUAL_QPS, counts[key])
    )


class Gap(msgspec.Struct, frozen=True, order=True):
    """A pair whose source ports do not reach all known paths: `missing` are those, by the links between the leaves."""

    source: str
    destination: str
    reached: int
    missing: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Which paths are missing, and how many QPs can be kept apart."""
        paths = "; ".join(" ".join(path) for path in self.missing)
        return (
            f"{self.source} > {self.destination}: the probed source ports reach {self.reached} of "
            f"{self.reached + len(self.missing)} paths, none leads over {paths}; "
            f"up to {self.reached} QPs of a connection can be kept apart; probe more source ports"
        )


def gaps(atlas: Atlas) -> tuple[Gap, ...]:
    """Every pair that reaches fewer paths than other pairs between the same two leaves.

    Pairs are between the same leaves if any of their paths have the same links between first and last hop.
    """
    inner = {pair: {path.hops[1:-1] for path in atlas.paths(*pair)} - {()} for pair in atlas.pairs}
    group = leaf_groups(inner)
    known: dict[InnerPath, set[InnerPath]] = defaultdict(set)
    for pair, representative in group.items():
        known[representative] |= inner[pair]
    missing = {pair: known[representative] - inner[pair] for pair, representative in group.items()}
    return tuple(
        sorted(Gap(*pair, len(inner[pair]), tuple(sorted(lacking))) for pair, lacking in missing.items() if lacking)
    )


def _unusable(conditions: Conditions) -> set[str]:
    return set(conditions.avoid) | {hop for hop, rate in (conditions.capacities or {}).items() if rate <= 0}


def _blocked(paths: Iterable[Path], closed: set[str]) -> str:
    """The closed hops that block every path: those common to all paths, else all of them."""
    sets = [closed.intersection(path.hops) for path in paths]
    common = set.intersection(*sets)
    hops = " ".join(sorted(common or set.union(*sets)))
    return f"every known path crosses {'' if common else 'one of '}{hops}, which may not be used"
