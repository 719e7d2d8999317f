"""Small departures that stay: what one span cannot show for its scatter, several in a row can."""

import math
from collections import deque
from collections.abc import Mapping

import msgspec

from c4bench.c4d.localise import Cell
from c4bench.c4d.thresholds import STEADY_SPANS


class _Seen(msgspec.Struct, frozen=True):
    opened_s: float
    departure: float


class Steady:
    """The last few departures of every cell from its own history (log ratios, what all cells share taken out)."""

    def __init__(self) -> None:
        self._recent: dict[Cell, deque[_Seen]] = {}

    def add(self, departures: Mapping[Cell, float], opened_s: float) -> None:
        """Take in a span that opened at `opened_s`."""
        for cell, departure in departures.items():
            self._recent.setdefault(cell, deque(maxlen=STEADY_SPANS)).append(_Seen(opened_s, departure))

    def least(self, cell: Cell) -> float:
        """The smallest of a cell's last departures; 0 while there are too few."""
        seen = self._recent.get(cell, ())
        return max(0.0, min(one.departure for one in seen)) if len(seen) == STEADY_SPANS else 0.0

    def onset_s(self, cells: Mapping[Cell, float]) -> float:
        """When the first of these departures began."""
        return min((self._recent[cell][0].opened_s for cell in cells if cell in self._recent), default=math.inf)
