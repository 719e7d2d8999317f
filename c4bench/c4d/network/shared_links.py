"""The links that two slow paths share."""

from collections.abc import Callable, Collection, Sequence

from c4bench.attribution.localise import Blame, Cell, Links
from c4bench.c4d.thresholds import BEYOND_SHARING
from c4bench.model.diagnosis import Component

# Of more points at once none can be told to share one link.
_POINTS = 2


def shared_links(points: Sequence[Blame], links: Links, returning: Callable[[Cell], Collection[str]]) -> Blame | None:
    """The links that two bad paths may share: they carry data of one and possibly acknowledgements of the other.

    `returning` are the links that acknowledgements of a cell may take. None where there is no such link, where their
    data share one, or where they are no slower than transfers that run into a few others: nothing is wrong with that.
    """
    if len(points) != _POINTS or any(point.excess < BEYOND_SHARING for point in points):
        return None
    first, second = (point.cells[0] for point in points)
    if not set(links.get(first, ())).isdisjoint(links.get(second, ())):
        return None
    elsewhere = {hop for cell, hops in links.items() if cell not in (first, second) for hop in hops}
    shared = [
        Component("link", hop)
        for sent, answered in ((first, returning(second)), (second, returning(first)))
        for hop in links.get(sent, ())
        if hop in answered and hop not in elsewhere
    ]
    excess = min(point.excess for point in points)
    return Blame(shared[0], (first, second), excess, tuple(shared[1:])) if shared else None
