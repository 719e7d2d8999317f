"""Localises faults: which components are to blame for the bad cells of a source x destination matrix.

The fewest components that explain the bad cells without being contradicted by good ones: greedy set cover over rows
(a NIC's transmitter), columns (its receiver), crosses (the whole NIC) and points (a path), as in C4's delay matrix; and
over links, where it is known which cells cross them.
"""

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Set

import msgspec

from c4bench.model.diagnosis import Component

# Source NIC and destination NIC; and the source port, where several paths between them are told apart.
Cell = tuple[str, ...]
Links = Mapping[Cell, Collection[str]]

# A component explains bad cells only if at least this share of its cells is bad.
_PURITY = 0.75
# Side effects of a fault (skewed schedules make transfers overlap) stay below this share of its excess.
_COMPARABLE = 0.6
# Another fault's side effects never reach so many cells of a whole row, column or link that it looks faulty itself.
_WHOLE_CELLS = 3
_COMPARABLE_WHOLE = 0.1
_SPILL = 0.5
# A row, column or link explains at least two bad cells; a single one is a path.
_SEVERAL = 2
_SIDES = ("tx", "rx")  # of the NICs at the ends of a cell


class Blame(msgspec.Struct, frozen=True):
    """A component and the bad cells it explains; `alternatives` would explain them as well."""

    component: Component
    cells: tuple[Cell, ...]
    excess: float
    alternatives: tuple[Component, ...] = ()

    @property
    def suspects(self) -> tuple[Component, ...]:
        """The component and its alternatives."""
        return (self.component, *self.alternatives)


def path_component(cell: Cell) -> Component:
    """The path from a cell's source NIC to its destination NIC."""
    return Component("path", f"{cell[0]}>{cell[1]}")


def localise(
    excess: Mapping[Cell, float], bar: float = 0.0, links: Links | None = None, lead: float = 0.0
) -> list[Blame]:
    """The components to blame, worst first; empty when nothing is bad or the cells do not yet decide.

    `excess` holds every *measured* cell and how far it is beyond normal, on a scale where twice the number is twice the
    evidence (a log ratio, a count); a cell is bad above `bar`. A point whose row or column holds no other measured cell
    cannot be told from that row or column: they are named as alternatives, and so are the `links` (by the address of
    their far end) that no other measured cell crosses. Of a bad cell whose path is not known `links` has all it may
    cross. The bad cells of one pair of NICs are a point together. Side effects of a fault are not blamed, nor are those
    of a known fault, whose cells are left out and go as far as `lead` beyond normal.
    """
    bad = {cell: value for cell, value in excess.items() if value > bar}
    links = links or {}
    # Cells that share no part with a bad one decide nothing.
    known = neighbouring_cells(excess, {part for cell in bad for part in parts_of(cell, links)}, links)
    suspects = _Suspects(known, bad, links)
    blames: list[Blame] = []
    while suspects.bad:
        blame = suspects.worst_shared() or suspects.worst_point()
        if blame is None or blame.excess < _comparable(blame) * (blames[0].excess if blames else lead):
            break
        blames.append(blame)
        suspects.remove(blame.cells)
    return sorted(blames, key=lambda blame: -blame.excess)


def parts_of(cell: Cell, links: Links) -> tuple[str, ...]:
    """The NICs of a cell, and the links that it crosses."""
    return *cell[:2], *links.get(cell, ())


def neighbouring_cells(cells: Mapping[Cell, float], shared: Set[str], links: Links) -> dict[Cell, float]:
    """The cells that any of these NICs or links is part of."""
    return {cell: value for cell, value in cells.items() if not shared.isdisjoint(parts_of(cell, links))}


def _comparable(blame: Blame) -> float:
    return _COMPARABLE_WHOLE if len(blame.cells) >= _WHOLE_CELLS else _COMPARABLE


