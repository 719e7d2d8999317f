"""The log of what C4P plans: changes of paths and weights by reason, and its remarks."""

import logging
from collections import Counter
from collections.abc import Sequence

_logger = logging.getLogger(__name__)

# Repeated for as long as a connection is tuned, so logged at DEBUG.
TUNING = "weights follow completion times"


class PlanLog:
    """Counts changes of paths and weights by reason; `report` logs one line for each reason."""

    def __init__(self) -> None:
        self._noted = 0
        self._changes: Counter[str] = Counter()
        self._remarks = 0

    def note(self, changes: int, why: str) -> None:
        """Count changes for a reason; `changes` is the total so far."""
        if changes != self._noted:
            self._changes[why] += changes - self._noted
            self._noted = changes

    def report(self, remarks: Sequence[str]) -> None:
        """Log the changes and remarks since the last report; `remarks` are all so far."""
        for why, count in self._changes.items():
            level = logging.DEBUG if why == TUNING else logging.INFO
            _logger.log(level, "%d changes of paths or weights: %s", count, why, extra={"changes": count, "why": why})
        self._changes.clear()
        for remark in remarks[self._remarks :]:
            _logger.warning("%s", remark)
        self._remarks = len(remarks)
