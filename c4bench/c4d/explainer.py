"""Why one job's findings were named: asks the stages what they have seen, right after they have named something."""

from collections.abc import Iterable, Mapping

from c4bench.c4d.confidence import behind
from c4bench.c4d.hang.hypotheses import hang_hypotheses, reported_hypotheses
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.ingest.shared_fabric import SharedFabric
from c4bench.c4d.network.hypotheses import benign_hypotheses, component_hypotheses, missing_hypotheses
from c4bench.c4d.network.pipeline import NetworkSlownessDetector
from c4bench.c4d.probing.doubts import Doubts
from c4bench.c4d.probing.hypotheses import probed_hypotheses, swept_hypotheses
from c4bench.c4d.straggler.hypotheses import straggler_hypotheses
from c4bench.c4d.straggler.stragglers import StragglerDetector
from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Cause, Component, Diagnosis, Syndrome
from c4bench.model.hypothesis import Argument, Explanation, Fact, Hypothesis, Standing
from c4bench.model.recording import ProbeSweep


class Explainer:
    """Explains findings of one job from what its stages hold; it judges nothing."""

    def __init__(
        self,
        view: JobView,
        clocks: HostClocks,
        fabric: SharedFabric,
        network: NetworkSlownessDetector,
        stragglers: Mapping[int, StragglerDetector],
        doubts: Doubts,
    ) -> None:
        self._view, self._clocks, self._fabric = view, clocks, fabric
        self._network, self._stragglers, self._doubts = network, stragglers, doubts
        self._sweep: ProbeSweep | None = None
        self._made: list[Explanation] = []

    def ingest_sweep(self, sweep: ProbeSweep) -> None:
        """Keep a sweep, which findings may come from."""
        self._sweep = sweep

    def explain(self, diagnoses: Iterable[Diagnosis], slowdowns: Iterable[BenignSlowdown]) -> None:
        """Explain what has just been found, in the same evaluation."""
        for diagnosis in diagnoses:
            self._made.append(Explanation(tuple(self._hypotheses(diagnosis)), diagnosis, None, *behind(diagnosis)))
        for slowdown in slowdowns:
            self._made.append(Explanation(tuple(self._benign(slowdown)), None, slowdown))

    def poll(self) -> list[Explanation]:
        """The explanations since the last call."""
        made, self._made = self._made, []
        return made

    def _hypotheses(self, diagnosis: Diagnosis) -> list[Hypothesis]:
        suspects = diagnosis.suspects
        if diagnosis.probed and (doubt := self._doubts.behind(suspects)):
            return probed_hypotheses(diagnosis, doubt)
        match diagnosis.cause:
            case Cause.COMPUTE_SLOW:
                return straggler_hypotheses(diagnosis, self._view, self._stragglers)
            case Cause.CONNECTION_LOST:
                return reported_hypotheses(suspects, self._view)
            case Cause.PAUSE_STORM | Cause.LINK_MISSING | Cause.TRANSFER_SLOW | Cause.PACKETS_LOST:
                return self._of_network(diagnosis, suspects)
        return hang_hypotheses(diagnosis, self._view, self._clocks)

    def _of_network(self, diagnosis: Diagnosis, suspects: tuple[Component, ...]) -> list[Hypothesis]:
        if diagnosis.cause is Cause.LINK_MISSING:
            return missing_hypotheses(suspects, self._fabric.missing)
        if diagnosis.cause is Cause.PAUSE_STORM:
            paused = Argument(Fact.PAUSED, (diagnosis.component.name,), {"share": diagnosis.figures["paused_share"]})
            return [Hypothesis(diagnosis.component, Standing.NAMED, (paused,))]
        return self._slow(diagnosis, suspects)

    def _slow(self, diagnosis: Diagnosis, suspects: tuple[Component, ...]) -> list[Hypothesis]:
        """Of a slow or lossy component: from the delay matrix, a sweep, or connections that have stalled over it."""
        if self._sweep and diagnosis.onset_s == self._sweep.at_s:
            return swept_hypotheses(suspects, self._sweep)
        seen = self._network.evidence()
        if seen is None or diagnosis.syndrome is Syndrome.COMMUNICATION_HANG:
            return hang_hypotheses(diagnosis, self._view, self._clocks)
        found = component_hypotheses(suspects, diagnosis.cause, diagnosis.onset_s, seen)
        if diagnosis.cause is Cause.PACKETS_LOST:
            return found
        return found + benign_hypotheses(diagnosis.component, diagnosis.onset_s, seen, congested=False)

    def _benign(self, slowdown: BenignSlowdown) -> list[Hypothesis]:
        seen = self._network.evidence()
        if seen is None:
            return []
        own = component_hypotheses((slowdown.component,), Cause.TRANSFER_SLOW, slowdown.onset_s, seen)
        benign = benign_hypotheses(slowdown.component, slowdown.onset_s, seen, congested=True)
        return [*benign, *map(_dropped, own)]


def _dropped(one: Hypothesis) -> Hypothesis:
    return Hypothesis(one.what, Standing.DROPPED, one.speaks_for, one.speaks_against)
