"""Which components are to blame for flows that fared badly, by what the flows crossed: Bayes' rule. Pure.

If a component is to blame, nearly all that crosses it fares badly, and everything else hardly ever does. Two numbers
say how far: the share of healthy flows that fare badly, and the share of those that cross what is to blame. A
component's *gain* is how many times as likely the observations are if it is to blame than if nothing is (logarithm).
"""

import math
import statistics
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from c4bench.model.diagnosis import Component

# Source NIC and destination NIC; and the source port, where several paths between them are told apart.
Cell = tuple[str, ...]
Links = Mapping[Cell, Collection[str]]

# How much likelier a suspect is that is preferred to another, or to no fault at all (logarithm).
FAR = math.log(1000.0)
# How much less likely before (logarithm) a fault is of the path between two NICs alone, which no campaign has; of both
# sides of a NIC; and of two links, which are hardly ever the two directions of one cable.
_PATH_PRIOR, _WHOLE_PRIOR, _CABLE_PRIOR = -FAR, -math.log(10.0), -math.log(3000.0)
# Of suspects that are as likely, the ones that break more often come first.
_KINDS = ("nic", "link", "switch", "path")
_SIDES = ("tx", "rx")  # of the NICs at the ends of a cell


class Rates(NamedTuple):
    """The share of cases that are bad in health, and where what is to blame is crossed; None if that is not known."""

    healthy: float
    to_blame: float | None = None


# The chance of an error in one evaluation: 2,000 iterations of 64 ranks make 128,000 evaluations.
CHANCE = 1e-7
# A cell is bad by as much as chance allows a healthy job in one evaluation; one that is not clears what it crosses.
CELLS = Rates(CHANCE, 0.9995)


class Observation(NamedTuple):
    """A `flow` that crosses these components fared badly in `bad` of `of` cases; `rates` are of its source."""

    flow: Hashable
    crosses: frozenset[Component]
    bad: float
    of: float = 1.0
    rates: Rates = CELLS


class Row(NamedTuple):
    """The evidence against one component: its `gain`, the `flows` that cross it, and how many of their cases are bad.

    It explains `also` what crosses the other direction of its cable.
    """

    component: Component
    gain: float
    bad: float
    of: float
    flows: frozenset[Hashable]
    also: frozenset[Hashable] = frozenset()

    @property
    def explains(self) -> frozenset[Hashable]:
        """The flows that fare badly if it is to blame."""
        return self.flows | self.also


class Posterior(msgspec.Struct, frozen=True):
    """What is to blame for the bad ones of some `flows`: the `rows` of suspects, likeliest first, and of what is not.

    No packet by the same ways can tell a NIC among the suspects from `cables`.
    """

    rows: tuple[Row, ...]
    flows: frozenset[Hashable]
    cables: tuple[Row, ...] = ()
    dropped: tuple[Row, ...] = ()

    @property
    def suspects(self) -> tuple[Component, ...]:
        """The components that may be to blame."""
        return tuple(row.component for row in self.rows)

    @property
    def share(self) -> float:
        """How likely the first suspect is, if one of them is to blame; of a NIC, it or its cable."""
        first, *others = self.rows
        cable = first.component.kind == "nic" and len(first.flows) > 1
        own = [row for row in others if cable and row.component.kind == "link" and row.flows == first.flows]
        likely = {row.component: math.exp(row.gain - first.gain) for row in self.rows}
        return sum(likely[row.component] for row in [first, *own]) / sum(likely.values())


def crossed(cell: Cell, hops: Iterable[str] = ()) -> frozenset[Component]:
    """What a cell's data cross: both NICs by their sides and as wholes, the path, and links (far addresses)."""
    return _crossed(cell[0], cell[1], tuple(hops))


# Cells of a large job; they cross the same in span after span.
@lru_cache(maxsize=1 << 16)
def _crossed(source: str, destination: str, hops: tuple[str, ...]) -> frozenset[Component]:
    ends = [Component("nic", source), Component("nic", destination)]
    ends += [Component("nic", source, "tx"), Component("nic", destination, "rx")]
    return frozenset([*ends, path_component((source, destination)), *(Component("link", hop) for hop in hops)])


def path_component(cell: Cell) -> Component:
    """The path from a cell's source NIC to its destination NIC."""
    return Component("path", f"{cell[0]}>{cell[1]}")


def sides(one: Component) -> tuple[Component, ...]:
    """A NIC with either side and both; any other component as it is."""
    return tuple(Component("nic", one.name, side) for side in ("", *_SIDES)) if one.kind == "nic" else (one,)