class _Suspects:
    """What `bad` cells may have in common, and which of the `known` cells are part of that; blames take theirs out."""

    def __init__(self, known: dict[Cell, float], bad: dict[Cell, float], links: Links) -> None:
        self.bad = bad
        self._known = known
        self._links = {cell: _in_order(links.get(cell, ())) for cell in known}
        self._groups = _groups(known) | _crossing(self._links)
        self._places = {component: place for place, component in enumerate(self._groups)}
        self._blames: dict[Component, Blame] = {}
        # How many bad cells each has, and how many cells blames have taken out of it.
        self._bad_of = Counter(part for cell in bad for part in self._parts(cell))
        self._gone = Counter[Component]()
        self._weigh(self._bad_of)

    def remove(self, cells: Collection[Cell]) -> None:
        """Remove explained cells, and weigh the other components on their paths again."""
        self._bad_of.subtract(part for cell in cells if cell in self.bad for part in self._parts(cell))
        gone = Counter(part for cell in cells for part in self._parts(cell))
        self._gone.update(gone)
        for cell in cells:
            self.bad.pop(cell, None)
            self._known.pop(cell, None)
        self._weigh(gone)

    def _weigh(self, parts: Iterable[Component]) -> None:
        for part in parts:
            self._blames.pop(part, None)
            if part in self._groups and self._may_explain(part):
                blame = _explains(part, self._of(part), self._known, self.bad)
                if blame:
                    self._blames[part] = blame

    def _may_explain(self, part: Component) -> bool:
        """Decide by counts alone: most parts of a bad cell have many good cells, which need no closer look."""
        bad, left = self._bad_of[part], len(self._groups[part]) - self._gone[part]
        return bad >= _SEVERAL and bad >= _PURITY * left

    def _of(self, part: Component) -> list[Cell]:
        return [cell for cell in self._groups[part] if cell in self._known]

    def _parts(self, cell: Cell) -> Iterator[Component]:
        for nic, side in zip(cell, _SIDES, strict=False):
            yield Component("nic", nic, side)
            yield Component("nic", nic)
        for hop in self._links[cell]:
            yield Component("link", hop)

    def worst_shared(self) -> Blame | None:
        """The NIC side or link that explains most bad cells, of at least two paths, and hardly any good ones."""
        blames = [self._blames[part] for part in sorted(self._blames, key=self._places.__getitem__)]
        best = max(blames, key=lambda blame: (len(blame.cells), blame.excess), default=None)
        if best is None:
            return None
        twins = [blame.component for blame in blames if blame.cells == best.cells and blame is not best]
        if best.component.kind == "nic" and not best.component.side and len(best.cells) == _SEVERAL:
            twins += self._elsewhere(best.cells)
        return msgspec.structs.replace(best, alternatives=tuple(twins))

    def _elsewhere(self, cells: tuple[Cell, ...]) -> list[Component]:
        """Where else a NIC's only inbound and only outbound path may meet: data of one, acknowledgements of the other.

        The path of acknowledgements is not known.
        """
        by_excess = sorted(cells, key=lambda cell: -self._known[cell])
        hops = dict.fromkeys(hop for cell in by_excess for hop in self._links[cell])
        return [path_component(cell) for cell in by_excess] + self._own(hops, cells)

    def worst_point(self) -> Blame | None:
        """The worst cell, if the rest of its row and column are clearly better; None if that is undecided."""
        cell = max(self.bad, key=lambda key: (self.bad[key], key))
        worst = self.bad[cell]
        point = tuple(sorted(c for c, value in self.bad.items() if c[:2] == cell[:2] and value > _SPILL * worst))
        sides = [Component("nic", nic, side) for nic, side in zip(cell, _SIDES, strict=False)]
        beside = [[self._known[other] for other in self._of(side) if other not in point] for side in sides]
        if any(value > _SPILL * worst for values in beside for value in values):
            return None
        alone = [side for side, values in zip(sides, beside, strict=True) if not values]
        crossed = [hop for hop in self._links[cell] if all(hop in self._links[other] for other in point)]
        return Blame(path_component(cell), point, worst, (*alone, *self._own(crossed, point)))

    def _own(self, hops: Iterable[str], cells: Collection[Cell]) -> list[Component]:
        """Those of the links that no other known cell crosses."""
        links = [Component("link", hop) for hop in hops]
        return [link for link in links if all(cell in cells or cell not in self._known for cell in self._groups[link])]


def _in_order(hops: Collection[str]) -> tuple[str, ...]:
    """Links in the order of the path; sorted where only the set is known, as the order of a set varies."""
    return hops if isinstance(hops, tuple) else tuple(sorted(hops))


def _groups(cells: Iterable[Cell]) -> dict[Component, list[Cell]]:
    rows: dict[str, list[Cell]] = {}
    columns: dict[str, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(cell[0], []).append(cell)
        columns.setdefault(cell[1], []).append(cell)
    sides = {Component("nic", nic, "tx"): row for nic, row in rows.items()}
    sides |= {Component("nic", nic, "rx"): column for nic, column in columns.items()}
    # Both sides at once say "the NIC" only where each side is seen bad; _explains sees to that.
    return sides | {Component("nic", nic): row + columns[nic] for nic, row in rows.items() if nic in columns}


def _crossing(links: Links) -> dict[Component, list[Cell]]:
    crossing: dict[str, list[Cell]] = {}
    for cell, hops in links.items():
        for hop in hops:
            crossing.setdefault(hop, []).append(cell)
    return {Component("link", hop): crossing[hop] for hop in sorted(crossing)}


def _explains(
    component: Component, cells: list[Cell], known: Mapping[Cell, float], bad: Mapping[Cell, float]
) -> Blame | None:
    explained = [cell for cell in cells if cell in bad]
    # Several cells between the same two NICs are one path.
    if len({cell[:2] for cell in explained}) < _SEVERAL or len(explained) < _PURITY * len(cells):
        return None
    values = sorted(bad[cell] for cell in explained)
    # Of two the lesser may be what waits in the queue behind the greater.
    if len(values) == 2 and values[0] < _SPILL * values[1]:
        return None
    if component.kind == "nic" and not component.side and not _both_sides(component.name, cells, bad):
        return None
    covered = tuple(sorted(cell for cell in cells if known[cell] > 0))
    return Blame(component, covered, statistics.median(bad[cell] for cell in explained))


def _both_sides(nic: str, cells: list[Cell], bad: Mapping[Cell, float]) -> bool:
    sent = [cell in bad for cell in cells if cell[0] == nic]
    received = [cell in bad for cell in cells if cell[1] == nic]
    return all(side and sum(side) >= _PURITY * len(side) for side in (sent, received))
