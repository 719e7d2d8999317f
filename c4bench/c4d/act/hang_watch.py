"""Follows the hangs of one job: names what is behind a standstill once, and says when the job moves again.

So it does failures that ranks report and survive.
"""

import math

from c4bench.c4d.diagnosis import Alarmed, Finding
from c4bench.c4d.hang.failed_connections import FailedConnections
from c4bench.c4d.hang.hangs import Standstill, hang_findings, secondary_findings, standstills
from c4bench.c4d.hang.process_exits import exit_findings
from c4bench.c4d.hang.still_connections import StillConnections
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.signs.pause_storms import PauseStorms
from c4bench.c4d.thresholds import benign_stall_s, hung_after_s
from c4bench.model.diagnosis import Cause, Component
from c4bench.model.telemetry import Failure

# Causes seen at the component itself, which no other fault can imitate.
_INDEPENDENT = frozenset(
    {Cause.PROCESS_STOPPED, Cause.PROCESS_ENDED, Cause.CONNECTION_STALLED, Cause.PORT_DOWN, Cause.PAUSE_STORM}
)


class HangWatch:
    """The hangs of one job. `reported` are the components named since the present standstill began."""

    def __init__(self, view: JobView, clocks: HostClocks) -> None:
        self._view, self._clocks = view, clocks
        self.storms = PauseStorms(view, clocks)
        self._failed = FailedConnections(view, clocks)
        self._connections = StillConnections(view, clocks)
        self._alarmed_s: float | None = None
        self._unsure = False
        # Components to blame for the present hang, and when the last of them was named.
        self._hung: set[Component] = set()
        self._named_s = 0.0
        self.reported: set[Component] = set()
        # When the job moved again: connections do not all resume at once, and each standstill is timed from here.
        self._resumed_s = -math.inf

    def ingest_failure(self, comm: str, failure: Failure, at_s: float) -> None:
        """Note that a member of `comm` said at `at_s` (master's clock) that it cannot go on."""
        self._view.ingest_failure(comm, failure, at_s)
        self._failed.ingest(comm, failure, at_s)

    def evaluate_failed(self, now_s: float) -> list[Finding]:
        """Failures that ranks survived, except of what a hang has been named for."""
        findings = self._failed.evaluate(now_s)
        return [each for each in findings if self.reported.isdisjoint(each.suspects)]

    @property
    def stands_still(self) -> bool:
        """Whether the job hangs, or stands still and may yet be found to hang."""
        return bool(self._hung) or self._unsure

    def evaluate(self, now_s: float) -> list[Alarmed]:
        """New findings with the time of their alarm."""
        period_s = self._view.period_s()
        quiet = self._connections.evaluate()
        stills = standstills(self._view, self._clocks, hung_after_s(period_s, self._clocks.cadence_s()))
        if stills:
            quiet = []  # an operation that stands still shows more than its connections
        healed = not self._hung or self._healed()
        if self._hung and healed:
            self._resumed_s = now_s
        lasted_s = max((still.observed_s - max(still.since_s, self._resumed_s) for still in stills), default=0.0)
        lasting = lasted_s >= benign_stall_s(period_s)
        self._unsure = bool(stills) and not lasting
        if not stills and not quiet and not self._view.exits:
            if healed:
                self._hung.clear()
                self.reported.clear()
                self._alarmed_s = None
            return []
        findings = self._findings(stills if lasting else [], quiet, now_s)
        if self._hung and healed:
            # The job moves, and something stands still beside that: it is another hang unless the same is to blame.
            self._hung &= {finding.component for finding in findings}
            self._alarmed_s = self._alarmed_s if self._hung else None
        self._alarmed_s = self._alarmed_s or now_s
        return [(finding, self._alarmed_s) for finding in self._name(findings, now_s)]

    def _findings(self, stills: list[Standstill], quiet: list[Finding], now_s: float) -> list[Finding]:
        hangs = self._behind(stills) + quiet
        return [finding for finding, _ in self.storms.explain((hang, now_s) for hang in hangs)]

    def _behind(self, stills: list[Standstill]) -> list[Finding]:
        """Attribute standstills to processes that ended, except those between other ranks."""
        if self._view.exits:
            ended = exit_findings(self._view, self._clocks, known=bool(self._hung))
            return ended + secondary_findings(self._view, self._clocks, stills) if ended or self._hung else []
        return hang_findings(self._view, self._clocks, stills) if stills else []

    def _name(self, findings: list[Finding], now_s: float) -> list[Finding]:
        """Findings that share no suspect with a named one; during a hang only those that no other fault causes."""
        fresh = [one for one in findings if self.reported.isdisjoint(one.suspects)]
        if self._hung:
            fresh = [one for one in fresh if one.cause in _INDEPENDENT]
        if fresh:
            self._hung.update(one.component for one in fresh)
            self.reported |= self._hung
            self._named_s = now_s
        return fresh

    def _healed(self) -> bool:
        """A hang is over when its job moves again and nobody in it is dead."""
        moved_s = self._view.progress_s(self._clocks)
        return moved_s.max(initial=0.0) > self._named_s and not self._view.exits
