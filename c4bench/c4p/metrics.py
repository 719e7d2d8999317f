"""How even a placement is: link loads, and the KPIs MMR and JFI of draft-calabria-bmwg-ai-fabric-training-bench."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from c4bench.errors import UsageError
from c4bench.model.fabric import Flow, Placement


def link_loads(
    flows: Iterable[Flow], placements: Iterable[Placement], capacities: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Offered load by hop, over the hops that carry a flow, or over all of `capacities` where they are given.

    Without `capacities` (bit/s by hop) loads are in bit/s, with them they are fractions, above 1 where contended.
    """
    demand = {flow.id: flow.demand_bps for flow in flows}
    loads = dict.fromkeys(capacities or (), 0.0)
    for placement in placements:
        for hop in placement.path.hops:
            loads[hop] = loads.get(hop, 0.0) + demand[placement.flow]
    if capacities is None:
        return loads
    return {hop: _fraction(load, hop, capacities) for hop, load in loads.items()}


def max_mean_ratio(values: Sequence[float]) -> float:
    """MMR: the greatest over the mean; 1.0 is perfectly even. NaN without values or without load.

    Its inputs are the loads of links that could replace each other, such as one tier's uplinks.
    """
    mean = float(np.mean(values)) if len(values) else 0.0
    return max(values) / mean if mean else float("nan")


def jain_index(values: Sequence[float]) -> float:
    """JFI: (sum x)^2 / (n sum x^2); 1.0 is perfectly even, 1/n is all on one (Jain, Chiu, Hawe: DEC TR-301, 1984).

    NaN without values or without load.
    """
    x = np.asarray(values, dtype=float)
    peak = x.max(initial=0.0)
    if peak <= 0.0:
        return float("nan")
    # Scaled first: squares of bit rates or of tiny fractions would lose digits or underflow.
    x = x / peak
    return float(x.sum() ** 2 / (x.size * np.square(x).sum()))


def _fraction(load: float, hop: str, capacities: Mapping[str, float]) -> float:
    if hop not in capacities:
        raise UsageError(f"hop {hop} has no capacity; give the rate of every link that a path crosses")
    return load / capacities[hop] if load else 0.0
