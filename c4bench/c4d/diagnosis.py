"""A finding before it is stamped with the times of alarm and naming."""

import msgspec

from c4bench.model.diagnosis import Cause, Component, Diagnosis, OperationSide, ProbeFlow, Syndrome


class Finding(msgspec.Struct, frozen=True):
    """What is wrong, with which component, since when (master's clock), and how that could be refuted.

    `probed`: it is what probes have left of its suspects.
    """

    syndrome: Syndrome
    cause: Cause
    component: Component
    onset_s: float
    confidence: float
    evidence: tuple[str, ...]
    refuted_by: str
    figures: dict[str, float] = {}
    alternatives: tuple[Component, ...] = ()
    operations: tuple[OperationSide, ...] = ()
    probed: bool = False

    @property
    def suspects(self) -> tuple[Component, ...]:
        """The component and its alternatives."""
        return (self.component, *self.alternatives)

    def stamped(self, job: str, alarmed_s: float, named_s: float, probes: tuple[ProbeFlow, ...] = ()) -> Diagnosis:
        """The diagnosis for `job`; `probes` would decide between it and its alternatives."""
        return Diagnosis(
            job,
            self.syndrome,
            self.component,
            self.onset_s,
            alarmed_s,
            named_s,
            self.confidence,
            self.evidence,
            self.refuted_by,
            self.cause,
            self.figures,
            self.alternatives,
            self.operations,
            probes,
            self.probed,
        )


# A finding, and when its alarm was raised (s, master's clock).
Alarmed = tuple[Finding, float]


def rank_component(job: str, rank: int) -> Component:
    """`JOB:RANK`."""
    return Component("rank", f"{job}:{rank}")
