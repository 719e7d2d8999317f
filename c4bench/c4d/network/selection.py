"""Which blames the evidence supports: one span's weights of cells and slices decide."""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property

from c4bench.attribution.localise import Blame, Cell, Links
from c4bench.c4d.network.evidence import Weights
from c4bench.c4d.network.shared_links import shared_links
from c4bench.c4d.network.thresholds import ENOUGH
from c4bench.model.diagnosis import Component

# A row or column of this many cells needs no history: it is not just a longer path.
_WHOLE_CELLS = 3
# This many points at once are rivals: a skewed schedule makes several where transfers run into each other.
_RIVALS = 2
# The strongest evidence against two cells may begin a span later for one of them.
_AT_ONCE_SPANS = 1.5


class BlameSelection:
    """Selects among the blames of one span, which lasted `span_s`.

    `slices` returns the evidence against rows, columns and links; `knows` whether a cell has a history;
    `return_links` the links that acknowledgements of a cell may cross.
    """

    def __init__(
        self,
        weights: Weights,
        span_s: float,
        slices: Callable[[], Mapping[Component, float]],
        knows: Callable[[Cell], bool],
        return_links: Callable[[Cell], frozenset[str]],
    ) -> None:
        self._weights = weights
        self._span_s = span_s
        self._read_slices = slices
        self._knows = knows
        self._return_links = return_links

    @cached_property
    def _slices(self) -> Mapping[Component, float]:
        return self._read_slices()

    def select(self, blames: list[Blame], leaning: Mapping[Cell, float], links: Links) -> list[Blame]:
        """The blames that the evidence supports; `leaning` are the cells with any evidence against them."""
        blames = [blame for blame in self._merge_rivals(blames, links) if self._supported(blame)]
        return [blame for blame in blames if not _crosses_leaning(blame, leaning)]

    def _merge_rivals(self, blames: list[Blame], links: Links) -> list[Blame]:
        """Replace two rival points by the link they share; drop points that share none.

        A point whose acknowledgements may cross another supported blame belongs to that blame.
        """
        others = [blame for blame in blames if blame.component.kind != "path"]
        supported = [blame for blame in others if self._supported(blame)]
        points = [
            blame
            for blame in blames
            if blame not in others and not any(self._delayed_by(blame, other) for other in supported)
        ]
        if len(points) < _RIVALS:
            return [blame for blame in blames if blame in others or blame in points]
        common = shared_links(points, links, self._return_links) if self._at_once(points) else None
        return others + ([common] if common else [])

    def _delayed_by(self, point: Blame, other: Blame) -> bool:
        """Whether a point's acknowledgements may cross a link that is, or may be, to blame since the same moment."""
        hops = {one.name for one in other.suspects if one.kind == "link"}
        back = frozenset[str]().union(*map(self._return_links, point.cells)) if hops else hops
        return not hops.isdisjoint(back) and self._at_once((point, other))

    def _at_once(self, blames: Iterable[Blame]) -> bool:
        onsets_s = [self._weights.onset_s(blame) for blame in blames]
        return max(onsets_s) - min(onsets_s) <= _AT_ONCE_SPANS * self._span_s

    def _supported(self, blame: Blame) -> bool:
        """Whether the evidence against a component as a whole is enough.

        A cell or a path also needs a history: without one it may just be a longer path.
        """
        cells = [weight.of_enough for weight in self._weights.of(blame)]
        if not all(self._knows(cell) for cell in blame.cells):
            return len(cells) >= _WHOLE_CELLS and statistics.median(cells) >= ENOUGH
        if blame.component.kind == "path":
            return min(cells) >= ENOUGH
        whole = blame.component.kind == "nic" and not blame.component.side
        parts = [Component("nic", blame.component.name, side) for side in ("tx", "rx")] if whole else [blame.component]
        as_a_whole = [self._slices[part] for part in parts if part in self._slices]
        # A side that is a single cell, as in a ring, has no evidence but that cell's.
        return (max(as_a_whole) if as_a_whole else min(cells)) >= ENOUGH


def _crosses_leaning(blame: Blame, leaning: Collection[Cell]) -> bool:
    """Whether other cells of a point's row or column lean too: the point is then only where they meet most."""
    if len(blame.cells) != 1:
        return False
    (point,) = blame.cells
    return any((cell[0] == point[0]) != (cell[1] == point[1]) for cell in leaning)
