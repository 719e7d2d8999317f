"""A finding before it is stamped with the times of alarm and naming."""

import msgspec

from c4bench.attribution.weigh import Posterior, Row
from c4bench.model.diagnosis import Cause, Component, Diagnosis, OperationSide, ProbeFlow, Syndrome
from c4bench.model.fabric import is_gpu
from c4bench.model.hypothesis import Hypothesis, Standing

# So many components that the evidence speaks against are shown.
_DROPPED = 6


class Finding(msgspec.Struct, frozen=True):
    """What is wrong, with which component, since when (master's clock), and how that could be refuted.

    `probed`: it is what probes have left of its suspects. `posterior`: what was weighed.
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
    posterior: Posterior | None = None

    @property
    def suspects(self) -> tuple[Component, ...]:
        """The component and its alternatives."""
        return (self.component, *self.alternatives)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The suspects, then what else the bad cases crossed, with what was weighed for each."""
        weighed = (*self.posterior.rows, *self.posterior.dropped) if self.posterior else ()
        rows = {row.component: row for row in weighed}
        others = [one for one in rows if one not in self.suspects][:_DROPPED]
        standings = [
            Standing.NAMED,
            *[Standing.ALTERNATIVE] * len(self.alternatives),
            *[Standing.DROPPED] * len(others),
        ]
        return tuple(
            _hypothesis(one, at, rows.get(one)) for one, at in zip([*self.suspects, *others], standings, strict=True)
        )

    def stamped(self, job: str, alarmed_s: float, named_s: float, probes: tuple[ProbeFlow, ...] = ()) -> Diagnosis:
        """The diagnosis for `job`; `probes` would decide between it and its alternatives."""
        return Diagnosis(
            job,
            self.syndrome,
            _published(self.component),
            self.onset_s,
            alarmed_s,
            named_s,
            self.confidence,
            self.evidence,
            self.refuted_by,
            self.cause,
            self.figures,
            tuple(map(_published, self.alternatives)),
            self.operations,
            probes,
            self.probed,
        )


def inside_host(component: Component) -> bool:
    """Whether a component is a GPU's link to others of its host, or a path between two of these.

    What is measured is weighed as of NICs, whose names differ; only what is published says that it is a GPU.
    """
    return component.kind in ("nic", "path") and any(map(is_gpu, component.name.split(">")))


def _published(component: Component) -> Component:
    own = component.kind == "nic" and is_gpu(component.name)
    return msgspec.structs.replace(component, kind="gpu") if own else component


def _hypothesis(one: Component, standing: Standing, row: Row | None) -> Hypothesis:
    return Hypothesis(one, standing, row.gain, row.bad, row.of) if row else Hypothesis(one, standing)


# A finding, and when its alarm was raised (s, master's clock).
Alarmed = tuple[Finding, float]


def rank_component(job: str, rank: int) -> Component:
    """`JOB:RANK`."""
    return Component("rank", f"{job}:{rank}")