def weigh(observations: Iterable[Observation]) -> dict[Component, Row]:
    """The evidence against every component that a bad flow crosses."""
    every = list(observations)
    suspected = {part for one in every if one.bad for part in one.crosses}
    crossing: dict[Component, list[Observation]] = {}
    for one in every:
        for part in one.crosses & suspected:
            crossing.setdefault(part, []).append(one)
    return {part: _row(part, found) for part, found in crossing.items()}


def _row(part: Component, observations: Sequence[Observation]) -> Row:
    gain, every_bad, every = _prior(part), 0.0, 0.0
    for rates in dict.fromkeys(one.rates for one in observations):
        alike = [one for one in observations if one.rates == rates]
        bad, of = sum(one.bad for one in alike), sum(one.of for one in alike)
        gain += _if_to_blame(bad, of - bad, rates.to_blame) - _chance(bad, of - bad, rates.healthy)
        every_bad, every = every_bad + bad, every + of
    return Row(part, gain, every_bad, every, frozenset(one.flow for one in observations))


def _prior(part: Component) -> float:
    """How much less likely it is before that a component is to blame than others (logarithm)."""
    if part.kind == "nic" and not part.side:
        return _WHOLE_PRIOR
    return _PATH_PRIOR if part.kind == "path" else 0.0


def _if_to_blame(bad: float, good: float, share: float | None) -> float:
    """How likely these cases are if what they cross is to blame (logarithm)."""
    if share is not None:
        return _chance(bad, good, share)
    # Any share is as likely as any other before: the mean over all of them is a Beta function.
    return math.lgamma(bad + 1) + math.lgamma(good + 1) - math.lgamma(bad + good + 2)


def _chance(bad: float, good: float, share: float) -> float:
    """How likely it is that so many cases are bad of which a `share` is (logarithm)."""
    return bad * math.log(share) + good * math.log1p(-share)


def likeliest(observations: Iterable[Observation]) -> Posterior | None:
    """The component that explains most, and all that explain the same about as well; None if it is chance.

    What the likeliest does not explain has another cause, and speaks for nothing else here.
    """
    every = list(observations)
    bad = (one for one in every if one.bad)
    apart = {one.flow: max(0.0, _row(path, [one]).gain) for one in bad for path in one.crosses if path.kind == "path"}
    best = min((row for row in _weighed(every) if _tells(row, apart)), key=_order, default=None)
    if best is None or best.gain <= FAR:
        return None
    rows = sorted(_weighed(_without_others(one, best.explains) for one in every), key=_order)
    by_component = {row.component: row for row in rows}
    telling = [row for row in rows if row.gain > best.gain - FAR and _tells(row, apart)]
    alike = [row for row in telling if not _said_by_another(row, by_component)]
    cables = [row for one in alike for row in _cable(one.component, rows)]
    dropped = [row for row in rows if row not in alike and row.component.kind != "path"]
    return Posterior(tuple(alike), best.explains, tuple(cables), tuple(dropped))


def _without_others(one: Observation, explained: frozenset[Hashable]) -> Observation:
    """An observation without the bad cases that something else is to blame for."""
    return one if one.flow in explained else one._replace(bad=0.0, of=one.of - one.bad)


def _tells(row: Row, apart: Mapping[Hashable, float]) -> bool:
    """Whether a component is far likelier than a cause of its own for each flow it explains; `apart` is by flow."""
    beside = sum(apart.get(flow, 0.0) for flow in row.explains)
    return row.component.kind == "path" or round(_evidence(row) - FAR - beside, 9) >= 0


def _weighed(observations: Iterable[Observation]) -> list[Row]:
    rows = weigh(observations).values()
    return [_with_other_direction(row, rows) for row in rows]


def _with_other_direction(row: Row, rows: Iterable[Row]) -> Row:
    """A link with another that explains flows which do not cross it: the two directions of a cable fail together."""
    if row.component.kind != "link":
        return row
    others = (one for one in rows if one.component.kind == "link" and not one.flows & row.flows)
    other = max(others, key=lambda one: one.gain, default=None)
    if other is None or other.gain <= FAR:
        return row
    return row._replace(gain=row.gain + other.gain + _CABLE_PRIOR, also=other.flows)


def _cable(nic: Component, rows: Iterable[Row]) -> list[Row]:
    """The links that exactly the flows of one side of a whole NIC cross: no packet can tell the NIC from its cable."""
    if nic.kind != "nic" or nic.side:
        return []
    own = [row.flows for row in rows if row.component in sides(nic) and row.component.side]
    return [row for row in rows if row.component.kind == "link" and row.flows in own]


