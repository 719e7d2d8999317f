"""What a plan cannot give: flows without a route, links above capacity, paths that no source port reaches."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.model.fabric import Flow, Path


def no_route(flow: Flow, atlas: Atlas, conditions: Conditions, closed: Iterable[str] = ()) -> str:
    """Why a flow has no way, and what becomes of it; `closed` are hops not to be used besides the conditions' own."""
    here, there = (conditions.bonds.get(end, (end,)) for end in (flow.source, flow.destination))
    pairs = [(port, other) for port in here for other in there]
    paths = [path for pair in pairs for path in atlas.paths(*pair)]
    start = f"flow {flow.id} has no route from {flow.source} to {flow.destination} and is left to ECMP: "
    if paths:
        return start + _blocked(paths, _shut(conditions) | set(closed))
    if any(pair in atlas.pairs for pair in pairs):
        return start + "its probes were not answered; see whether switches answer TTL-exceeded"
    return start + "the pair is not in the atlas; probe it"


def shortages(loads_bps: Mapping[str, float], capacities: Mapping[str, float]) -> tuple[str, ...]:
    """A line for every link that is asked for more than it has, the worst first; dead links apart."""
    asked = {hop: load / capacities[hop] for hop, load in loads_bps.items() if capacities.get(hop)}
    over = sorted((hop for hop, ratio in asked.items() if ratio > 1 + 1e-9), key=lambda hop: (-asked[hop], hop))
    return tuple(
        f"hop {hop} is asked for {loads_bps[hop] / 1e9:.4g} Gbit/s and has {capacities[hop] / 1e9:.4g}: "
        f"its flows get {100 / asked[hop]:.3g} % of their demand"
        for hop in over
    )


def _shut(conditions: Conditions) -> set[str]:
    return set(conditions.avoid) | {hop for hop, rate in (conditions.capacities or {}).items() if rate <= 0}


def _blocked(paths: Iterable[Path], shut: set[str]) -> str:
    """The closed hops that stand in every way, fewest words first."""
    sets = [shut.intersection(path.hops) for path in paths]
    common = set.intersection(*sets)
    hops = " ".join(sorted(common or set.union(*sets)))
    return f"every known path crosses {'' if common else 'one of '}{hops}, which may not be used"


class Gap(msgspec.Struct, frozen=True, order=True):
    """A pair whose ports do not lead over all known ways: `missing` are those, by the links between their leaves."""

    source: str
    destination: str
    reached: int
    missing: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Which ways are missing, and what is still possible."""
        ways = "; ".join(" ".join(way) for way in self.missing)
        return (
            f"{self.source} > {self.destination}: the probed source ports reach {self.reached} of "
            f"{self.reached + len(self.missing)} ways, none leads over {ways}; "
            f"up to {self.reached} QPs of a connection can be kept apart; probe more source ports"
        )


def gaps(atlas: Atlas) -> tuple[Gap, ...]:
    """Every pair that reaches fewer ways than are known from pairs between the same two leaves.

    Pairs are between the same leaves when any of their ways have the same links between first and last hop.
    """
    inner = {pair: {path.hops[1:-1] for path in atlas.paths(*pair)} - {()} for pair in atlas.pairs}
    between: DisjointSets[tuple[str, ...]] = DisjointSets()
    for ways in filter(None, inner.values()):
        between.join(sorted(ways))
    known: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for ways in filter(None, inner.values()):
        known[between.root(min(ways))] |= ways
    missing = {pair: known[between.root(min(ways))] - ways for pair, ways in inner.items() if ways}
    return tuple(
        sorted(Gap(*pair, len(inner[pair]), tuple(sorted(lacking))) for pair, lacking in missing.items() if lacking)
    )
