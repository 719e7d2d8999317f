"""Small departures that stay: what one span cannot show for its scatter, several in a row can."""

import math
from collections import deque
from collections.abc import Iterable, Mapping

from c4bench.c4d.localise import Cell
from c4bench.c4d.thresholds import STEADY_RATIO, STEADY_SPANS

_LEAST = math.log(STEADY_RATIO)


class Steady:
    """The cells that depart from their own history (log ratio, what all cells share taken out), span after span."""

    def __init__(self) -> None:
        self._runs: dict[Cell, deque[tuple[float, float]]] = {}

    def add(self, departures: Mapping[Cell, float], opened_s: float) -> None:
        """Take in a span that opened at `opened_s`; a cell that does not depart in it begins anew."""
        for cell, departure in departures.items():
            if departure > _LEAST:
                self._runs.setdefault(cell, deque(maxlen=STEADY_SPANS)).append((departure, opened_s))
            elif cell in self._runs:
                del self._runs[cell]

    def lasting(self) -> dict[Cell, float]:
        """The smallest of the last departures of every cell that has departed for long enough."""
        return {cell: min(run)[0] for cell, run in self._runs.items() if len(run) == STEADY_SPANS}

    def onset_s(self, cells: Iterable[Cell]) -> float:
        """When the first of these departures began."""
        return min((self._runs[cell][0][1] for cell in cells if cell in self._runs), default=math.inf)
