"""The detector of one job: what its hangs, its late ranks and its network show, each named once until it heals."""

from collections.abc import Collection, Mapping

from c4bench.attribution.weigh import Cell
from c4bench.c4d.act.doubts import Doubts
from c4bench.c4d.act.flows import deciding_probes
from c4bench.c4d.act.hang_watch import HangWatch
from c4bench.c4d.act.late_ranks import LateRanks
from c4bench.c4d.act.slowness import NetworkSlownessDetector
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.shared_fabric import SharedFabric
from c4bench.c4d.signs.reported_losses import RankReportedLosses
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Cause, Component, Diagnosis, NetworkLoss
from c4bench.model.hypothesis import Explanation, Hypothesis, Standing
from c4bench.model.recording import ProbeSweep
from c4bench.model.telemetry import Failure


class JobDetector:
    """Follows one job. A hang suppresses findings of slowness: what is slow then is slow because of it.

    So does a standstill that may still become a hang.
    """

    def __init__(self, view: JobView, clocks: HostClocks, fabric: SharedFabric, *, explaining: bool = False) -> None:
        self._view = view
        self._network = NetworkSlownessDetector(view, clocks, fabric)
        self._reported_losses = RankReportedLosses(view, clocks)
        self._hangs = HangWatch(view, clocks)
        self._storms = self._hangs.storms
        self._late = LateRanks(view, clocks)
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
        return self._hangs.reported | self._late.standing | self._network.cases.standing

    def poll_benign(self) -> list[BenignSlowdown]:
        """Slowdowns without a fault that were explained since the last call."""
        return self._network.poll_benign()

    def closes_span(self, now_s: float) -> bool:
        """Whether an evaluation now would close a span of the delay matrix."""
        return self._network.closes_span(now_s, self._view.span_s())

    def retire(self, comms: Collection[str]) -> None:
        """Forget communicators that all their members have closed."""
        for number, size in self._view.remove_comms(comms):
            self._late.forget(number, size)
        self._network.forget(comms)

    def sits(self, comm: str, member: int, seat: int) -> bool:
        """Whether that member of `comm` is the job's rank `seat`, as far as either is known (-1 if not)."""
        return self._view.sits(comm, member, seat)

    def ingest_failure(self, comm: str, failure: Failure, at_s: float) -> None:
        """Note that a member of `comm` said at `at_s` (master's clock) that it cannot go on."""
        self._hangs.ingest_failure(comm, failure, at_s)

    def ingest_loss(self, comm: str, loss: NetworkLoss) -> None:
        """Note that a member of `comm` goes on without a part of the network."""
        self._reported_losses.ingest(comm, loss)

    def ingest_sweep(self, sweep: ProbeSweep) -> None:
        """Keep a sweep of all the job's NICs until the next evaluation without a hang."""
        self._sweep = sweep

    def evaluate(self, now_s: float) -> list[Diagnosis]:
        """New findings at `now_s`, the master's clock."""
        diagnoses = self._refine(now_s) + self._evaluate(now_s)
        self._network.note_named(diagnoses, now_s)
        if self._explaining:
            slowdowns = (one for one in self._network.slowdowns if one.explained_s == now_s)
            self.explanations += (Explanation(_benign(one), slowdown=one) for one in slowdowns)
        return diagnoses

    def _refine(self, now_s: float) -> list[Diagnosis]:
        """Findings that probes have made more exact, or that were held for them."""
        ended = self.doubts.ended(now_s)
        self._hangs.reported |= {finding.component for finding, _ in ended.name} if self._hangs.reported else set()
        for finding in ended.refuted:
            self._network.refute(finding)
        named = [*ended.upheld, *(finding for finding, _ in ended.name)]
        slow = [finding.component for finding in named if finding.cause is Cause.TRANSFER_SLOW]
        self._network.cases.name(slow, now_s)
        return [self._stamped(finding, alarmed_s, now_s) for finding, alarmed_s in ended.name]

    def _evaluate(self, now_s: float) -> list[Diagnosis]:
        lost = self._reported_losses.evaluate(now_s)
        lost += [self._diagnosis(finding, now_s, now_s) for finding in self._hangs.evaluate_failed(now_s)]
        hangs = [self._diagnosis(finding, alarmed_s, now_s) for finding, alarmed_s in self._hangs.evaluate(now_s)]
        if hangs or self._hangs.stands_still:
            return lost + hangs
        late = [self._diagnosis(finding, now_s, now_s) for finding in self._late.evaluate()]
        return lost + late + self._evaluate_network(now_s) + self._evaluate_sweep(now_s)

    def _evaluate_network(self, now_s: float) -> list[Diagnosis]:
        self._network.ingest_delays(now_s)
        late = bool(self._late.standing)
        alarms = self._network.evaluate(now_s, self._view.span_s(), disturbed=self._late.disturbed, late=late)
        unexplained = [alarm for alarm in alarms if not self._reported_losses.explains(alarm[0].component)]
        nics, used, found = self._view.users(), self._view.flows(), []
        for finding, alarmed_s in self._storms.new(self._storms.explain(unexplained), now_s):
            if self.doubts.hold(finding, alarmed_s, now_s, nics, used):
                self._network.cases.ask(finding.component, now_s)
            else:
                found.append(self._diagnosis(finding, alarmed_s, now_s))
        return found

    def _evaluate_sweep(self, now_s: float) -> list[Diagnosis]:
        """Evaluate a sweep once, at the first moment without a hang; report only what is new."""
        sweep, self._sweep = self._sweep, None
        findings = self._network.ingest_sweep(sweep) if sweep else []
        return [self._diagnosis(finding, now_s, now_s) for finding in findings]

    def _diagnosis(self, finding: Finding, alarmed_s: float, now_s: float) -> Diagnosis:
        self.doubts.add(finding, alarmed_s, self._view.users(), self._view.flows())
        return self._stamped(finding, alarmed_s, now_s)

    def _stamped(self, finding: Finding, alarmed_s: float, now_s: float) -> Diagnosis:
        probes = deciding_probes(self._view, finding.suspects)
        diagnosis = finding.stamped(self._view.job, alarmed_s, now_s, probes)
        if self._explaining:
            self.explanations.append(Explanation(finding.hypotheses(), diagnosis))
        return diagnosis


def _benign(slowdown: BenignSlowdown) -> tuple[Hypothesis, ...]:
    """That nothing is at fault, rather than the component that would have been named."""
    return Hypothesis(slowdown.reason, Standing.NAMED), Hypothesis(slowdown.component, Standing.DROPPED)
