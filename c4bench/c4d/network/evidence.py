"""How unlikely it is that healthy cells would do what they have done, span after span."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from c4bench.c4d.thresholds import CHANCE, NAME_SPANS, SLIGHT_RATIO

SLIGHT = math.log(SLIGHT_RATIO)
_ENOUGH = -math.log(CHANCE)
_RUN_SPANS = 24
_NIL = 1e-300  # what is less likely still cannot be told from it


Suspect = TypeVar("Suspect")


class Weight(NamedTuple):
    """What speaks against a suspect (1 is enough), and in which spans: how far it departed at least, since when."""

    of_enough: float
    least: float
    onset_s: float
    spans: int


class Evidence(Generic[Suspect]):
    """The cells, or the rows and columns, that have departed from their floors in each of their last spans.

    A slow component raises the least that a transfer takes, chance meetings of transfers do not: one span near its
    floor clears a cell. `chance` tells how likely a healthy suspect departs by so much in so many spans in a row.
    Strangers, without a floor of their own, depart from their peers, and as many spans as it takes to name something
    speak for all.
    """

    def __init__(self, chance: Callable[[Suspect, float, int], float]) -> None:
        self._chance = chance
        self._runs: dict[Suspect, deque[tuple[float, float]]] = {}
        self._without_history: Mapping[Suspect, float] = {}

    def add(
        self, departures: Mapping[Suspect, float], without_history: Mapping[Suspect, float], opened_s: float
    ) -> None:
        """Take in the departures (log ratios) of a span that opened at `opened_s`, those of strangers apart."""
        self._without_history = without_history
        for cell, departure in {**departures, **without_history}.items():
            if departure > SLIGHT:
                self._runs.setdefault(cell, deque(maxlen=_RUN_SPANS)).append((departure, opened_s))
            else:
                self._runs.pop(cell, None)

    def forget(self, suspect: Suspect) -> None:
        """What it did so far is explained."""
        self._runs.pop(suspect, None)

    def clear(self) -> None:
        """All that any did so far is explained."""
        self._runs.clear()
        self._without_history = {}

    def departing(self) -> set[Suspect]:
        """Those that departed when last measured."""
        return set(self._runs)

    def weights(self) -> dict[Suspect, Weight]:
        """What speaks against each suspect that departs at all."""
        return {
            suspect: Weight(len(run) / NAME_SPANS, *run[-1], len(run))
            if suspect in self._without_history
            else self._weigh(suspect, run)
            for suspect, run in self._runs.items()
        }

    def _weigh(self, suspect: Suspect, run: deque[tuple[float, float]]) -> Weight:
        """By the last few spans that say most: earlier ones may be chance."""
        best, least = Weight(0.0, 0.0, math.inf, 0), math.inf
        for spans, (departure, opened_s) in enumerate(reversed(run), start=1):
            least = min(least, departure)
            of_enough = -math.log(max(self._chance(suspect, least, spans), _NIL)) / _ENOUGH
            if of_enough > best.of_enough:
                best = Weight(of_enough, least, opened_s, spans)
        return best
