"""The detector's state machine: windows in, diagnoses out, each once until it heals."""

from collections.abc import Mapping

from c4bench.c4d.clocks import HostClocks
from c4bench.c4d.hangs import (
    Standstill,
    death_verdict,
    first_death,
    last_progress_s,
    standstill_verdicts,
    standstills,
)
from c4bench.c4d.intake import Intake
from c4bench.c4d.lateness import Late, Lateness
from c4bench.c4d.ledger import CommView, JobView, Ledger
from c4bench.c4d.localise import Cell
from c4bench.c4d.slowness import SlowNetwork
from c4bench.c4d.thresholds import hung_after_s, span_s
from c4bench.c4d.verdict import Verdict, rank_component
from c4bench.model.diagnosis import Diagnosis, Syndrome
from c4bench.model.telemetry import Window


class JobDetector:
    """Follows one job. A hang silences the slowness judgements: whatever is slow then is slow because of it."""

    def __init__(self, view: JobView, clocks: HostClocks) -> None:
        self._view = view
        self._clocks = clocks
        self._network = SlowNetwork()
        self._lateness: dict[str, Lateness] = {}
        self._alarmed_s: float | None = None
        self._hang: Verdict | None = None
        self._hang_named_s = 0.0

    @property
    def cells(self) -> Mapping[Cell, float]:
        """The newest delay matrix, seconds per byte."""
        return self._network.cells

    def judge(self, now_s: float) -> list[Diagnosis]:
        """New findings at `now_s`, the master's clock."""
        hangs = self._judge_hangs(now_s)
        if hangs or self._hang is not None:
            return hangs
        return self._judge_lateness(now_s) + self._judge_network(now_s)

    def _judge_hangs(self, now_s: float) -> list[Diagnosis]:
        if self._hang is not None:
            self._heal()
            return []
        hung_s = hung_after_s(self._view.period_s(), self._clocks.cadence_s())
        stalls = standstills(self._view, self._clocks, hung_s)
        if not stalls and first_death(self._view, self._clocks) is None:
            self._alarmed_s = None
            return []
        if self._alarmed_s is None:
            self._alarmed_s = now_s
        verdicts = self._hang_verdicts(stalls)
        if verdicts:
            self._hang, self._hang_named_s = verdicts[0], now_s
        return [verdict.stamped(self._view.job, self._alarmed_s, now_s) for verdict in verdicts]

    def _hang_verdicts(self, stalls: list[Standstill]) -> list[Verdict]:
        """A dead process explains every standstill; otherwise the oldest standstill that can be explained does."""
        if self._view.deaths:
            dead = death_verdict(self._view, self._clocks)
            return [dead] if dead else []
        explained = (standstill_verdicts(self._view, self._clocks, stall) for stall in stalls)
        return next((verdicts for verdicts in explained if verdicts), [])

    def _heal(self) -> None:
        """A hang is over when its job moves again and nobody in it is dead."""
        moved_s = max((last_progress_s(self._view, self._clocks, comm) for comm in self._view.comms), default=0.0)
        if moved_s > self._hang_named_s and not self._view.deaths:
            self._hang = self._alarmed_s = None

    def _judge_lateness(self, now_s: float) -> list[Diagnosis]:
        period_s = self._view.period_s()
        found: list[Diagnosis] = []
        for name, comm in self._view.comms.items():
            lateness = self._lateness.setdefault(name, Lateness(sorted(comm.hosts)))
            for op in comm.finished():
                late = lateness.judge(op, period_s)
                found += [self._late_diagnosis(comm, one, now_s) for one in late]
        return found

    def _late_diagnosis(self, comm: CommView, late: Late, now_s: float) -> Diagnosis:
        onset_s = late.onset_s + self._clocks.offset_s(comm.hosts[late.rank])
        evidence = f"waits least and computes {late.share:.1%} longer than the median over {late.ops} operations"
        verdict = Verdict(
            Syndrome.NON_COMMUNICATION_SLOW,
            rank_component(self._view.job, late.rank),
            onset_s,
            0.95,
            (evidence,),
            f"rank {late.rank} waiting as long as the others",
        )
        return verdict.stamped(self._view.job, now_s, now_s)

    def _judge_network(self, now_s: float) -> list[Diagnosis]:
        disturbed = any(lateness.disturbed for lateness in self._lateness.values())
        conns = [view.record for view in self._view.conns.values()]
        self._network.follow(conns, self._view.arrivals.values(), now_s)
        found = self._network.judge(conns, now_s, span_s(self._view.pace_s()), disturbed=disturbed)
        return [verdict.stamped(self._view.job, alarmed_s, now_s) for verdict, alarmed_s in found]


class Detector:
    """C4D for all jobs whose windows it is fed."""

    def __init__(self) -> None:
        self._intake = Intake()
        self._ledger = Ledger(self._intake)
        self._jobs: dict[str, JobDetector] = {}

    @property
    def dropped(self) -> int:
        """Windows and records that were duplicated, reordered, late, torn or ran backwards."""
        return self._intake.dropped

    def feed(self, window: Window) -> None:
        """Take in one agent's window; never raises for what a window holds."""
        if self._intake.admit(window):
            self._ledger.take(window)

    def judge(self, now_s: float) -> list[Diagnosis]:
        """New findings at `now_s` on the master's clock; call it after each batch of windows."""
        self._ledger.clocks.observe(now_s)
        found: list[Diagnosis] = []
        for name, view in self._ledger.jobs.items():
            job = self._jobs.setdefault(name, JobDetector(view, self._ledger.clocks))
            found += job.judge(now_s)
        return found

    def cells(self, job: str) -> Mapping[Cell, float]:
        """The newest delay matrix of `job`: seconds per byte by (source NIC, destination NIC); empty if unknown."""
        return self._jobs[job].cells if job in self._jobs else {}
