"""How far what is healthy departs from its floor, and for how long, as chances."""

import bisect
import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from c4bench.c4d.thresholds import TAIL_POWER

# Departures below this are a clock's resolution; so many of them tell enough of how healthy cells depart.
_RESOLUTION = 1e-3
_POOL = 4096
_HIGH = 0.8


class HealthyDepartures:
    """How far healthy suspects depart, and for how long, from what they did in consecutive spans."""

    def __init__(self, spans: Sequence[Mapping[Any, float]]) -> None:
        self._own: dict[Any, list[float]] = {}
        for span in spans:
            for suspect, value in span.items():
                bisect.insort(self._own.setdefault(suspect, []), value)
        self._pool = sorted(itertools.islice((value for span in spans for value in span.values()), _POOL))
        self._persistence = _persistence(spans, self._quantile(_HIGH))

    @property
    def seen(self) -> int:
        """How many departures are known."""
        return len(self._pool)

    @property
    def high(self) -> float:
        """What four in five departures do not reach."""
        return self._quantile(_HIGH)

    @property
    def middle(self) -> float:
        """The usual departure."""
        return self._quantile(0.5)

    def _quantile(self, share: float) -> float:
        return self._pool[int(share * (len(self._pool) - 1))] if self._pool else 0.0

    def chance(self, suspect: Hashable, departure: float, spans: int) -> float:
        """The chance to depart by `departure` (> 0) or more `spans` times in a row; 1 before anything is known.

        Beyond all that was seen the chance is taken to fall with a power, a heavy tail, to be safe. Transfers that meet
        once go on meeting, so it is persistence and not the chance to begin that each further span costs; or, where
        that is more, how often `suspect` departs so far: transfers meet more often on one link than on another.
        """
        if not self._pool:
            return 1.0
        beyond = len(self._pool) - bisect.bisect_left(self._pool, departure)
        rarity = min(1.0, max(self._pool[-1], _RESOLUTION) / departure) ** TAIL_POWER
        begun = (beyond + 1) / (len(self._pool) + 1)
        again = max(begun, self._persistence, self._habit(suspect, departure))
        return rarity**spans * begun * again ** (spans - 1)

    def _habit(self, suspect: Hashable, departure: float) -> float:
        """How often it departs so far; 0 where nothing is known of it."""
        own = self._own.get(suspect)
        return (len(own) - bisect.bisect_left(own, departure) + 1) / (len(own) + 2) if own else 0.0


def _persistence(spans: Sequence[Mapping[Any, float]], high: float) -> float:
    """How often what was high in one span is so in the next."""
    followed = [
        after[suspect] >= high
        for before, after in itertools.pairwise(spans)
        for suspect, value in before.items()
        if value >= high and suspect in after
    ]
    return min(0.9, (sum(followed) + 1) / (len(followed) + 2)) if followed else 0.5
