"""The detector of one job: what its hangs, its late ranks and its network show, each named once until it heals."""

import math
from collections.abc import Collection, Mapping

from c4bench.attribution.weigh import Cell
from c4bench.c4d.act.doubts import Doubts
from c4bench.c4d.act.flows import deciding_probes
from c4bench.c4d.act.slowness import NetworkSlownessDetector
from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding, rank_component
from c4bench.c4d.hang.failed_connections import FailedConnections
from c4bench.c4d.hang.hangs import Standstill, hang_findings, secondary_findings, standstills
from c4bench.c4d.hang.process_exits import exit_findings
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.shared_fabric import SharedFabric
from c4bench.c4d.signs.pause_storms import PauseStorms
from c4bench.c4d.signs.reported_losses import RankReportedLosses
from c4bench.c4d.signs.stragglers import IntermittentStragglers, Straggler, StragglerDetector
from c4bench.c4d.thresholds import benign_stall_s, hung_after_s, span_s
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Cause, Component, Diagnosis, NetworkLoss, Syndrome
from c4bench.model.hypothesis import Explanation, Hypothesis, Standing
from c4bench.model.recording import ProbeSweep
from c4bench.model.telemetry import Failure

# Causes seen at the component itself, which no other fault can imitate.
_INDEPENDENT = frozenset(
    {Cause.PROCESS_STOPPED, Cause.PROCESS_ENDED, Cause.CONNECTION_STALLED, Cause.PORT_DOWN, Cause.PAUSE_STORM}
)


