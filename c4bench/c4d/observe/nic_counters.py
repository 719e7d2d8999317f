"""NIC telemetry: port states, and counters of lost, marked and stopped packets."""

from collections import deque
from itertools import pairwise
from typing import NamedTuple, Self

from c4bench.c4d.thresholds import KEPT
from c4bench.model.telemetry import NicRecord

# States of a port. A disabled one was switched off on the host; one without a carrier (`polling`) may have lost it to
# its cable or to the switch.
_UP = "linkup"
OFF = "disabled"


class Counts(NamedTuple):
    """Retransmissions, packets that arrived out of sequence, and duplicates."""

    retransmits: int = 0
    out_of_sequence: int = 0
    duplicates: int = 0

    @classmethod
    def of(cls, record: NicRecord) -> Self:
        """Those of a record; 0 for what its driver does not count."""
        return cls(record.retransmits or 0, record.out_of_sequence or 0, record.duplicates or 0)

    def since(self, before: "Counts") -> "Counts":
        """The increase since `before`; counters that a driver has reset count from 0."""
        pairs = zip(self, before, strict=True)
        return Counts(*(now - then if now >= then else now for now, then in pairs))


class NicView:
    """A NIC's latest record and its history; times are those of `host`.

    `fell_s` is when it was last seen to go down, `fell_to` the state it was in then, `grew_s` when it was last seen to
    have counted something.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.state = ""
        self.fell_s: float | None = None
        self.fell_to = ""
        self.grew_s: float | None = None
        self._records: deque[tuple[float, NicRecord]] = deque(maxlen=KEPT)

    @property
    def newest(self) -> NicRecord | None:
        """The latest record; None before any."""
        return self._records[-1][1] if self._records else None

    def ingest(self, record: NicRecord, end_s: float) -> None:
        """Ingest a record at the end of a window."""
        if record.state not in ("", _UP) and self.state in ("", _UP):
            self.fell_s, self.fell_to = end_s, record.state
        self.state = record.state
        if self._records and Counts.of(record) != Counts.of(self._records[-1][1]):
            self.grew_s = end_s
        self._records.append((end_s, record))

    def grown(self, since_s: float) -> Counts:
        """The increase since the last record up to `since_s`."""
        if not self._records:
            return Counts()
        return Counts.of(self._records[-1][1]).since(Counts.of(self._last(since_s)[1]))

    def growth(self, counter: str, since_s: float) -> tuple[int, float] | None:
        """How much a counter of `NicRecord` has grown, and in how long (s), since the last record up to `since_s`.

        None where the NIC does not count it, or has reset it.
        """
        if not self._records or getattr(self._records[-1][1], counter) is None:
            return None
        (before_s, before), (now_s, now) = self._last(since_s), self._records[-1]
        first, last = getattr(before, counter), getattr(now, counter)
        return None if first is None or last < first else (last - first, now_s - before_s)

    def pace(self, counter: str, since_s: float) -> float:
        """How fast a counter of `NicRecord` has grown since then, 1/s; 0 where it is not counted, or did not grow.

        Drivers are asked less often than there are records, so only those in which it has grown tell when. What has
        begun a while after `since_s` is also measured from the first of these on.
        """
        first_s, _ = self._last(since_s) if self._records else (since_s, None)
        values = [(at_s, getattr(record, counter)) for at_s, record in self._records if at_s >= first_s]
        if any(value is None for _, value in values):
            return 0.0
        grown = [later for earlier, later in pairwise(values) if later[1] > earlier[1]]
        paces = [
            (grown[-1][1] - value) / (grown[-1][0] - at_s) for at_s, value in [*values[:1], *grown[:-1][:1]] if grown
        ]
        return float(max(paces, default=0.0))

    def _last(self, until_s: float) -> tuple[float, NicRecord]:
        """The last record up to `until_s`, or the first one that is kept."""
        return next((one for one in reversed(self._records) if one[0] <= until_s), self._records[0])
