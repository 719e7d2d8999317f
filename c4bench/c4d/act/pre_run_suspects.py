"""Suspects before a run: the NIC, its side or the path that a survey of all pairs shows to be bad."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping

import msgspec

from c4bench.attribution.weigh import Blame, Cell, attribute_cells

# A transfer that never ended counts as this many times worse than others: finite, so that medians can be taken.
_DEAD = 1000.0


class Suspect(msgspec.Struct, frozen=True):
    """A component, how many times as bad as the others its transfers are, by how many of them; `kind` says of what."""

    kind: str
    component: str
    times: float
    transfers: int
    alternatives: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A line for reports."""
        much = "dead" if self.times >= _DEAD / 2 else f"{self.times:.2f} times the others'"
        other = f" (or {', '.join(self.alternatives)})" if self.alternatives else ""
        return f"{self.component}{other}: {self.kind} {much}, in {self.transfers} transfers"


def find_suspects(
    kind: str,
    costs: Mapping[Cell, float],
    *,
    times: float,
    group: Callable[[Cell], object] = lambda _: None,
) -> list[Suspect]:
    """The components whose transfers cost more than `times` what is typical, worst first.

    `costs` are positive by (source NIC, destination NIC), such as seconds a byte or a round trip's seconds, infinite
    where nothing arrived. What is typical is the median of those in the same `group`: pairs under one switch are not
    compared with pairs across the fabric.
    """
    usual = _medians(costs, group)
    excess = {cell: math.log(min(cost / usual[group(cell)], _DEAD)) for cell, cost in costs.items()}
    return [_suspect(kind, blame) for blame in attribute_cells(excess, above=math.log(times))]


def _medians(costs: Mapping[Cell, float], group: Callable[[Cell], object]) -> dict[object, float]:
    by_group: dict[object, list[float]] = {}
    for cell, cost in costs.items():
        by_group.setdefault(group(cell), []).append(cost)
    return {key: _finite_median(values) for key, values in by_group.items()}


def _finite_median(costs: Iterable[float]) -> float:
    finite = [cost for cost in costs if math.isfinite(cost)]
    return statistics.median(finite) if finite else 1.0


def _suspect(kind: str, blame: Blame) -> Suspect:
    others = tuple(str(component) for component in blame.alternatives)
    return Suspect(kind, str(blame.component), math.exp(blame.excess), len(blame.cells), others)