def _order(row: Row) -> tuple[float, int, bool, str]:
    component = row.component
    return -round(row.gain, 9), _KINDS.index(component.kind), bool(component.side), str(component)


def _said_by_another(row: Row, rows: Mapping[Component, Row]) -> bool:
    """Whether another description of the same NIC is better: a side, or the whole where no side is."""
    if row.component.kind != "nic":
        return False
    others = [rows[one] for one in sides(row.component) if one in rows and one != row.component]
    if row.component.side:
        return any(not other.component.side and _evidence(other) >= _evidence(row) for other in others)
    return any(_evidence(other) > _evidence(row) for other in others)


def _evidence(row: Row) -> float:
    """What the observations say, whatever is likelier before."""
    return round(row.gain - _prior(row.component) - (_CABLE_PRIOR if row.also else 0.0), 9)


# Side effects of a fault stay below this share of its excess, and tell nothing of what they cross.
_SPILL = 0.5
# So does another fault that is blamed beside it: below this share its cells may only wait for the first. A component of
# at least so many cells is not that, unless it is hardly slower.
_COMPARABLE, HARDLY = 0.6, 0.1
_WHOLE_CELLS = 3


class Blame(msgspec.Struct, frozen=True):
    """What is to blame for some `cells`, which are by the median `excess` beyond normal."""

    posterior: Posterior
    cells: tuple[Cell, ...]
    excess: float

    @property
    def component(self) -> Component:
        """The likeliest suspect."""
        return self.posterior.rows[0].component

    @property
    def suspects(self) -> tuple[Component, ...]:
        """The component, and those that would explain the cells as well."""
        return self.posterior.suspects

    @property
    def alternatives(self) -> tuple[Component, ...]:
        """The others that would."""
        return self.suspects[1:]


def attribute_cells(
    excess: Mapping[Cell, float],
    links: Links | None = None,
    *,
    above: float = 0.0,
    lead: float = 0.0,
) -> list[Blame]:
    """The components to blame for cells that are slow, lossy or dead, worst first; empty when none is.

    `excess` holds every *measured* cell and how far it is beyond normal, on a scale where twice the number is twice the
    evidence (a log ratio, a count); a cell is bad `above` that. Of a bad cell whose path is not known `links` has all
    it may cross. Side effects of a fault are not blamed, nor are those of a known fault, whose cells are left out and
    go as far as `lead` beyond normal.
    """
    links = links or {}
    # Cells that share no part with a bad one decide nothing.
    left = neighbouring_cells(excess, {p for c, v in excess.items() if v > above for p in parts_of(c, links)}, links)
    blames: list[Blame] = []
    while blame := _worst(left, links, above):
        if blame.excess < _least(blame) * (blames[0].excess if blames else lead):
            break
        blames.append(blame)
        left = {cell: value for cell, value in left.items() if cell not in blame.cells}
    return sorted(blames, key=lambda blame: -blame.excess)


def _worst(excess: Mapping[Cell, float], links: Links, above: float) -> Blame | None:
    bad = {cell: value for cell, value in excess.items() if value > above}
    bar = _SPILL * max(bad.values(), default=0.0)
    kept = {cell: value for cell, value in excess.items() if cell not in bad or value > bar}
    observations = [Observation(cell, crossed(cell, links.get(cell, ())), float(cell in bad)) for cell in kept]
    posterior = likeliest(observations)
    if posterior is None or _is_one_of_many(posterior.suspects[0], bad):
        return None
    median = statistics.median(bad[cell] for cell in bad if cell in posterior.flows)
    cells = [
        cell for cell in bad if cell in posterior.flows or posterior.suspects[0] in crossed(cell, links.get(cell, ()))
    ]
    return Blame(posterior, tuple(sorted(cells)), median)


def _is_one_of_many(component: Component, bad: Iterable[Cell]) -> bool:
    """Whether other bad cells of its NICs show that a path is not all that is to blame."""
    if component.kind != "path":
        return False
    ends = component.name.split(">")
    return any((cell[0] == ends[0]) != (cell[1] == ends[1]) for cell in bad)


def _least(blame: Blame) -> float:
    return HARDLY if len(blame.cells) >= _WHOLE_CELLS else _COMPARABLE


def parts_of(cell: Cell, links: Links) -> tuple[str, ...]:
    """The NICs of a cell, and the links that it crosses."""
    return *cell[:2], *links.get(cell, ())


def neighbouring_cells(cells: Mapping[Cell, float], shared: Collection[str], links: Links) -> dict[Cell, float]:
    """The cells that any of these NICs or links is part of."""
    parts = frozenset(shared)
    return {cell: value for cell, value in cells.items() if not parts.isdisjoint(parts_of(cell, links))}
