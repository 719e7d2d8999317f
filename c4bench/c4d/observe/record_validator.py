"""Read-side checks: records that are duplicated, reordered, late or torn are dropped and counted.

An agent reports its own host only: records of ranks on other hosts are dropped.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from c4bench.c4d.observe.columns import Bools, Ints
from c4bench.model.telemetry import CommRecord, NicRecord, RankRecord
from c4bench.model.window import Window

# No clock shows more seconds (thirty thousand years), no counter holds more.
LATEST_S = 1e12
_MOST = 2.0**64


class RecordValidator:
    """Decides which windows and records are valid; `dropped` counts the others by host and reason."""

    def __init__(self, dropped: defaultdict[str, Counter[str]] | None = None) -> None:
        self.dropped = defaultdict(Counter) if dropped is None else dropped
        self._latest: dict[str, tuple[int, float]] = {}

    def admit(self, window: Window) -> bool:
        """Whether `window` is whole and newer than everything its host has sent."""
        in_order = -LATEST_S < window.start_s < window.end_s < LATEST_S
        if not self._check("torn window", window.host, ok=in_order):
            return False
        if not self._check("old window", window.host, ok=self._newer(window)):
            return False
        self._latest[window.host] = (window.sequence, window.end_s)
        return True

    def admit_time(self, at_s: float) -> bool:
        """Whether the master's clock can show `at_s`; it may have been set back."""
        return self._check("torn time", "master", ok=abs(at_s) < LATEST_S)

    def admit_comm(self, record: CommRecord, host: str) -> bool:
        """Whether a communicator numbers its members from 0, seats them apart, and has one on `host`."""
        numbered = [member.rank for member in record.members] == list(range(len(record.members)))
        ranks = [member.seat for member in record.members if member.seat >= 0]
        apart = len(ranks) == len(set(ranks)) and len(ranks) in {0, len(record.members)}
        here = any(member.host == host for member in record.members)
        return self._check("torn communicator", host, ok=numbered and apart and here)

    def admit_rank(self, rank: RankRecord, host: str) -> bool:
        """Whether a process is on the host that reports it."""
        return self._check("foreign process", host, ok=rank.rank >= 0 and rank.host == host)

    def admit_nic(self, nic: NicRecord, host: str) -> bool:
        """Whether a NIC is on the host that reports it, and its counters are counts."""
        counted = all(count is None or 0 <= count < _MOST for count in nic.counters)
        return self._check("foreign NIC", host, ok=counted and nic.nic.startswith(f"{host}/"))

    def filter(self, reason: str, which: Ints, ok: Bools, hosts: Sequence[str], windows: Ints) -> Ints:
        """Keep the records `which` that are `ok`; count the others by the hosts of their windows."""
        if ok.all():
            return which
        for window in windows[which[~ok]].tolist():
            self.dropped[hosts[window]][reason] += 1
        return which[ok]

    def _check(self, reason: str, host: str, *, ok: bool) -> bool:
        if not ok:
            self.dropped[host][reason] += 1
        return ok

    def _newer(self, window: Window) -> bool:
        sequence, end_s = self._latest.get(window.host, (window.sequence - 1, window.start_s))
        # A restarted agent counts from zero again, but its time goes on.
        return window.sequence > sequence or window.start_s >= end_s
