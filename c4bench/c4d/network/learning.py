"""Learn what is normal from spans that have shown to open no departure."""

from collections import deque

from c4bench.attribution.localise import Cell, Links
from c4bench.c4d.network.cell_index import CellValues
from c4bench.c4d.network.delay_baseline import DelayBaseline
from c4bench.c4d.network.nic_utilisation import NicUtilisation
from c4bench.c4d.network.thresholds import UNSURE_SPANS


class SpanLearner:
    """Holds the latest spans back from the baselines until later spans have shown that they were healthy."""

    def __init__(self, baseline: DelayBaseline, utilisation: NicUtilisation) -> None:
        self._baseline = baseline
        self._utilisation = utilisation
        self._unsure: deque[CellValues] = deque()

    def learn(self, cells: CellValues, doubted: set[Cell], links: Links) -> None:
        """Add a span (seconds per byte) without its `doubted` cells; learn the oldest, at once while few are known."""
        self._unsure.append(cells.pick(~cells.among(doubted)))
        self.forget(doubted)
        while len(self._unsure) > UNSURE_SPANS or (self._unsure and not self._baseline.settled()):
            clean = self._unsure.popleft()
            self._baseline.learn(clean, links)
            self._utilisation.learn(clean)

    def forget(self, cells: set[Cell]) -> None:
        """Drop what these cells have shown in the spans held back."""
        if cells:
            self._unsure = deque(unsure.pick(~unsure.among(cells)) for unsure in self._unsure)
