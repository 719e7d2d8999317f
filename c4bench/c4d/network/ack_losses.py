"""Acknowledgements that are lost now and then: the cause lies on the return path.

The sender waits, then retransmits what has arrived. In between the path is healthy, so spans without loss clear
nothing.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from c4bench.attribution.localise import Cell, Links, localise
from c4bench.c4d.network.loss_blames import between_partners
from c4bench.c4d.network.packet_loss import PacketLoss
from c4bench.c4d.network.thresholds import NAME_SPANS, SLIGHT
from c4bench.c4d.thresholds import CHANCE

# Missed acknowledgements that lie further back say nothing about the present.
_KEPT_SPANS = 24


class AckLossDetector:
    """Follows a job's cells span by span; `chance` returns how likely a healthy one departs so far in so many spans."""

    def __init__(self, chance: Callable[[Cell, float, int], float]) -> None:
        self._chance = chance
        self._spans: deque[tuple[float, Mapping[Cell, float]]] = deque(maxlen=_KEPT_SPANS)

    def add(self, departures: Mapping[Cell, float], missed: Iterable[Cell], opened_s: float) -> None:
        """Add a span that opened at `opened_s`: departures (log ratios), cells that `missed` acknowledgements."""
        self._spans.append((opened_s, {cell: departures[cell] for cell in missed if cell in departures}))

    def __bool__(self) -> bool:
        """Whether any acknowledgement was missed in the last few spans."""
        return any(cells for _, cells in self._spans)

    def find(self, return_links: Callable[[Cell], Collection[str]]) -> list[PacketLoss]:
        """The components that lose acknowledgements; `return_links` are the links that those of a cell may cross."""
        slowed: dict[Cell, list[tuple[float, float]]] = {}
        for opened_s, cells in self._spans:
            for cell, departure in cells.items():
                slowed.setdefault(cell, []).append((departure, opened_s))
        slow = {
            cell: spans for cell, spans in slowed.items() if self._slow(cell, [departure for departure, _ in spans])
        }
        explained = between_partners(slow.keys(), slowed.keys())
        slow = {cell: spans for cell, spans in slow.items() if cell not in explained}
        if not slow:
            return []
        back: Links = {(cell[1], cell[0]): sorted(return_links(cell)) for cell in slow}
        onset_s = min(spans[0][1] for spans in slow.values())
        return [PacketLoss(blame, onset_s, 0) for blame in localise(dict.fromkeys(back, 1.0), links=back)]

    def _slow(self, cell: Cell, departures: Collection[float]) -> bool:
        """Whether a cell was slower whenever acknowledgements were lost, more than by chance."""
        least = min(departures)
        return len(departures) >= NAME_SPANS and least > SLIGHT and self._chance(cell, least, len(departures)) < CHANCE
