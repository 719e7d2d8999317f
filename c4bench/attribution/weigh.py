"""Which components are to blame for flows that fared badly, by what the flows crossed: Bayes' rule. Pure.

If a component is to blame, nearly all that crosses it fares badly, and everything else hardly ever does. Two numbers
say how far: the share of healthy flows that fare badly, and the share of those that cross what is to blame. A
component's *gain* is how many times as likely the observations are if it is to blame than if nothing is (logarithm).
"""

import math
import statistics
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
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


class Observation(NamedTuple):
    """A `flow` that crosses these components fared badly in `bad` of `of` cases."""

    flow: Hashable
    crosses: frozenset[Component]
    bad: float
    of: float = 1.0


class Rates(NamedTuple):
    """The share of cases that are bad in health, and where what is to blame is crossed; None if that is not known."""

    healthy: float
    to_blame: float | None = None


class Row(NamedTuple):
    """The evidence against one component: its `gain`, and the cases of the flows that cross it.

    `flows` are those with bad cases.
    """

    component: Component
    gain: float
    bad: float
    of: float
    flows: frozenset[Hashable]


class Posterior(msgspec.Struct, frozen=True):
    """What is to blame for some bad `flows`: the `rows` of the suspects, likeliest first, and of others they cross."""

    rows: tuple[Row, ...]
    flows: frozenset[Hashable]
    dropped: tuple[Row, ...] = ()

    @property
    def suspects(self) -> tuple[Component, ...]:
        """The components that may be to blame."""
        return tuple(row.component for row in self.rows)


def crossed(cell: Cell, hops: Iterable[str] = ()) -> frozenset[Component]:
    """What a cell's data cross: both NICs by their sides and as wholes, the path, and links (far addresses)."""
    source, destination = cell[:2]
    ends = [Component("nic", source), Component("nic", destination)]
    ends += [Component("nic", source, "tx"), Component("nic", destination, "rx")]
    return frozenset([*ends, path_component(cell), *(Component("link", hop) for hop in hops)])


def path_component(cell: Cell) -> Component:
    """The path from a cell's source NIC to its destination NIC."""
    return Component("path", f"{cell[0]}>{cell[1]}")


def sides(one: Component) -> tuple[Component, ...]:
    """A NIC with either side and both; any other component as it is."""
    return tuple(Component("nic", one.name, side) for side in ("", *_SIDES)) if one.kind == "nic" else (one,)


def weigh(observations: Iterable[Observation], rates: Rates) -> dict[Component, Row]:
    """The evidence against every component that a bad flow crosses."""
    every = list(observations)
    suspected = {part for one in every if one.bad for part in one.crosses}
    crossing: dict[Component, list[Observation]] = {}
    for one in every:
        for part in one.crosses & suspected:
            crossing.setdefault(part, []).append(one)
    return {part: _row(part, found, rates) for part, found in crossing.items()}


def _row(part: Component, observations: Sequence[Observation], rates: Rates) -> Row:
    bad, of = sum(one.bad for one in observations), sum(one.of for one in observations)
    gain = _prior(part) + _if_to_blame(bad, of - bad, rates.to_blame) - _chance(bad, of - bad, rates.healthy)
    return Row(part, gain, bad, of, frozenset(one.flow for one in observations if one.bad))


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


def attribute(observations: Iterable[Observation], rates: Rates) -> list[Posterior]:
    """What is to blame, worst first: of what the first leaves unexplained the next, until all of it may be chance."""
    left, found = list(observations), list[Posterior]()
    while posterior := _likeliest(weigh(left, rates)):
        found.append(posterior)
        left = [one for one in left if one.flow not in posterior.flows]
    return found


def _likeliest(rows: Mapping[Component, Row]) -> Posterior | None:
    """The component that explains most, and all that explain some of the same about as well; None if it is chance."""
    found = sorted((_with_other_direction(row, rows.values()) for row in rows.values()), key=_order)
    if not found or found[0].gain <= FAR:
        return None
    best, by_component = found[0], {row.component: row for row in found}
    meeting = [row for row in found if row.flows & best.flows]
    alike = [row for row in meeting if row.gain > best.gain - FAR and not _said_by_another(row, by_component)]
    dropped = [row for row in meeting if row not in alike and row.component.kind != "path"]
    return Posterior(tuple(alike), best.flows, tuple(dropped))


def _with_other_direction(row: Row, rows: Iterable[Row]) -> Row:
    """A link with another that explains flows which do not cross it: the two directions of a cable fail together."""
    if row.component.kind != "link":
        return row
    others = (one for one in rows if one.component.kind == "link" and not one.flows & row.flows)
    other = max(others, key=lambda one: one.gain, default=None)
    if other is None or other.gain <= FAR:
        return row
    return row._replace(gain=row.gain + other.gain + _CABLE_PRIOR, flows=row.flows | other.flows)


def _order(row: Row) -> tuple[float, int, bool, str]:
    component = row.component
    return -round(row.gain, 9), _KINDS.index(component.kind), bool(component.side), str(component)


def _said_by_another(row: Row, rows: Mapping[Component, Row]) -> bool:
    """Whether another description of the same NIC is better: a side, or the whole where no side is."""
    if row.component.kind != "nic":
        return False
    others = [rows[one] for one in sides(row.component) if one in rows and one != row.component]
    if row.component.side:
        return any(not other.component.side and other.gain >= row.gain for other in others)
    return any(other.gain > row.gain for other in others)


# Side effects of a fault stay below this share of its excess, and tell nothing of what they cross.
_SPILL = 0.5
# So does another fault that is blamed beside it: below this share its cells may only wait for the first. A component of
# at least so many cells is not that, unless it is hardly slower.
_COMPARABLE, _HARDLY = 0.6, 0.1
_WHOLE_CELLS = 3
# A cell is bad by as much as chance allows a healthy job in one evaluation, and a few cells of what is slow are not.
CELLS = Rates(1e-7, 0.999)


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
    told = {cell: value for cell, value in excess.items() if cell not in bad or value > bar}
    observations = [Observation(cell, crossed(cell, links.get(cell, ())), float(cell in bad)) for cell in told]
    posterior = _likeliest(weigh(observations, CELLS))
    if posterior is None:
        return None
    median = statistics.median(bad[cell] for cell in bad if cell in posterior.flows)
    cells = [cell for cell in bad if cell in posterior.flows or posterior.suspects[0] in crossed(cell, links.get(cell, ()))]
    return Blame(posterior, tuple(sorted(cells)), median)


def _least(blame: Blame) -> float:
    return _HARDLY if len(blame.cells) >= _WHOLE_CELLS else _COMPARABLE


def parts_of(cell: Cell, links: Links) -> tuple[str, ...]:
    """The NICs of a cell, and the links that it crosses."""
    return *cell[:2], *links.get(cell, ())


def neighbouring_cells(cells: Mapping[Cell, float], shared: Collection[str], links: Links) -> dict[Cell, float]:
    """The cells that any of these NICs or links is part of."""
    parts = frozenset(shared)
    return {cell: value for cell, value in cells.items() if not parts.isdisjoint(parts_of(cell, links))}