class JobDetector:
    """Follows one job. A hang suppresses findings of slowness: what is slow then is slow because of it.

    So does a standstill that may still become a hang.
    """

    def __init__(self, view: JobView, clocks: HostClocks, fabric: SharedFabric, *, explaining: bool = False) -> None:
        self._view = view
        self._clocks = clocks
        self._network = NetworkSlownessDetector(view, clocks, fabric)
        self._reported_losses = RankReportedLosses(view, clocks)
        self._failed = FailedConnections(view, clocks)
        self._storms = PauseStorms(view, clocks)
        self._stragglers: dict[int, StragglerDetector] = {}
        self._intermittent = IntermittentStragglers()
        self._alarmed_s: float | None = None
        self._unsure = False
        # Components to blame for the present hang, and for all hangs since the present standstill began.
        self._hung: set[Component] = set()
        self._reported: set[Component] = set()
        self._hang_named_s = 0.0
        # When the job moved again: connections do not all resume at once, and each standstill is timed from here.
        self._resumed_s = -math.inf
        self._sweep: ProbeSweep | None = None
        self.doubts = Doubts(view.paths)
        self._explaining = explaining
        self.explanations: list[Explanation] = []

    @property
    def cells(self) -> Mapping[Cell, float]:
        """The newest delay matrix, seconds per byte; of several paths between two NICs the slowest."""
        slowest: dict[Cell, float] = {}
        for cell, value in self._network.cells.items():
            slowest[cell[:2]] = max(value, slowest.get(cell[:2], value))
        return slowest

    @property
    def has_baseline(self) -> bool:
        """Whether it is known what each connection that carries data costs in health."""
        return self._network.has_baseline

    @property
    def standing(self) -> set[Component]:
        """What has been named and has not healed."""
        late = {rank_component(self._view.job, rank) for rank in self._known_stragglers()}
        return self._reported | late | self._network.cases.standing

    def poll_benign(self) -> list[BenignSlowdown]:
        """Slowdowns without a fault that were explained since the last call."""
        return self._network.poll_benign()

    def closes_span(self, now_s: float) -> bool:
        """Whether an evaluation now would close a span of the delay matrix."""
        return self._network.closes_span(now_s, span_s(self._view.pace_s()))

    def evaluate(self, now_s: float) -> list[Diagnosis]:
        """New findings at `now_s`, the master's clock."""
        diagnoses = self._refine(now_s) + self._evaluate(now_s)
        self._network.note_named(diagnoses, now_s)
        if self._explaining:
            slowdowns = (one for one in self._network.slowdowns if one.explained_s == now_s)
            self.explanations += (Explanation(_benign(one), slowdown=one) for one in slowdowns)
        return diagnoses

    def _evaluate(self, now_s: float) -> list[Diagnosis]:
        lost = self._reported_losses.evaluate(now_s) + self._evaluate_failed(now_s)
        hangs = self._evaluate_hangs(now_s)
        if hangs or self._hung or self._unsure:
            return lost + hangs
        return lost + self._evaluate_stragglers(now_s) + self._evaluate_network(now_s) + self._evaluate_sweep(now_s)

    def _refine(self, now_s: float) -> list[Diagnosis]:
        """Findings that probes have made more exact, or that were held for them."""
        ended = self.doubts.ended(now_s)
        self._reported |= {finding.component for finding, _ in ended.name} if self._reported else set()
        for finding in ended.refuted:
            self._network.refute(finding)
        slow = [finding.component for finding, _ in ended.name if finding.cause is Cause.TRANSFER_SLOW]
        self._network.cases.name(slow, now_s)
        return [self._stamped(finding, alarmed_s, now_s) for finding, alarmed_s in ended.name]

    def retire(self, comms: Collection[str]) -> None:
        """Forget communicators that all their members have closed."""
        for number, size in self._view.remove_comms(comms):
            if size in self._stragglers:
                self._stragglers[size].forget(number)
        self._network.forget(comms)

    def sits(self, comm: str, member: int, seat: int) -> bool:
        """Whether that member of `comm` is the job's rank `seat`, as far as either is known (-1 if not)."""
        return self._view.sits(comm, member, seat)

    def ingest_failure(self, comm: str, failure: Failure, at_s: float) -> None:
        """Note that a member of `comm` said at `at_s` (master's clock) that it cannot go on."""
        self._view.ingest_failure(comm, failure, at_s)
        self._failed.ingest(comm, failure, at_s)

    def ingest_loss(self, comm: str, loss: NetworkLoss) -> None:
        """Note that a member of `comm` goes on without a part of the network."""
        self._reported_losses.ingest(comm, loss)

    def ingest_sweep(self, sweep: ProbeSweep) -> None:
        """Keep a sweep of all the job's NICs until the next evaluation without a hang."""
        self._sweep = sweep

    def _evaluate_failed(self, now_s: float) -> list[Diagnosis]:
        """Failures that ranks survived, except of what a hang has been named for."""
        findings = self._failed.evaluate(now_s)
        fresh = [each for each in findings if self._reported.isdisjoint(each.suspects)]
        return [self._diagnosis(finding, now_s, now_s) for finding in fresh]

    def _evaluate_hangs(self, now_s: float) -> list[Diagnosis]:
        period_s = self._view.period_s()
        stills = standstills(self._view, self._clocks, hung_after_s(period_s, self._clocks.cadence_s()))
        healed = not self._hung or self._healed()
        if self._hung and healed:
            self._resumed_s = now_s
        lasted_s = max((still.observed_s - max(still.since_s, self._resumed_s) for still in stills), default=0.0)
        lasting = lasted_s >= benign_stall_s(period_s)
        self._unsure = bool(stills) and not lasting
        if not stills and not self._view.exits:
            if healed:
                self._hung.clear()
                self._reported.clear()
                self._alarmed_s = None
            return []
        hangs = self._hang_findings(stills if lasting else [])
        verdicts = [verdict for verdict, _ in self._storms.explain((hang, now_s) for hang in hangs)]
        if self._hung and healed:
            # The job moves, and something stands still beside that: it is another hang unless the same is to blame.
            self._hung &= {verdict.component for verdict in verdicts}
            self._alarmed_s = self._alarmed_s if self._hung else None
        self._alarmed_s = self._alarmed_s or now_s
        fresh = self._fresh(verdicts)
        if fresh:
            self._hung.update(verdict.component for verdict in fresh)
            self._reported |= self._hung
            self._hang_named_s = now_s
        return [self._diagnosis(verdict, self._alarmed_s, now_s) for verdict in fresh]

    def _hang_findings(self, stills: list[Standstill]) -> list[Finding]:
        """Attribute standstills to processes that ended, except those between other ranks."""
        if self._view.exits:
            ended = exit_findings(self._view, self._clocks, known=bool(self._hung))
            return ended + secondary_findings(self._view, self._clocks, stills) if ended or self._hung else []
        return hang_findings(self._view, self._clocks, stills) if stills else []

    def _fresh(self, verdicts: list[Finding]) -> list[Finding]:
        """Findings that share no suspect with a named one; during a hang only those that no other fault causes."""
        fresh = [v for v in verdicts if self._reported.isdisjoint(v.suspects)]
        return [verdict for verdict in fresh if verdict.cause in _INDEPENDENT] if self._hung else fresh

    def _healed(self) -> bool:
        """A hang is over when its job moves again and nobody in it is dead."""
        moved_s = self._view.members.progress_s(self._clocks)
        return moved_s.max(initial=0.0) > self._hang_named_s and not self._view.exits

    def _evaluate_stragglers(self, now_s: float) -> list[Diagnosis]:
        period_s = self._view.period_s() or 0.0
        diagnoses: list[Diagnosis] = []
        known = self._known_stragglers()
        for ops in self._view.finished():
            size = ops.ranks.shape[1]
            lateness = self._stragglers.setdefault(size, StragglerDetector(size, self._intermittent))
            for late in lateness.evaluate(ops, period_s):
                rank = self._view.numbered[late.comm].ranks[late.member]
                if rank not in known:
                    known.add(rank)
                    diagnoses.append(self._straggler_diagnosis(late, now_s))
        return diagnoses

    def _known_stragglers(self) -> set[int]:
        """Ranks that are named as stragglers, which may be late again in any of their communicators."""
        comms = self._view.numbered
        standing = (diagnosis for lateness in self._stragglers.values() for diagnosis in lateness.standing)
        return {comms[number].ranks[member] for number, member in standing} | self._intermittent.standing

    def _straggler_diagnosis(self, late: Straggler, now_s: float) -> Diagnosis:
        comm = self._view.numbered[late.comm]
        rank = comm.ranks[late.member]
        verdict = Finding(
            Syndrome.NON_COMMUNICATION_SLOW,
            Cause.COMPUTE_SLOW,
            rank_component(self._view.job, rank),
            late.onset_s + self._clocks.offset_s(comm.hosts[late.member]),
            confidence(),
            (_how_late(late),),
            f"rank {rank} waiting as long as the others",
            {"late_share": late.share, "late_operations": float(late.ops)},
        )
        return self._diagnosis(verdict, now_s, now_s)

    def _evaluate_network(self, now_s: float) -> list[Diagnosis]:
        disturbed = any(lateness.disturbed for lateness in self._stragglers.values())
        self._network.ingest_delays(now_s)
        span = span_s(self._view.pace_s())
        alarms = self._network.evaluate(now_s, span, disturbed=disturbed)
        unexplained = [alarm for alarm in alarms if not self._reported_losses.explains(alarm[0].component)]
        verdicts, nics = self._storms.new(self._storms.explain(unexplained), now_s), self._view.users()
        found = []
        for verdict, alarmed_s in verdicts:
            if self.doubts.hold(verdict, alarmed_s, now_s, nics):
                self._network.cases.ask(verdict.component, now_s)
            else:
                found.append(self._diagnosis(verdict, alarmed_s, now_s))
        return found

    def _evaluate_sweep(self, now_s: float) -> list[Diagnosis]:
        """Evaluate a sweep once, at the first moment without a hang; report only what is new."""
        sweep, self._sweep = self._sweep, None
        return (
            [self._diagnosis(verdict, now_s, now_s) for verdict in self._network.ingest_sweep(sweep)] if sweep else []
        )

    def _diagnosis(self, verdict: Finding, alarmed_s: float, now_s: float) -> Diagnosis:
        self.doubts.add(verdict, alarmed_s, self._view.users())
        return self._stamped(verdict, alarmed_s, now_s)

    def _stamped(self, verdict: Finding, alarmed_s: float, now_s: float) -> Diagnosis:
        probes = deciding_probes(self._view, verdict.suspects)
        diagnosis = verdict.stamped(self._view.job, alarmed_s, now_s, probes)
        if self._explaining:
            self.explanations.append(Explanation(verdict.hypotheses(), diagnosis))
        return diagnosis


def _benign(slowdown: BenignSlowdown) -> tuple[Hypothesis, ...]:
    """That nothing is at fault, rather than the component that would have been named."""
    return Hypothesis(slowdown.reason, Standing.NAMED), Hypothesis(slowdown.component, Standing.DROPPED)


def _how_late(late: Straggler) -> str:
    longer = f"waits least and computes {late.share:.1%} longer than the median"
    return (
        f"{longer} over {late.ops} operations" if late.lasting else f"{longer} again and again, {late.ops} times so far"
    )
